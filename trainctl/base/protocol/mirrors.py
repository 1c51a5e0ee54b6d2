"""Verbs on a mirror in a directory of a host: what would take many requests for its objects."""

from __future__ import annotations

from typing import Any, List, Optional, TypedDict

from trainctl.base.protocol.objects import InDirectory
from trainctl.base.protocol.verb import Verb


class VerifyRequest(InDirectory):
    """``repair``: delete what is corrupt."""

    repair: bool


class GcRequest(InDirectory):
    """``unused_seconds``: also drop references that were not renewed for so long."""

    dry_run: bool
    unused_seconds: Optional[float]


class Verified(TypedDict):
    """What was hashed."""

    blobs: int
    bytes: int


class Collected(TypedDict):
    """A ``GcReport``; its listings and references as rows."""

    dry_run: bool
    bytes: int
    blobs: int
    listings: List[Any]
    dropped: List[Any]
    kept: List[Any]
    busy: List[Any]


class Inventoried(TypedDict):
    """An ``Inventory``."""

    rows: List[Any]
    unfinished: int
    unreferenced: int
    damaged: List[str]


Size = TypedDict("Size", {"bytes": int})

MIRROR_GC = Verb(
    "mirror_gc", GcRequest, Collected, "Delete what no reference needs. Events: `{say}`."
)
MIRROR_VERIFY = Verb(
    "mirror_verify",
    VerifyRequest,
    Verified,
    "Hash all content. Events: `{done, total, files}`, `{say}` and `{rows}` of findings.",
)
MIRROR_INVENTORY = Verb(
    "mirror_inventory", InDirectory, Inventoried, "Report what is stored, and its references."
)
MIRROR_SIZE = Verb("mirror_size", InDirectory, Size, "Report the bytes of all content.")
