"""RPC methods on a mirror in a directory. See ``base.protocol.mirrors``."""

from __future__ import annotations

import time
from base64 import b64encode
from dataclasses import astuple
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Callable, Mapping, cast

from trainctl.base.network.addresses import ServingAddresses
from trainctl.base.protocol.method import EmptyResponse
from trainctl.base.protocol.mirrors import (  # fmt: skip
    BUFFER_BYTES,
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
    ObjectGetRequest,
    ObjectGetResponse,
    ObjectKeysRequest,
    ObjectListRequest,
    ObjectPutRequest,
    ObjectPutResponse,
    ObjectStatResponse,
)
from trainctl.base.protocol.wire import CallbackClient, decode_rows, row_blocks
from trainctl.base.retry import RetryPolicy
from trainctl.base.system.syscalls import limit_malloc_arenas
from trainctl.node.mirror.url_upstream import SourceUrlCache, UrlUpstream
from trainctl.store import serialization
from trainctl.store.backends.directory import DirectoryObjects
from trainctl.store.maintenance.gc import GcOptions, gc
from trainctl.store.maintenance.inventory import stored_bytes, take_inventory
from trainctl.store.maintenance.survey import take_survey
from trainctl.store.maintenance.verify import verify_store
from trainctl.store.references import Reference
from trainctl.store.store import MirrorStore

Emit = Callable[[Mapping[str, Any]], None]
_EVENT_SECONDS = 0.1
_ROWS_PER_EVENT = 1000


def mirror_ingest(
    request: MirrorIngestRequest, emit: Emit, caller: BinaryIO
) -> MirrorIngestResponse:
    """Copy a source into the mirror, by URLs from the client; stops with the client."""
    resolved = serialization.source_from_json(request["source"], next(decode_rows(caller)))
    limit_malloc_arenas()  # threads are short-lived, and each would keep its own arena
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
    """Report which files of sources and which listings are stored."""
    sources = [
        serialization.source_from_json(source, rows)
        for source, rows in zip(request["sources"], decode_rows(caller))
    ]
    survey = take_survey(open_objects(request), sources, request["listings"], request["lineage"])
    for block in row_blocks(source.files for source in survey.sources):
        emit(block)
    return {
        "complete": [source.listing for source in survey.sources],
        "arrived": [source.arrived for source in survey.sources],
        "listings": sorted(survey.listings),
        "free": survey.free,
        "damaged": list(survey.damaged),
        "unusable": survey.unusable,
        "serving": ServingAddresses.here().to_json(),
    }


def mirror_gc(request: MirrorGcRequest, emit: Emit) -> MirrorGcResponse:
    """Delete unreferenced blobs."""
    options = GcOptions(request["dry_run"], request["unused_seconds"])
    report = gc(open_objects(request), options, lambda text: emit({"log": text}))
    return cast("MirrorGcResponse", vars(report))


def mirror_verify(request: MirrorVerifyRequest, emit: Emit) -> MirrorVerifyResponse:
    """Hash all blobs; with ``repair``, delete corrupt ones."""
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
    """List blobs and references."""
    return cast("MirrorInventoryResponse", vars(take_inventory(open_objects(request))))


def mirror_size(request: MirrorRequest, emit: Emit) -> MirrorSizeResponse:
    """Total size of all blobs."""
    return {"bytes": stored_bytes(open_objects(request))}


def object_get(request: ObjectGetRequest, emit: Emit) -> ObjectGetResponse:
    """Send an object, or a range of it."""
    data = open_objects(request).get(request["key"], request["offset"], request["length"])
    for start in range(0, len(data or b""), BUFFER_BYTES):
        emit({"data": b64encode(memoryview(data or b"")[start : start + BUFFER_BYTES]).decode()})
    return {"exists": data is not None}


def object_put(request: ObjectPutRequest, emit: Emit, caller: BinaryIO) -> ObjectPutResponse:
    """Create or replace an object."""
    objects, key, data = open_objects(request), request["key"], caller.read()
    if request["if_absent"]:
        return {"created": objects.put_if_absent(key, data)}
    objects.put(key, data, durable=request["durable"])
    return {"created": True}


def object_stat(request: ObjectKeysRequest, emit: Emit) -> ObjectStatResponse:
    """Return size and age of objects."""
    objects = open_objects(request)
    return {"stats": [objects.stat(key) for key in request["keys"]]}


def object_list(request: ObjectListRequest, emit: Emit) -> EmptyResponse:
    """Send the stats of all objects below a prefix."""
    stats = open_objects(request).list(request["prefix"], request["after"])
    while rows := list(islice(stats, _ROWS_PER_EVENT)):
        emit({"rows": rows})
    return {}


def object_delete(request: ObjectKeysRequest, emit: Emit) -> EmptyResponse:
    """Delete objects."""
    open_objects(request).delete(request["keys"])
    return {}


def object_sync(request: ObjectKeysRequest, emit: Emit) -> EmptyResponse:
    """Make objects durable."""
    open_objects(request).sync(request["keys"])
    return {}


def open_objects(request: MirrorRequest) -> DirectoryObjects:
    """Open the mirror that a request names."""
    return DirectoryObjects(Path(request["path"]))


def throttle_progress(
    emit: Callable[[Mapping[str, Any]], None], clock: Callable[[], float] = time.monotonic
) -> Callable[[int, int, int], None]:
    """A ``Progress`` that emits the first and last call, and ten a second."""
    due = clock()

    def progress(done: int, total: int, files: int) -> None:
        nonlocal due
        now = clock()
        if now >= due or done >= total:
            due = now + _EVENT_SECONDS
            emit({"done": done, "total": total, "files": files})

    return progress
