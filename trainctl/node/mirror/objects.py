"""Verbs on the objects of a mirror; requests and answers are in ``trainctl.base.protocol.mirrors``."""

from __future__ import annotations

from base64 import b64encode
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Callable, Mapping

from trainctl.base.protocol.method import EmptyResponse
from trainctl.base.protocol.mirrors import (
    BUFFER_BYTES,
    MirrorRequest,
    ObjectGetRequest,
    ObjectGetResponse,
    ObjectKeysRequest,
    ObjectListRequest,
    ObjectPutRequest,
    ObjectPutResponse,
    ObjectStatResponse,
)
from trainctl.store.backends.directory import DirectoryObjects

_ROWS_AT_ONCE = 1000
Emit = Callable[[Mapping[str, Any]], None]


def object_get(request: ObjectGetRequest, emit: Emit) -> ObjectGetResponse:
    """Send an object, or some bytes of it."""
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
    """Size and age of objects."""
    objects = open_objects(request)
    return {"stats": [objects.stat(key) for key in request["keys"]]}


def object_list(request: ObjectListRequest, emit: Emit) -> EmptyResponse:
    """Send the stats of all objects below a prefix."""
    stats = open_objects(request).list(request["prefix"], request["after"])
    while rows := list(islice(stats, _ROWS_AT_ONCE)):
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
    """The objects that a request is about."""
    return DirectoryObjects(Path(request["path"]))
