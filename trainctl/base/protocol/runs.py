"""Runs: their specifications, status and logs."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence

from trainctl.base.lazy_typed_dict import TypedDict
from trainctl.base.protocol.method import (
    EmptyResponse,
    Method,
    NodeCacheRequest,
    NotRequired,
    RootRequest,
    RunRequest,
)


class PersistentDirectory(TypedDict):
    """A directory that outlives the run.

    A relative ``path`` becomes a symlink in the working directory, an absolute one a private bind mount, ``~/…`` is below
    the job's home. Without mounts, the environment variable ``variable`` holds the target.
    """

    path: str
    target: str
    read_only: NotRequired[bool]
    variable: NotRequired[str]


RunGpus = TypedDict("RunGpus", {"count": Optional[int], "kind": str, "declared": Optional[int]})
"""``count`` null: all. ``declared``: the host's GPUs by the manifest, null: as its tools report."""

SweepSlots = TypedDict("SweepSlots", {"name": str, "count": int})
RunDependency = TypedDict("RunDependency", {"key": str, "address": str})
ApplyPosition = TypedDict("ApplyPosition", {"apply": str, "index": int})
"""Position of the run in its apply, the order in the queue."""

RunInputs = TypedDict("RunInputs", {"attributes": Mapping[str, Any], "listings": Mapping[str, str]})
"""Attributes of the job, and listings by weights address, to repeat the run."""


class GangSpec(TypedDict, total=False):
    """How ranks reach rank 0: ``addresses``, the preferred first, and ``ports``, ``FIRST-LAST`` or empty: any.

    A rank counts as lost ``silence_timeout`` seconds after its last message, ``disconnect_timeout`` once disconnected.
    """

    addresses: List[str]
    ports: str
    silence_timeout: float
    disconnect_timeout: float


RunContainer = TypedDict("RunContainer", {"engine": str, "image": str, "workdir": str})
"""``image``: its id for the engine."""


class CheckpointStoreSpec(TypedDict, total=False):
    """The checkpoint store. ``url`` null: the data directory. ``secret``: name of its credential.

    Durations are in seconds.
    """

    url: Optional[str]
    endpoint_url: Optional[str]
    secret: Optional[str]
    prefix: str
    debounce_seconds: float
    idle_seconds: float


class CheckpointQuery(TypedDict, total=False):
    """Names of a checkpoint; null: any, the newest first."""

    project: str
    job: Optional[str]
    run: Optional[str]
    name: Optional[str]


class CheckpointLoad(CheckpointQuery, total=False):
    """Checkpoints that a run starts with; with ``force`` also unfinished ones.

    ``runs``: paths of the job's runs in the store; empty: all that are stored under its name. ``place``: their store if
    it isn't that of the run.
    """

    optional: bool
    force: bool
    runs: List[str]
    place: Mapping[str, Any]


class QueueOrder(TypedDict):
    """Order in the queue. The highest ``priority`` starts first; ``slots``: concurrent runs of a sweep."""

    priority: int
    slots: Optional[SweepSlots]


class BatchGrant(TypedDict, total=False):
    """What a batch system granted to a rank: ``variables`` for the job, numbers of its ``gpus``. Empty before the start."""

    variables: Dict[str, str]
    gpus: List[str]


class DeploymentSpec(TypedDict):
    """Keys of a specification that depend on the deployment, equal for all ranks.

    ``checkpoints``: the section of the manifest. ``follows``: runs to wait for. ``turn``: order within the apply.
    ``gang`` null: the run has one rank.
    """

    checkpoints: Mapping[str, Any]
    follows: List[RunDependency]
    turn: ApplyPosition
    gang: Optional[GangSpec]


