"""Verbs that inspect a mirror, or delete from it; requests and answers are in ``trainctl.base.protocol.mirrors``."""

from __future__ import annotations

from trainctl.base.protocol.mirrors import (  # fmt: skip
    Collected,
    GcRequest,
    InDirectory,
    Inventoried,
    Size,
    Verified,
    VerifyRequest,
)
from trainctl.base.protocol.wire import blocks
from trainctl.node.mirror.objects import Emit, objects_of
from trainctl.node.mirror.progress import throttled
from trainctl.store import messages
from trainctl.store.gc import GcOptions, gc
from trainctl.store.inventory import inventory, stored_bytes
from trainctl.store.verify import verify


def mirror_gc(request: GcRequest, emit: Emit) -> Collected:
    """Delete what no reference needs."""
    options = GcOptions(request["dry_run"], request["unused_seconds"])
    report = gc(objects_of(request), options, lambda text: emit({"say": text}))
    return messages.gc_to_json(report)


def mirror_verify(request: VerifyRequest, emit: Emit) -> Verified:
    """Hash all content; with ``repair`` delete what is wrong."""
    report = verify(
        objects_of(request), request["repair"], throttled(emit), lambda text: emit({"say": text})
    )
    for block in blocks([map(messages.finding_to_row, report.findings)]):
        emit(block)
    return {"blobs": report.blobs, "bytes": report.bytes}


def mirror_inventory(request: InDirectory, emit: Emit) -> Inventoried:
    """What is stored, and who references it."""
    return messages.inventory_to_json(inventory(objects_of(request)))


def mirror_size(request: InDirectory, emit: Emit) -> Size:
    """The bytes of all content."""
    return {"bytes": stored_bytes(objects_of(request))}
