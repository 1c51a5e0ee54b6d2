"""Verbs about runs and their logs."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, TypedDict

from trainctl.base.protocol.method import Method, NodeCacheRequest, RootRequest, RunRequest
from trainctl.base.protocol.spec import QueueOrder, RunInputs, RunSpec

RootCause = TypedDict(
    "RootCause",
    {"rank": int, "status": str, "exit_code": Optional[int], "error": Optional[str]},
)
"""The rank whose end ended its gang."""

UploadStatus = TypedDict(
    "UploadStatus", {"state": str, "error": Optional[str], "pending": List[str]}, total=False
)
"""Upload of a run's checkpoints; empty for a run that keeps none. ``pending``: names of those not uploaded yet."""


class _RunReport(TypedDict):
    key: str
    status: str
    supervised: bool


class RunReport(_RunReport, total=False):
    """Status of one rank of a run; no more than the required keys for a run that was never started here. Times are Unix seconds.

    ``status``: a ``TRAINING_JOB_*`` name. ``cause``: kind of the failure that kept it from starting. ``waiting``: what a pending
    run waits for, with its place, or what a deploying run does. ``gpus``: ids of those it claimed. ``loaded``: the checkpoints
    it began with, ``{run, rank, name, step, version}``. ``pid``: of its supervisor.
    """

    id: str
    number: int
    generation: int
    rank: int
    exit_code: Optional[int]
    error: Optional[str]
    cause: Optional[str]
    root_cause: Optional[RootCause]
    created_at: float
    started_at: Optional[float]
    ended_at: Optional[float]
    mount: Optional[str]
    weights_mode: Optional[str]
    retries: Optional[int]
    gpus: Optional[List[str]]
    waiting: Optional[str]
    queue: Optional[str]
    loaded: Optional[List[Dict[str, Any]]]
    sync: UploadStatus
    pid: Optional[int]


RendezvousInfo = TypedDict("RendezvousInfo", {"port": int, "token": str})
"""Where rank 0 of a gang listens, and what opens it."""


class _StartRequest(RootRequest):
    data: str
    run: RunSpec
    secrets: Mapping[str, str]


class StartRequest(_StartRequest, total=False):
    """``data``: directory of checkpoints. ``secrets``: values by name. ``rendezvous``: for every rank but 0 of a gang."""

    rendezvous: Optional[RendezvousInfo]


class StartResponse(RunReport):
    """``rendezvous``: of rank 0 of a gang."""

    rendezvous: Optional[RendezvousInfo]


class SetSecretsRequest(RunRequest):
    """``secrets``: values by name; null: those that the node keeps."""

    data: str
    secrets: Optional[Mapping[str, str]]


class StopRequest(RunRequest):
    """``grace_seconds``: how long the job may take to end; null: as its specification says."""

    grace_seconds: Optional[float]


class SetQueueOrderRequest(RunRequest, QueueOrder):
    """A run and its new order."""


class RunCacheRequest(NodeCacheRequest):
    """``key``: of a run whose weights are leased in ``cache``."""

    key: str


class LogLinesQuery(TypedDict):
    """Lines of a log. Times: ``{at}`` in Unix seconds or ``{ago}`` in seconds. ``prepare``: of the stage before the job."""

    since: Optional[Mapping[str, float]]
    until: Optional[Mapping[str, float]]
    grep: Optional[str]
    tail: Optional[int]
    prepare: bool


class LogStreamQuery(LogLinesQuery):
    """``offset``: in bytes. ``follow``: until the run ends. ``open_end``: with the last line, though it isn't finished."""

    offset: int
    follow: bool
    open_end: bool


class ReadLinesRequest(RunRequest, LogStreamQuery):
    """Lines of one rank's log."""

    rank: int


StatusRequest = TypedDict("StatusRequest", {"root": str, "keys": List[str]})
StatusResponse = TypedDict("StatusResponse", {"runs": Dict[str, Optional[RunReport]]})
"""By key; null: not on this node."""

MetricsRequest = TypedDict("MetricsRequest", {"root": str, "key": str, "since": float})
MetricsResponse = TypedDict("MetricsResponse", {"samples": List[Dict[str, Any]]})
"""The oldest first, each with ``time`` in Unix seconds and what was measured."""

RunInputsResponse = TypedDict(
    "RunInputsResponse", {"code": str, "code_present": bool, "run_inputs": RunInputs}
)
RemoveResponse = TypedDict("RemoveResponse", {"removed": bool})
ReleaseResponse = TypedDict("ReleaseResponse", {"released": bool})
"""False if the run was started: its leases end with it."""

START = Method(
    "start",
    StartRequest,
    StartResponse,
    "Start a run unless it was started before, and wait until it runs, waits or has ended. Events: `{waiting}`.",
)
SET_SECRETS = Method(
    "set_secrets",
    SetSecretsRequest,
    RunReport,
    "Restart a run that waits for its secrets or to be carried on; leave any other as it is.",
)
STATUS = Method("status", StatusRequest, StatusResponse, "Report the status of runs.")
STOP = Method(
    "stop",
    StopRequest,
    RunReport,
    "End a run and wait for its end; an unknown run can't be started any more. "
    "Events, each second: `{seconds, grace, processes}`, the last how many are left.",
)
SET_QUEUE_ORDER = Method(
    "set_queue_order", SetQueueOrderRequest, RunReport, "Change the order of a run that may wait."
)
REMOVE = Method(
    "remove",
    RunCacheRequest,
    RemoveResponse,
    "Remove an ended run and its leases, not its checkpoints.",
)
RELEASE = Method(
    "release", RunCacheRequest, ReleaseResponse, "Drop the leases of a run that was never started."
)
GET_RUN_INPUTS = Method(
    "get_run_inputs", RunRequest, RunInputsResponse, "Report what a run was made of."
)
METRICS = Method("metrics", MetricsRequest, MetricsResponse, "Return the samples taken of a run.")
READ_LINES = Method(
    "read_lines",
    ReadLinesRequest,
    bytes,
    "Return lines of a log as frames: JSON `{time, bytes, next, open}` on a line, then as many bytes.",
)
