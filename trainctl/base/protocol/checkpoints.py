"""Verbs about checkpoints."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, TypedDict

from trainctl.base.protocol.runs import Removed, Sync
from trainctl.base.protocol.verb import OfRun, Verb

Manifest = Dict[str, Any]
"""Of one complete checkpoint of one rank, as its store keeps it."""

Place = Mapping[str, Any]
"""A store, ``{url, endpoint_url, secret}``. ``url`` null: the data directory of the node."""


class CheckpointsRequest(OfRun):
    """``prefix``: ``PROJECT/JOB/NUMBER-ID``. ``place`` null: the store is not asked. ``brief``: count files, don't list them."""

    data: str
    prefix: str
    place: Optional[Place]
    brief: bool


class Unfinished(TypedDict):
    """A checkpoint that is not complete. ``left_out``: links that lead to no file of the job. ``created_at``: Unix seconds."""

    rank: int
    name: str
    bytes: int
    files: int
    left_out: int
    created_at: float


class CheckpointsAnswer(TypedDict):
    """``pending``: names of those not uploaded yet. ``live``: whether the run goes on."""

    complete: List[Manifest]
    unfinished: List[Unfinished]
    pending: List[str]
    live: bool


class UploadRequest(OfRun):
    """``secrets``: what opens the store."""

    data: str
    secrets: Mapping[str, str]


Uploaded = TypedDict("Uploaded", {"sync": Sync})


class RemoveCheckpointsRequest(TypedDict):
    """``directory``: of the run, below ``data``. ``place`` null: nothing is removed from a store."""

    directory: str
    data: str
    prefix: str
    place: Optional[Place]


ObjectWanted = TypedDict("ObjectWanted", {"key": str, "offset": int})
ObjectsRequest = TypedDict(
    "ObjectsRequest", {"data": str, "prefix": str, "place": Place, "objects": List[ObjectWanted]}
)

CHECKPOINTS = Verb(
    "checkpoints", CheckpointsRequest, CheckpointsAnswer, "List the checkpoints of a run."
)
UPLOAD_CHECKPOINTS = Verb(
    "upload_checkpoints", UploadRequest, Uploaded, "Upload what an ended run left on the node."
)
REMOVE_CHECKPOINTS = Verb(
    "remove_checkpoints",
    RemoveCheckpointsRequest,
    Removed,
    "Remove the checkpoints of a run from the node, and from a store in a directory.",
)
READ_OBJECTS = Verb("read_objects", ObjectsRequest, bytes, "Return objects one after another.")
