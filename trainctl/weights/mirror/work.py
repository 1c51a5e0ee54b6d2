"""The verbs of the mirror program that take long: a source fetched, contents served, verified and collected."""

from __future__ import annotations

import threading
from typing import Any, BinaryIO, Callable, Iterator, Mapping, Sequence

from trainctl.base.failure import Failure
from trainctl.base.protocol.lines import emit
from trainctl.base.protocol.rows import received
from trainctl.base.retry import Retry
from trainctl.errors import Interrupted
from trainctl.node.transfer.caller import serve_others
from trainctl.node.transfer.shelf import MirrorShelf
from trainctl.weights.mirror.afresh import Origin
from trainctl.weights.mirror.answers import Answer, Request, listed, tell
from trainctl.weights.mirror.caller import Caller
from trainctl.weights.mirror.collect import Collecting, collect
from trainctl.weights.mirror.directory import DirectoryMirror
from trainctl.weights.mirror.forms import (
    collected_to_json,
    resolved_from_json,
)
from trainctl.weights.mirror.layout import Reference, named_in
from trainctl.weights.mirror.links import Links
from trainctl.weights.mirror.paced import Paced
from trainctl.weights.mirror.signed import SignedSource
from trainctl.weights.mirror.verify import Verifying, finding_row, verify


def do(verb: str, mirror: DirectoryMirror, request: Request, stream: BinaryIO) -> Answer:
    """Do the verb for the caller at the other end of the stream; Failure for one that there is not."""
    if verb in _WITH_STREAM:
        return _WITH_STREAM[verb](mirror, request, stream)
    if verb not in _WITH_CALLER:
        raise Failure("request", f"this mirror program knows no verb {verb!r}")
    return _WITH_CALLER[verb](mirror, request, Caller(stream, emit))


def collect_unused(mirror: DirectoryMirror, request: Request, caller: Caller) -> Answer:
    """Delete what nobody needs; events ``{say}``. Interrupted where the caller goes while it waits."""

    def wait(seconds: float) -> None:
        if caller.gone.wait(seconds):
            raise Interrupted("the command that collected has ended", "Nothing was deleted.")

    asked = Collecting(
        dry_run=request["dry_run"],
        grace_seconds=request["grace_seconds"],
        unused_seconds=request["unused_seconds"],
        wait=wait,
        tell=lambda text: caller.tell({"say": text}),
    )
    return collected_to_json(collect(mirror, asked))


def verify_all(mirror: DirectoryMirror, request: Request, caller: Caller) -> Answer:
    """Hash everything; with ``repair`` what is wrong is fetched by links that the caller makes. Events ``{done, total, files}``; rows of findings."""
    source = SignedSource(Links(caller, in_turn=False))
    known_origins: dict[tuple[str, str | None, str], Origin] = {}

    def origin_of(record: Mapping[str, object], halt: threading.Event) -> Origin:
        key = named_in(record)
        if key not in known_origins:
            question = dict(zip(("source", "endpoint", "revision"), key))
            named = caller.ask({"want": "origin", **question})["resolved"]
            resolved = resolved_from_json(named, _upstream_rows(caller, named))
            known_origins[key] = Origin(source, resolved, None, _patience(caller))
        return known_origins[key]

    asked = Verifying(request["repair"], origin_of, _progress(caller), own=request["own"])
    found = verify(mirror, asked)
    tell([map(finding_row, found.findings)])
    return {"blobs": found.blobs, "bytes": found.bytes}


def _upstream_rows(caller: Caller, resolved: Mapping[str, Any]) -> Iterator[Sequence[Any]]:
    """The files of a source as the caller resolved it, some at a time."""
    question = {
        "want": "files",
        "source": resolved["source"],
        "endpoint": resolved["endpoint"],
        "revision": resolved["revision"],
    }
    count = 0
    while rows := caller.ask({**question, "after": count})["rows"]:
        count += len(rows)
        yield from rows


def ingest(mirror: DirectoryMirror, request: Request, stream: BinaryIO) -> Answer:
    """Have every file of a source here, by links that the caller makes. Events ``{done, total, files}``, ``{waiting}``; see ``listed``.

    The source's files follow the request, and after them come the caller's answers.
    """
    resolved = resolved_from_json(request["source"], next(received(stream)))
    caller = Caller(stream, emit)
    listing = DirectoryMirror(mirror.root, _patience(caller)).mirror(
        resolved,
        SignedSource(Links(caller, in_turn=True)),
        Reference(**request["reference"]),
        progress=_progress(caller),
        cancelled=caller.gone,
        waiting=lambda text: caller.tell({"waiting": text}),
    )
    return listed(listing, request)


def serve(mirror: DirectoryMirror, request: Request, stream: BinaryIO) -> Answer:
    """Hand out contents; see ``serve_others``."""
    return serve_others(MirrorShelf(mirror.root), request, emit, stream)


_WITH_CALLER: Mapping[str, Callable[[DirectoryMirror, Request, Caller], Answer]] = {
    "collect": collect_unused,
    "verify": verify_all,
}
_WITH_STREAM: Mapping[str, Callable[[DirectoryMirror, Request, BinaryIO], Answer]] = {
    "ingest": ingest,
    "serve": serve,
}


def _patience(caller: Caller) -> Retry:
    return Retry(tell=lambda text: caller.tell({"say": text}))


def _progress(caller: Caller) -> Paced:
    return Paced(
        lambda done, total, files: caller.tell({"done": done, "total": total, "files": files})
    )
