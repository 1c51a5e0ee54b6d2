"""Verbs about training caches."""

from __future__ import annotations

from typing import List, Optional, TypedDict

from trainctl.base.protocol.verb import Verb

CacheRequest = TypedDict("CacheRequest", {"root": str, "directory": str})


class _Owned(CacheRequest):
    lineage: str


class OwnedRequest(_Owned, total=False):
    """``owner``: name of the cache in the lineage; absent: all owners of the lineage."""

    owner: str


Owned = TypedDict("Owned", {"directory": str, "owner": str})
CacheStateRequest = TypedDict(
    "CacheStateRequest", {"root": str, "lineage": str, "caches": List[Owned]}
)
Held = TypedDict("Held", {"bytes": int, "files": int, "at": float, "whole": bool})
"""What a cache held ``at`` a time, in Unix seconds; ``whole``: all of it was counted."""


class CacheState(Held):
    """``others``: ``LINEAGE+OWNER`` of other users. ``ours``: the directory goes with its last owner."""

    directory: str
    others: List[str]
    ours: bool


class ClearRequest(CacheRequest):
    """``older_than_seconds`` null: everything. ``dry_run``: only count."""

    older_than_seconds: Optional[float]
    dry_run: bool


CacheMade = TypedDict("CacheMade", {"directory": str})
CacheRemoved = TypedDict("CacheRemoved", {"directory": str, "bytes": int, "removed": bool})
"""``removed``: nothing else refers to the directory, and trainctl made it. ``bytes``: freed."""

CacheStates = TypedDict("CacheStates", {"caches": List[CacheState]})
Cleared = TypedDict("Cleared", {"files": int, "bytes": int, "left": int})
"""``left``: files that could not be removed."""

MAKE_CACHE = Verb("make_cache", OwnedRequest, CacheMade, "Make a training cache, or find it.")
REMOVE_CACHE = Verb(
    "remove_cache",
    OwnedRequest,
    CacheRemoved,
    "Release a training cache; the last owner removes it.",
)
CACHE_STATE = Verb(
    "cache_state",
    CacheStateRequest,
    CacheStates,
    "Report what training caches held when last counted.",
)
CLEAR_CACHE = Verb(
    "clear_cache", ClearRequest, Cleared, "Remove old files from a training cache that no run uses."
)
READ_CACHE = Verb(
    "read_cache",
    CacheRequest,
    bytes,
    "Return JSON lines: `[path, bytes, mtime, mode]` each, then `Held`.",
)