class RunSpec(QueueOrder, DeploymentSpec):
    """Specification of one rank of a run.

    ``job``: attributes of the job, as in a plan; ``node.runs.record`` reads them. ``nodes``: ids, by rank. ``code``: digest.
    ``environment``: variables without secrets, some of which replace the job's. ``listings``: by address of the weights.
    ``links``: persistent directories. ``caches``: directories of training caches that the run uses, ``project_cache`` the
    one that ``prepare_commands`` fill. ``venv``: the environment that was built, else that of the job. ``declared_gpus``:
    the host's GPUs by the manifest, null: as its tools report. ``cache``: the node's cache of weights; null:
    ``ROOT/cache``. ``batch`` null: trainctl itself starts the run.
    """

    key: str
    id: str
    number: int
    generation: int
    lineage: str
    address: str
    project: str
    job: Mapping[str, Any]
    rank: int
    group_size: int
    nodes: List[str]
    code: str
    environment: Dict[str, str]
    listings: Mapping[str, str]
    links: List[PersistentDirectory]
    venv: Optional[str]
    caches: List[str]
    project_cache: Optional[str]
    grace_seconds: float
    declared_gpus: Optional[int]
    cache: Optional[str]
    store: CheckpointStoreSpec
    load: List[CheckpointLoad]
    container: Optional[RunContainer]
    batch: Optional[BatchGrant]


RootCause = TypedDict(
    "RootCause",
    {"rank": int, "status": str, "exit_code": Optional[int], "error": Optional[str]},
)
"""The rank whose end stopped its gang."""

UploadStatus = TypedDict(
    "UploadStatus", {"state": str, "error": Optional[str], "pending": List[str]}, total=False
)
"""Upload of a run's checkpoints; empty if it keeps none. ``pending``: names of checkpoints not yet uploaded."""


class TrainingProgress(TypedDict):
    """Progress that a job reported last."""

    step: Optional[int]
    total: Optional[int]
    loss: Optional[float]
    remaining_seconds: Optional[float]
    updated_at: float


HeldSession = TypedDict("HeldSession", {"until": float, "exit_code": int})
"""Commands that have ended, while the run keeps its place until a time."""


ResultPoint = TypedDict("ResultPoint", {"value": float, "step": Optional[int]})
"""``step`` null: unknown."""


class KeyResult(TypedDict):
    """A number that a run reported: its last value, the lowest and the highest."""

    last: ResultPoint
    min: ResultPoint
    max: ResultPoint


class EvaluationRow(TypedDict):
    """An evaluation of the checkpoint ``name`` of the run at the path ``run`` in its store.

    ``status``: ``queued``, ``running``, ``completed``, ``failed``, ``interrupted`` or ``skipped``. ``values``: the last
    value of each key that it reported.
    """

    run: str
    name: str
    step: int
    status: str
    exit_code: Optional[int]
    error: Optional[str]
    values: Dict[str, float]


class RunDetails(TypedDict, total=False):
    """What a node reports of a run and its record in a state keeps; in the JSON of ``status`` by these names if not otherwise.

    ``evaluations``: for each checkpoint of another job. ``loaded``: the checkpoints it started with, ``{run, rank, name, step, version}``. ``results``: by key.
    """

    retries: Optional[int]
    evaluations: Optional[List[EvaluationRow]]
    loaded: Optional[List[Dict[str, Any]]]
    session: Optional[HeldSession]
    sync: UploadStatus
    results: Optional[Dict[str, KeyResult]]


class RunMoment(TypedDict, total=False):
    """What a node reports of a run and no record keeps, because it holds only now.

    ``waiting``: what a pending run waits for, with its position, or the step of a deploying run. ``cause``: code of the
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
    mount: NotRequired[Optional[str]]
    weights_mode: NotRequired[Optional[str]]
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

PointsRequest = TypedDict(
    "PointsRequest",
    {"root": str, "runs": Mapping[str, Mapping[str, Sequence[int]]], "keys": Optional[List[str]]},
)
"""``runs``: by key, with the positions that the client has by key of the points. ``keys`` null: all."""
PointsResponse = TypedDict("PointsResponse", {"runs": Dict[str, Dict[str, Any]]})
"""``runs``: JSON of their points, see ``base.points``."""

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
"""False if the run was started; its holds end with it."""

START = Method("start", StartRequest, StartResponse)
"""Start a run unless already started; wait until it is running, pending or ended. Events: ``{waiting}``."""
SET_SECRETS = Method("set_secrets", SetSecretsRequest, RunReport)
"""Resume a run that waits for its secrets or for a resume; ignore any other."""
STATUS = Method("status", StatusRequest, StatusResponse)
"""Report the status of runs."""
STOP = Method("stop", StopRequest, RunReport)
"""Stop a run and wait for its end; prevent an unknown run from starting.

