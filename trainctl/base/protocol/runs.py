"""Runs and their logs."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, TypedDict

from trainctl.base.protocol.method import (
    Method,
    NodeCacheRequest,
    NotRequired,
    RootRequest,
    RunRequest,
)
from trainctl.base.protocol.spec import CheckpointStoreSpec, QueueOrder, RunInputs, RunSpec

RootCause = TypedDict(
    "RootCause",
    {"rank": int, "status": str, "exit_code": Optional[int], "error": Optional[str]},
)
"""The rank whose end stopped its gang."""

UploadStatus = TypedDict(
    "UploadStatus", {"state": str, "error": Optional[str], "pending": List[str]}, total=False
)
"""Upload of a run's checkpoints; empty if it keeps none. ``pending``: names of checkpoints not yet uploaded."""

TrainingProgress = TypedDict(
    "TrainingProgress",
    {
        "step": Optional[int],
        "total": Optional[int],
        "loss": Optional[float],
        "remaining_seconds": Optional[float],
        "updated_at": float,
    },
)
"""Progress that a job reported last."""


HeldSession = TypedDict("HeldSession", {"until": float, "exit_code": int})
"""Commands that have ended, while the run keeps its place until a time."""


class RunDetails(TypedDict, total=False):
    """What a node reports of a run and its record in a state keeps whole, for views.

    ``loaded``: the checkpoints it started with, ``{run, rank, name, step, version}``.
    """

    mount: Optional[str]
    weights_mode: Optional[str]
    retries: Optional[int]
    loaded: Optional[List[Dict[str, Any]]]
    session: Optional[HeldSession]
    sync: UploadStatus


class RunMoment(TypedDict, total=False):
    """What a node reports of a run and no record keeps, because it holds only now.

    ``waiting``: what a pending run waits for, with its position, or the step of a deploying run. ``cause``: kind of the
    failure that prevented its start.
    """

    waiting: Optional[str]
    queue: Optional[str]
    progress: Optional[TrainingProgress]
    cause: Optional[str]


class RunReport(RunDetails, RunMoment):
    """Status of one rank of a run; only the required keys if it was never started here. Times are Unix seconds.

    ``status``: a ``TRAINING_JOB_*`` name. ``gpus``: ids of claimed GPUs. ``restarts`` and ``host``: of the batch system
    that started it. ``pid``: of its supervisor.
    """

    key: str
    status: str
    supervised: bool
    id: NotRequired[str]
    number: NotRequired[int]
    generation: NotRequired[int]
    rank: NotRequired[int]
    exit_code: NotRequired[Optional[int]]
    error: NotRequired[Optional[str]]
    root_cause: NotRequired[Optional[RootCause]]
    created_at: NotRequired[float]
    started_at: NotRequired[Optional[float]]
    ended_at: NotRequired[Optional[float]]
    gpus: NotRequired[Optional[List[str]]]
    restarts: NotRequired[int]
    host: NotRequired[Optional[str]]
    pid: NotRequired[Optional[int]]


RendezvousInfo = TypedDict("RendezvousInfo", {"port": int, "token": str})
"""Port on which rank 0 of a gang listens, and the token to connect."""


class StartRequest(RootRequest):
    """``data``: directory of checkpoints. ``secrets``: values by name. ``rendezvous``: for every rank but 0 of a gang."""

    data: str
    run: RunSpec
    secrets: Mapping[str, str]
    rendezvous: NotRequired[Optional[RendezvousInfo]]


class StartResponse(RunReport):
    """``rendezvous``: of rank 0 of a gang."""

    rendezvous: Optional[RendezvousInfo]


class SetSecretsRequest(RunRequest):
    """``secrets``: values by name; null: those stored on the node."""

    data: str
    secrets: Optional[Mapping[str, str]]


class StopRequest(RunRequest):
    """``grace_seconds``: time that the job gets to exit; null: that of its specification."""

    grace_seconds: Optional[float]


class ExtendSessionRequest(RunRequest):
    """``seconds``: to add."""

    seconds: float


ExtendSessionResponse = TypedDict("ExtendSessionResponse", {"until": Optional[float]})
"""``until``: end of the session in Unix seconds; null while the commands run."""


