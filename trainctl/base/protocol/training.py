"""Training caches and checkpoints."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence

from trainctl.base.lazy_typed_dict import TypedDict
from trainctl.base.protocol.method import Method, NotRequired, RunRequest
from trainctl.base.protocol.runs import RemoveResponse, UploadStatus

TrainingCacheRequest = TypedDict("TrainingCacheRequest", {"root": str, "directory": str})


class CacheOwnerRequest(TrainingCacheRequest):
    """``owner``: name of the cache in the lineage; absent: all of them."""

    lineage: str
    owner: NotRequired[str]


CacheOwnership = TypedDict("CacheOwnership", {"directory": str, "owner": str})
CacheStatesRequest = TypedDict(
    "CacheStatesRequest", {"root": str, "lineage": str, "caches": List[CacheOwnership]}
)
TrainingCacheUsage = TypedDict(
    "TrainingCacheUsage", {"bytes": int, "files": int, "at": float, "is_complete": bool}
)
"""Usage of a cache, measured ``at`` Unix seconds; ``is_complete``: everything was counted."""


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

MAKE_CACHE = Method("make_cache", CacheOwnerRequest, MakeCacheResponse)
"""Create a training cache if it is missing."""
REMOVE_CACHE = Method("remove_cache", CacheOwnerRequest, RemoveCacheResponse)
"""Release a training cache; the last owner removes it."""
CACHE_STATE = Method("cache_state", CacheStatesRequest, CacheStatesResponse)
"""Report the last measured usage of training caches."""
CLEAR_CACHE = Method("clear_cache", ClearCacheRequest, ClearCacheResponse)
"""Remove old files from a training cache that no run uses."""
READ_CACHE = Method("read_cache", TrainingCacheRequest, bytes)
"""Return JSON lines: ``[path, bytes, mtime, mode]`` each, then a ``TrainingCacheUsage``."""


CheckpointManifestDocument = Dict[str, Any]
"""Manifest of a complete checkpoint of one rank, as stored."""

CheckpointStoreLocation = Mapping[str, Any]
"""A store, ``{url, endpoint_url, secret}``. ``url`` null: the data directory of the node."""


class CheckpointsRequest(RunRequest):
    """``prefix``: ``PROJECT/JOB/NUMBER-ID``. ``place`` null: skip the store. ``brief``: count files only."""

    data: str
    prefix: str
    place: Optional[CheckpointStoreLocation]
    brief: bool


class IncompleteCheckpoint(TypedDict):
    """An incomplete checkpoint. ``skipped_links``: symlinks that lead to no file of the job. ``created_at``: Unix seconds."""

    rank: int
    name: str
    bytes: int
    files: int
    skipped_links: int
    created_at: float


class CheckpointsResponse(TypedDict):
    """``pending``: names of checkpoints not yet uploaded. ``live``: whether the run is active."""

    complete: List[CheckpointManifestDocument]
    unfinished: List[IncompleteCheckpoint]
    pending: List[str]
    live: bool


class UploadCheckpointsRequest(RunRequest):
    """``secrets``: credentials of the store."""

    data: str
    secrets: Mapping[str, str]


UploadCheckpointsResponse = TypedDict("UploadCheckpointsResponse", {"sync": UploadStatus})


class RemoveCheckpointsRequest(TypedDict):
    """``directory``: of the run, below ``data``. ``place`` null: remove nothing from a store."""

    directory: str
    data: str
    prefix: str
    place: Optional[CheckpointStoreLocation]


class CheckpointListingRequest(CheckpointsRequest):
    """``place``: a store that the node sees as a directory."""

    rank: int
    name: str


CheckpointListingResponse = TypedDict(
    "CheckpointListingResponse", {"directory": str, "files": List[Sequence[Any]]}
)
"""``files``: rows of a listing, whose paths are keys in the store at ``directory``."""

CheckpointObjectRange = TypedDict("CheckpointObjectRange", {"key": str, "offset": int})
ReadObjectsRequest = TypedDict(
    "ReadObjectsRequest",
    {
        "data": str,
        "prefix": str,
        "place": CheckpointStoreLocation,
        "objects": List[CheckpointObjectRange],
    },
)

CHECKPOINTS = Method("checkpoints", CheckpointsRequest, CheckpointsResponse)
"""List the checkpoints of a run."""
CHECKPOINT_LISTING = Method(
    "checkpoint_listing", CheckpointListingRequest, CheckpointListingResponse
)
"""Verify a complete checkpoint in a directory and list its files by digest."""
UPLOAD_CHECKPOINTS = Method(
    "upload_checkpoints", UploadCheckpointsRequest, UploadCheckpointsResponse
)
"""Upload checkpoints that a finished run left on the node."""
REMOVE_CHECKPOINTS = Method("remove_checkpoints", RemoveCheckpointsRequest, RemoveResponse)
"""Remove the checkpoints of a run from the node, and from a store in a directory."""
READ_OBJECTS = Method("read_objects", ReadObjectsRequest, bytes)
"""Return objects one after another."""
