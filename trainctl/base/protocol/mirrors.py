"""Verbs on a mirror in a directory of a host: what would take many requests for its objects."""

from __future__ import annotations

from typing import Any, List, Optional, TypedDict

from trainctl.base.protocol.objects import InDirectory


class VerifyRequest(InDirectory):
    """``mirror_verify``. Events ``{done, total, files}``, ``{say}`` and ``{rows}`` of findings."""

    repair: bool


class GcRequest(InDirectory):
    """``mirror_gc``. Events ``{say}``."""

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
    """``mirror_inventory``: an ``Inventory``."""

    rows: List[Any]
    unfinished: int
    unreferenced: int
    damaged: List[str]


Size = TypedDict("Size", {"bytes": int})
"""``mirror_size``: the bytes of all content."""
