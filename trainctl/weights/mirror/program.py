"""The mirror program: what a mirror does where it is kept, on a host. DESIGN.md, "Mirror on a host", has its verbs.

Standard library, Python 3.8, like the program on nodes, whose protocol it speaks.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO, Callable, Mapping

from trainctl.errors import StorageError, TrainctlError
from trainctl.node.caller import own_address, until_gone
from trainctl.node.failure import Failure
from trainctl.node.protocol import emit, read_request, say
from trainctl.node.server import BlobServer, MirrorShelf, serving
from trainctl.weights.mirror.caller import Caller
from trainctl.weights.mirror.collect import Collecting, collect
from trainctl.weights.mirror.directory import DirectoryMirror
from trainctl.weights.mirror.disk import free_bytes
from trainctl.weights.mirror.forms import (
    collected_to_json,
    error_to_json,
    known_to_json,
    resolved_from_json,
    verified_to_json,
)
from trainctl.weights.mirror.known import known, missing, stored_bytes
from trainctl.weights.mirror.layout import Reference
from trainctl.weights.mirror.mend import Origin
from trainctl.weights.mirror.signed import SignedSource
from trainctl.weights.mirror.verify import Verifying, verify
from trainctl.weights.retry import Retry

Request = Mapping[str, Any]
Answer = Mapping[str, Any]


def look(mirror: DirectoryMirror, request: Request) -> Answer:
    """What is known of sources, which of some listings are here, and whether this host may serve others."""
    sources = [resolved_from_json(one) for one in request["sources"]]
    return {
        "known": [known_to_json(known(mirror, one)) for one in sources],
        "listings": [one for one in request["listings"] if mirror.has_listing(one)],
        "unserved": _unserved(),
        "free": free_bytes(mirror.root),
    }


def load_listing(mirror: DirectoryMirror, request: Request) -> Answer:
    """A listing's document, or null."""
    listing = mirror.load_listing(request["listing"])
    return {"document": None if listing is None else listing.to_bytes().decode()}


def sources(mirror: DirectoryMirror, request: Request) -> Answer:
    """The rows of ``mirror list``."""
    return {"sources": [asdict(one) for one in mirror.sources()]}


def stored(mirror: DirectoryMirror, request: Request) -> Answer:
    """The bytes of all content."""
    return {"bytes": stored_bytes(mirror)}


def renew(mirror: DirectoryMirror, request: Request) -> Answer:
    """Resources' sources were used just now."""
    mirror.renew(request["lineage"], request["address"])
    return {}


def drop_reference(mirror: DirectoryMirror, request: Request) -> Answer:
    """A resource does not want its source any more."""
    return {"dropped": mirror.drop_reference(request["lineage"], request["address"])}


def collect_unused(mirror: DirectoryMirror, request: Request, caller: Caller) -> Answer:
    """Delete what nobody needs; events ``{say}``."""
    asked = Collecting(
        dry_run=request["dry_run"],
        grace_seconds=request["grace_seconds"],
        unused_seconds=request["unused_seconds"],
        tell=lambda text: caller.tell({"say": text}),
    )
    return collected_to_json(collect(mirror, asked))


def verify_all(mirror: DirectoryMirror, request: Request, caller: Caller) -> Answer:
    """Hash everything; with ``repair`` what is wrong is fetched by links that the caller makes. Events ``{done, total, files}``."""
    source = SignedSource(caller, {})
    known_origins: dict[tuple[str, str], Origin] = {}

    def origin_of(record: Mapping[str, object]) -> Origin:
        key = (str(record.get("source")), str(record.get("revision")))
        if key not in known_origins:
            answer = caller.ask({"want": "origin", "source": key[0], "revision": key[1]})
            resolved = resolved_from_json(answer["resolved"])
            known_origins[key] = Origin(source, resolved, None, _patience(caller))
        return known_origins[key]

    asked = Verifying(request["repair"], origin_of, progress=_progress(caller))
    return verified_to_json(verify(mirror, asked))


def ingest(mirror: DirectoryMirror, request: Request, caller: Caller) -> Answer:
    """Have every file of a source here, by links that the caller makes. Events ``{done, total, files}``; the listing's document."""
    resolved = resolved_from_json(request["source"])
    wanted = sorted(missing(resolved, known(mirror, resolved)), key=lambda file: -file.size)
    source = SignedSource(caller, {resolved.source: [file.path for file in wanted]})
    listing = DirectoryMirror(mirror.root, _patience(caller)).mirror(
        resolved,
        source,
        Reference(**request["reference"]),
        progress=_progress(caller),
        cancelled=caller.gone,
    )
    return {"document": listing.to_bytes().decode()}


def serve(mirror: DirectoryMirror, request: Request) -> Answer:
    """Hand out contents to who has the token, until the caller has gone. Events ``{address, port}`` and ``{sent}``."""
    shelf = MirrorShelf(mirror.root)
    with serving(BlobServer(shelf, request["token"], own_address())) as server:
        emit({"address": server.address, "port": server.port})
        until_gone(sys.stdin.buffer, lambda: emit({"sent": server.sent}))
        return {"sent": server.sent}


_VERBS: Mapping[str, Callable[[DirectoryMirror, Request], Answer]] = {
    "look": look,
    "load_listing": load_listing,
    "sources": sources,
    "stored": stored,
    "renew": renew,
    "drop_reference": drop_reference,
    "serve": serve,
}
_WITH_CALLER: Mapping[str, Callable[[DirectoryMirror, Request, Caller], Answer]] = {
    "collect": collect_unused,
    "verify": verify_all,
    "ingest": ingest,
}


def main() -> int:
    """Do the verb that the last argument names; the exit code: 0, or 1 for an error that was reported."""
    try:
        say({"result": _done(sys.argv[-1], sys.stdin.buffer)})
    except TrainctlError as error:
        say({"error": error_to_json(error)})
    except Failure as error:
        say({"error": error.to_json()})
    except KeyError as error:
        say({"error": Failure("request", f"the request lacks {error}").to_json()})
    except OSError as error:
        failure = StorageError(f"the mirror: {error.strerror or error} ({error.filename})")
        say({"error": error_to_json(failure)})
    else:
        return 0
    return 1


def _done(verb: str, stream: BinaryIO) -> Answer:
    request = read_request(stream)
    mirror = DirectoryMirror(Path(request["root"]))
    if verb in _WITH_CALLER:
        return _WITH_CALLER[verb](mirror, request, Caller(stream, emit))
    if verb not in _VERBS:
        raise Failure("request", f"this mirror program knows no verb {verb!a}")
    return _VERBS[verb](mirror, request)


def _unserved() -> str:
    """Why this host may not serve others; empty if it may."""
    try:
        own_address()
    except Failure as failure:
        return failure.summary
    return ""


def _patience(caller: Caller) -> Retry:
    return Retry(tell=lambda text: caller.tell({"say": text}))


def _progress(caller: Caller) -> Callable[[int, int, int], None]:
    return lambda done, total, files: caller.tell({"done": done, "total": total, "files": files})
