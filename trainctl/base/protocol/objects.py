"""Verbs on objects in a directory of a host; see ``trainctl.base.objects.ObjectStore``."""

from __future__ import annotations

from typing import List, Optional, Tuple, TypedDict

PIECE_BYTES = 3 * 2**20
"""Bytes of an object in one event; base64 needs no padding then."""

Row = Tuple[str, int, float]
"""An ``ObjectStat``."""


class InDirectory(TypedDict):
    """``path``: the absolute path of the root."""

    path: str


class GetRequest(InDirectory):
    """``object_get``. Events ``{data}``: the next piece in base64."""

    key: str
    offset: int
    length: Optional[int]


class PutRequest(InDirectory):
    """``object_put``. The bytes follow the request. ``if_absent``: don't replace an object."""

    key: str
    durable: bool
    if_absent: bool


class ListRequest(InDirectory):
    """``object_list``. Events ``{rows}``."""

    prefix: str
    after: str


class KeysRequest(InDirectory):
    """``object_stat``, ``object_delete`` and ``object_sync``."""

    keys: List[str]


Exists = TypedDict("Exists", {"exists": bool})
Created = TypedDict("Created", {"created": bool})
"""False: there was an object, and ``if_absent``."""

Stats = TypedDict("Stats", {"stats": List[Optional[Row]]})
Nothing = TypedDict("Nothing", {})