class EnterRequest(RunRequest):
    """For the command ``enter``, as an argument. ``command``: empty for a shell; one word is a line for the shell."""

    command: List[str]
    with_secrets: bool


class SetQueueOrderRequest(RunRequest, QueueOrder):
    """A run and its new order in the queue."""


class RunCacheRequest(NodeCacheRequest):
    """``key``: a run whose weights are leased in ``cache``."""

    key: str


class LogLinesQuery(TypedDict):
    """Selects lines of a log. Times: ``{at}`` in Unix seconds or ``{ago}`` in seconds. ``prepare``: the prepare stage."""

    since: Optional[Mapping[str, float]]
    until: Optional[Mapping[str, float]]
    grep: Optional[str]
    tail: Optional[int]
    prepare: bool


class LogStreamQuery(LogLinesQuery):
    """``offset``: in bytes. ``follow``: until the run ends. ``open_end``: include an unterminated last line."""

    offset: int
    follow: bool
    open_end: bool


class ReadLinesRequest(RunRequest, LogStreamQuery):
    """Lines of one rank's log."""

    rank: int


StatusRequest = TypedDict("StatusRequest", {"root": str, "keys": List[str]})
StatusResponse = TypedDict("StatusResponse", {"runs": Dict[str, Optional[RunReport]]})
"""Reports by key; null: not on this node."""

MetricsRequest = TypedDict("MetricsRequest", {"root": str, "key": str, "since": float})
MetricsResponse = TypedDict("MetricsResponse", {"samples": List[Dict[str, Any]]})
"""Samples, the oldest first, each with ``time`` in Unix seconds."""

RunInputsResponse = TypedDict(
    "RunInputsResponse", {"code": str, "code_present": bool, "run_inputs": RunInputs}
)
FindRunRequest = TypedDict("FindRunRequest", {"root": str, "id": str})


class FoundRun(TypedDict):
    """The parts of a run's specification that its record in a state has. ``nodes``: ids, by rank."""

    key: str
    number: int
    generation: int
    address: str
    nodes: List[str]
    created_at: Optional[float]
    store: CheckpointStoreSpec
    run_inputs: RunInputs


FindRunResponse = TypedDict("FindRunResponse", {"run": Optional[FoundRun]})
RemoveResponse = TypedDict("RemoveResponse", {"removed": bool})
ReleaseResponse = TypedDict("ReleaseResponse", {"released": bool})
"""False if the run was started; its leases end with it."""

START = Method(
    "start",
    StartRequest,
    StartResponse,
    "Start a run unless already started; wait until it is running, pending or ended. Events: `{waiting}`.",
)
SET_SECRETS = Method(
    "set_secrets",
    SetSecretsRequest,
    RunReport,
    "Resume a run that waits for its secrets or for a resume; ignore any other.",
)
STATUS = Method("status", StatusRequest, StatusResponse, "Report the status of runs.")
STOP = Method(
    "stop",
    StopRequest,
    RunReport,
    "Stop a run and wait for its end; prevent an unknown run from starting. "
    "Events, each second: `{seconds, grace, processes}`, where `processes` are left.",
)
EXTEND_SESSION = Method(
    "extend_session",
    ExtendSessionRequest,
    ExtendSessionResponse,
    "Let a live run keep its place for longer after its commands have ended.",
)
SET_QUEUE_ORDER = Method(
    "set_queue_order", SetQueueOrderRequest, RunReport, "Change a run's order in the queue."
)
REMOVE = Method(
    "remove",
    RunCacheRequest,
    RemoveResponse,
    "Remove an ended run and its leases, but not its checkpoints.",
)
RELEASE = Method(
    "release", RunCacheRequest, ReleaseResponse, "Release the leases of a run that never started."
)
GET_RUN_INPUTS = Method(
    "get_run_inputs", RunRequest, RunInputsResponse, "Return the inputs of a run."
)
FIND_RUN = Method(
    "find_run",
    FindRunRequest,
    FindRunResponse,
    "Find a run by its ID or key; null: not on this node.",
)
METRICS = Method("metrics", MetricsRequest, MetricsResponse, "Return the samples of a run.")
READ_LINES = Method(
    "read_lines",
    ReadLinesRequest,
    bytes,
    "Return lines of a log as frames: a line of JSON `{time, bytes, next, open}`, then `bytes` bytes.",
)
