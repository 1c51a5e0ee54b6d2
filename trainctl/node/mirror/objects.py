"""Verbs on the objects of a mirror; requests and answers are in ``trainctl.base.protocol.mirrors``."""

from __future__ import annotations

from base64 import b64encode
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Callable, Mapping

from trainctl.base.protocol.mirrors import (
    PIECE_BYTES,
    Created,
    Exists,
    GetRequest,
    InDirectory,
    KeysRequest,
    ListRequest,
    PutRequest,
    Stats,
)
from trainctl.base.protocol.verb import Nothing
from trainctl.store.directory import DirectoryObjects

_ROWS_AT_ONCE = 1000
Emit = Callable[[Mapping[str, Any]], None]


def object_get(request: GetRequest, emit: Emit) -> Exists:
    """Send an object, or some bytes of it."""
    data = objects_of(request).get(request["key"], request["offset"], request["length"])
    for start in range(0, len(data or b""), PIECE_BYTES):
        emit({"data": b64encode(memoryview(data or b"")[start : start + PIECE_BYTES]).decode()})
    return {"exists": data is not None}


def object_put(request: PutRequest, emit: Emit, caller: BinaryIO) -> Created:
    """Create or replace an object."""
    objects, key, data = objects_of(request), request["key"], caller.read()
    if request["if_absent"]:
        return {"created": objects.put_if_absent(key, data)}
    objects.put(key, data, durable=request["durable"])
    return {"created": True}


def object_stat(request: KeysRequest, emit: Emit) -> Stats:
    """Size and age of objects."""
    objects = objects_of(request)
    return {"stats": [objects.stat(key) for key in request["keys"]]}


def object_list(request: ListRequest, emit: Emit) -> Nothing:
    """Send the stats of all objects below a prefix."""
    stats = objects_of(request).list(request["prefix"], request["after"])
    while rows := list(islice(stats, _ROWS_AT_ONCE)):
        emit({"rows": rows})
    return {}


def object_delete(request: KeysRequest, emit: Emit) -> Nothing:
    """Delete objects."""
    objects_of(request).delete(request["keys"])
    return {}


def object_sync(request: KeysRequest, emit: Emit) -> Nothing:
    """Make objects durable."""
    objects_of(request).sync(request["keys"])
    return {}


def objects_of(request: InDirectory) -> DirectoryObjects:
    """The objects that a request is about."""
    return DirectoryObjects(Path(request["path"]))
