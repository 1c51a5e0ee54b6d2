"""Training caches."""

from __future__ import annotations

from typing import List, Optional, TypedDict

from trainctl.base.protocol.method import Method

TrainingCacheRequest = TypedDict("TrainingCacheRequest", {"root": str, "directory": str})


class _LineageCacheRequest(TrainingCacheRequest):
    lineage: str


class CacheOwnerRequest(_LineageCacheRequest, total=False):
    """``owner``: name of the cache in the lineage; absent: all of them."""

    owner: str


CacheOwnership = TypedDict("CacheOwnership", {"directory": str, "owner": str})
CacheStatesRequest = TypedDict(
    "CacheStatesRequest", {"root": str, "lineage": str, "caches": List[CacheOwnership]}
)
TrainingCacheUsage = TypedDict(
    "TrainingCacheUsage", {"bytes": int, "files": int, "at": float, "whole": bool}
)
"""Usage of a cache, measured ``at`` Unix seconds; ``whole``: everything was counted."""


class TrainingCacheState(TrainingCacheUsage):
    """``others``: ``LINEAGE+OWNER`` of other users. ``ours``: removed with its last owner."""

    directory: str
    others: List[str]
    ours: bool


class ClearCacheRequest(TrainingCacheRequest):
    """``older_than_seconds`` null: everything. ``dry_run``: only count."""

    older_than_seconds: Optional[float]
    dry_run: bool


MakeCacheResponse = TypedDict("MakeCacheResponse", {"directory": str})
RemoveCacheResponse = TypedDict(
    "RemoveCacheResponse", {"directory": str, "bytes": int, "removed": bool}
)
"""``removed``: trainctl created the directory and it has no other owner. ``bytes``: freed."""

CacheStatesResponse = TypedDict("CacheStatesResponse", {"caches": List[TrainingCacheState]})
ClearCacheResponse = TypedDict("ClearCacheResponse", {"files": int, "bytes": int, "left": int})
"""``left``: files that could not be removed."""

MAKE_CACHE = Method(
    "make_cache", CacheOwnerRequest, MakeCacheResponse, "Create a training cache if it is missing."
)
REMOVE_CACHE = Method(
    "remove_cache",
    CacheOwnerRequest,
    RemoveCacheResponse,
    "Release a training cache; the last owner removes it.",
)
CACHE_STATE = Method(
    "cache_state",
    CacheStatesRequest,
    CacheStatesResponse,
    "Report the last measured usage of training caches.",
)
CLEAR_CACHE = Method(
    "clear_cache",
    ClearCacheRequest,
    ClearCacheResponse,
    "Remove old files from a training cache that no run uses.",
)
READ_CACHE = Method(
    "read_cache",
    TrainingCacheRequest,
    bytes,
    "Return JSON lines: `[path, bytes, mtime, mode]` each, then a `TrainingCacheUsage`.",
)
