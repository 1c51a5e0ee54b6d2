"""Verbs on a mirror in a directory of this host; requests and answers are in ``trainctl.base.protocol.mirrors``."""

from __future__ import annotations

import time
from dataclasses import astuple
from typing import Any, BinaryIO, Callable, Mapping, cast

from trainctl.base.network.addresses import ServingAddresses
from trainctl.base.protocol.callbacks import CallbackClient
from trainctl.base.protocol.mirrors import (  # fmt: skip
    MirrorGcRequest,
    MirrorGcResponse,
    MirrorIngestRequest,
    MirrorIngestResponse,
    MirrorInventoryResponse,
    MirrorRequest,
    MirrorSizeResponse,
    MirrorSurveyRequest,
    MirrorSurveyResponse,
    MirrorVerifyRequest,
    MirrorVerifyResponse,
)
from trainctl.base.protocol.wire import decode_rows, row_blocks
from trainctl.base.retry import RetryPolicy
from trainctl.base.system.syscalls import limit_malloc_arenas
from trainctl.node.mirror.objects import Emit, open_objects
from trainctl.node.mirror.url_upstream import SourceUrlCache, UrlUpstream
from trainctl.store import serialization
from trainctl.store.maintenance.gc import GcOptions, gc
from trainctl.store.maintenance.inventory import stored_bytes, take_inventory
from trainctl.store.maintenance.survey import take_survey
from trainctl.store.maintenance.verify import verify_store
from trainctl.store.references import Reference
from trainctl.store.store import MirrorStore

_EVENT_SECONDS = 0.1


def mirror_ingest(
    request: MirrorIngestRequest, emit: Emit, caller: BinaryIO
) -> MirrorIngestResponse:
    """Copy a source in, by links that the caller makes. It ends when the caller does; what arrived is kept."""
    resolved = serialization.source_from_json(request["source"], next(decode_rows(caller)))
    limit_malloc_arenas()  # threads come and go with the parts of a source, and each would keep memory of its own
    callbacks = CallbackClient(caller, emit)
    store = MirrorStore(
        open_objects(request), RetryPolicy(notify=lambda text: callbacks.send({"log": text}))
    )
    listing = store.ingest(
        resolved,
        UrlUpstream(resolved, SourceUrlCache(callbacks, resolved.files)),
        Reference(**request["reference"]),
        progress=throttle_progress(callbacks.send),
        cancelled=callbacks.gone,
        waiting=lambda text: callbacks.send({"waiting": text}),
    )
    return {"listing": listing.id}


def mirror_survey(
    request: MirrorSurveyRequest, emit: Emit, caller: BinaryIO
) -> MirrorSurveyResponse:
    """Inspect what is here of sources, and which listings are."""
    sources = [
        serialization.source_from_json(source, rows)
        for source, rows in zip(request["sources"], decode_rows(caller))
    ]
    found = take_survey(open_objects(request), sources, request["listings"], request["lineage"])
    for block in row_blocks(source.files for source in found.sources):
        emit(block)
    return {
        "complete": [source.listing for source in found.sources],
        "arrived": [source.arrived for source in found.sources],
        "listings": sorted(found.listings),
        "free": found.free,
        "damaged": list(found.damaged),
        "unusable": found.unusable,
        "serving": ServingAddresses.here().to_json(),
    }


def mirror_gc(request: MirrorGcRequest, emit: Emit) -> MirrorGcResponse:
    """Delete what no reference needs."""
    options = GcOptions(request["dry_run"], request["unused_seconds"])
    report = gc(open_objects(request), options, lambda text: emit({"log": text}))
    return cast("MirrorGcResponse", vars(report))


def mirror_verify(request: MirrorVerifyRequest, emit: Emit) -> MirrorVerifyResponse:
    """Hash all content; with ``repair`` delete what is wrong."""
    report = verify_store(
        open_objects(request),
        request["repair"],
        throttle_progress(emit),
        lambda text: emit({"log": text}),
    )
    for block in row_blocks([map(astuple, report.findings)]):
        emit(block)
    return {"blobs": report.blobs, "bytes": report.bytes}


def mirror_inventory(request: MirrorRequest, emit: Emit) -> MirrorInventoryResponse:
    """What is stored, and who references it."""
    return cast("MirrorInventoryResponse", vars(take_inventory(open_objects(request))))


def mirror_size(request: MirrorRequest, emit: Emit) -> MirrorSizeResponse:
    """The bytes of all content."""
    return {"bytes": stored_bytes(open_objects(request))}


def throttle_progress(
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