Events, each second: ``{seconds, grace, processes}``, where ``processes`` are left.
"""
EXTEND_SESSION = Method("extend_session", ExtendSessionRequest, ExtendSessionResponse)
"""Let a live run keep its place for longer after its commands have ended."""
SET_QUEUE_ORDER = Method("set_queue_order", SetQueueOrderRequest, RunReport)
"""Change a run's order in the queue."""
REMOVE = Method("remove", RunCacheRequest, RemoveResponse)
"""Remove an ended run and its holds, but not its checkpoints."""
RELEASE = Method("release", RunCacheRequest, ReleaseResponse)
"""Release the holds of a run that never started."""
GET_RUN_INPUTS = Method("get_run_inputs", RunRequest, RunInputsResponse)
"""Return the inputs of a run."""
FIND_RUN = Method("find_run", FindRunRequest, FindRunResponse)
"""Find a run by its ID or key; null: not on this node."""
METRICS = Method("metrics", MetricsRequest, MetricsResponse)
"""Return the samples of a run."""
POINTS = Method("points", PointsRequest, PointsResponse)
"""Return the points of runs that the client lacks."""
READ_LINES = Method("read_lines", ReadLinesRequest, bytes)
"""Return lines of a log as frames: a line of JSON ``{time, bytes, next, open}``, then ``bytes`` bytes."""


WAITING_EXIT_CODE = 99
"""Exit code of a rank that was interrupted: the batch system decides whether it starts again."""


def rank_root(root: str, rank: int) -> str:
    """Return the root directory of one rank: all ranks of a batch run share a file system."""
    return f"{root}/ranks/{rank}" if rank else root


class CreateBatchRunRequest(RunRequest):
    """``runs``: the specification of each rank. ``secrets``: values by name, stored until the run ends."""

    runs: List[RunSpec]
    secrets: Mapping[str, str]


class RunRankRequest(RunRequest):
    """``rank``, ``restarts``, ``gpus``, ``host``: environment variables of the batch system.

    ``forwarded``: prefixes of the variables that the job gets. ``node_cache``: directory on the node's own disk, may have
    variables; empty: none.
    """

    data: str
    rank: str
    restarts: str
    gpus: str
    host: str
    forwarded: List[str]
    node_cache: str


class ExpectStopRequest(RunRequest):
    """A run of ``ranks`` ranks is about to be stopped, with ``grace_seconds`` for its processes."""

    ranks: int
    grace_seconds: float


class EndBatchRunRequest(RunRequest):
    """Ends ranks that have no outcome, with a ``status`` and ``error``."""

    ranks: int
    status: str
    error: Optional[str]


RankResponse = TypedDict("RankResponse", {"status": str})

CREATE_BATCH_RUN = Method("create_batch_run", CreateBatchRunRequest, EmptyResponse)
"""Create the directories of a batch run's ranks; idempotent."""
RUN_RANK = Method("run_rank", RunRankRequest, RankResponse)
"""Run one rank in this process, called by the batch system."""
EXPECT_STOP = Method("expect_stop", ExpectStopRequest, EmptyResponse)
"""Record that the batch run is about to be stopped."""
END_BATCH_RUN = Method("end_batch_run", EndBatchRunRequest, EmptyResponse)
"""Record the end of a batch run whose job has ended."""
