"""Verbs on objects in a directory of a host; see ``trainctl.base.objects.ObjectStore``."""

from __future__ import annotations

from typing import List, Optional, Tuple, TypedDict

from trainctl.base.protocol.verb import Nothing, Verb

PIECE_BYTES = 3 * 2**20
"""Bytes of an object in one event; base64 needs no padding then."""

Row = Tuple[str, int, float]
"""An ``ObjectStat``."""


class InDirectory(TypedDict):
    """``path``: the absolute path of the root."""

    path: str


class GetRequest(InDirectory):
    """``length`` null: to the end."""

    key: str
    offset: int
    length: Optional[int]


class PutRequest(InDirectory):
    """``if_absent``: don't replace an object."""

    key: str
    durable: bool
    if_absent: bool


class ListRequest(InDirectory):
    """``after``: keys after this one."""

    prefix: str
    after: str


class KeysRequest(InDirectory):
    """Keys below ``path``."""

    keys: List[str]


Exists = TypedDict("Exists", {"exists": bool})
Created = TypedDict("Created", {"created": bool})
"""False: there was an object, and ``if_absent``."""

Stats = TypedDict("Stats", {"stats": List[Optional[Row]]})

OBJECT_GET = Verb(
    "object_get",
    GetRequest,
    Exists,
    "Read an object, or some bytes of it. Events: `{data}`, the next piece in base64.",
)
OBJECT_PUT = Verb(
    "object_put", PutRequest, Created, "Create or replace an object; its bytes follow the request."
)
OBJECT_STAT = Verb("object_stat", KeysRequest, Stats, "Report size and age of objects.")
OBJECT_LIST = Verb("object_list", ListRequest, Nothing, "List objects. Events: `{rows}`.")
OBJECT_DELETE = Verb("object_delete", KeysRequest, Nothing, "Delete objects.")
OBJECT_SYNC = Verb("object_sync", KeysRequest, Nothing, "Make objects durable.")
