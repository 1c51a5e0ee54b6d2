"""Verbs on a mirror in a directory of this host; requests and answers are in ``trainctl.base.protocol.mirrors``."""

from __future__ import annotations

import time
from dataclasses import astuple
from typing import Any, BinaryIO, Callable, Mapping, cast

from trainctl.base.addresses import Serving
from trainctl.base.protocol.conversation import Asking
from trainctl.base.protocol.mirrors import (  # fmt: skip
    Collected,
    GcRequest,
    InDirectory,
    Ingested,
    IngestRequest,
    Inventoried,
    Size,
    Surveyed,
    SurveyRequest,
    Verified,
    VerifyRequest,
)
from trainctl.base.protocol.wire import blocks, received
from trainctl.base.retry import Retry
from trainctl.base.syscalls import share_arenas
from trainctl.node.mirror.objects import Emit, objects_of
from trainctl.node.mirror.upstream import LinkedUpstream, Links
from trainctl.store import messages
from trainctl.store.gc import GcOptions, gc
from trainctl.store.inventory import inventory, stored_bytes
from trainctl.store.references import Reference
from trainctl.store.store import Store
from trainctl.store.survey import survey
from trainctl.store.verify import verify

_EVENT_SECONDS = 0.1


def mirror_ingest(request: IngestRequest, emit: Emit, caller: BinaryIO) -> Ingested:
    """Copy a source in, by links that the caller makes. It ends when the caller does; what arrived is kept."""
    resolved = messages.source_from_json(request["source"], next(received(caller)))
    share_arenas()  # threads come and go with the parts of a source, and each would keep memory of its own
    asking = Asking(caller, emit)
    store = Store(objects_of(request), Retry(tell=lambda text: asking.tell({"say": text})))
    listing = store.ingest(
        resolved,
        LinkedUpstream(resolved, Links(asking, resolved.files)),
        Reference(**request["reference"]),
        progress=throttled(asking.tell),
        cancelled=asking.gone,
        waiting=lambda text: asking.tell({"waiting": text}),
    )
    return {"listing": listing.id}


def mirror_survey(request: SurveyRequest, emit: Emit, caller: BinaryIO) -> Surveyed:
    """Inspect what is here of sources, and which listings are."""
    sources = [
        messages.source_from_json(source, rows)
        for source, rows in zip(request["sources"], received(caller))
    ]
    found = survey(objects_of(request), sources, request["listings"], request["lineage"])
    for block in blocks(source.files for source in found.sources):
        emit(block)
    return {
        "complete": [source.listing for source in found.sources],
        "arrived": [source.arrived for source in found.sources],
        "listings": sorted(found.listings),
        "free": found.free,
        "damaged": list(found.damaged),
        "unusable": found.unusable,
        "serving": Serving.here().to_json(),
    }


def mirror_gc(request: GcRequest, emit: Emit) -> Collected:
    """Delete what no reference needs."""
    options = GcOptions(request["dry_run"], request["unused_seconds"])
    report = gc(objects_of(request), options, lambda text: emit({"say": text}))
    return cast("Collected", vars(report))


def mirror_verify(request: VerifyRequest, emit: Emit) -> Verified:
    """Hash all content; with ``repair`` delete what is wrong."""
    report = verify(
        objects_of(request), request["repair"], throttled(emit), lambda text: emit({"say": text})
    )
    for block in blocks([map(astuple, report.findings)]):
        emit(block)
    return {"blobs": report.blobs, "bytes": report.bytes}


def mirror_inventory(request: InDirectory, emit: Emit) -> Inventoried:
    """What is stored, and who references it."""
    return cast("Inventoried", vars(inventory(objects_of(request))))


def mirror_size(request: InDirectory, emit: Emit) -> Size:
    """The bytes of all content."""
    return {"bytes": stored_bytes(objects_of(request))}


def throttled(
    emit: Callable[[Mapping[str, Any]], None], clock: Callable[[], float] = time.monotonic
) -> Callable[[int, int, int], None]:
    """A ``Progress`` that sends its first and its last call at once, and others ten times a second."""
    due = clock()

    def progress(done: int, total: int, files: int) -> None:
        nonlocal due
        now = clock()
        if now >= due or done >= total:
            due = now + _EVENT_SECONDS
            emit({"done": done, "total": total, "files": files})

    return progress
