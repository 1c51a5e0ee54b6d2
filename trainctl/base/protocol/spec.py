"""The specification of one rank of a run, without secret values."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, TypedDict

RunWeights = TypedDict("RunWeights", {"name": str, "listing": str, "mount_location": Optional[str]})
"""``name``: address of the weights. ``mount_location`` null: ``weights/`` and the last part of the source."""

_PersistentDirectory = TypedDict("_PersistentDirectory", {"path": str, "target": str})


class PersistentDirectory(_PersistentDirectory, total=False):
    """A directory that outlives the run.

    A relative ``path`` becomes a symlink in the working directory, an absolute one a private bind mount, ``~/…`` is below
    the job's home. Without mounts, the environment variable ``variable`` holds the target.
    """

    read_only: bool
    variable: str


RunMount = TypedDict("RunMount", {"host_path": str, "mount_location": str, "read_only": bool})
RunHost = TypedDict("RunHost", {"venv": Optional[str]})
RunGpus = TypedDict("RunGpus", {"count": Optional[int], "kind": str, "declared": Optional[int]})
"""``count`` null: all. ``declared``: the host's GPUs by the manifest, null: as its tools report."""

SweepSlots = TypedDict("SweepSlots", {"name": str, "count": int})
RunRetry = TypedDict("RunRetry", {"max_attempts": int, "delay_seconds": float})
RunDependency = TypedDict("RunDependency", {"key": str, "address": str})
ApplyPosition = TypedDict("ApplyPosition", {"apply": str, "index": int})
"""Position of the run in its apply, the order in the queue."""

PrepareStage = TypedDict("PrepareStage", {"commands": List[str], "directory": str})
"""Commands that run once for a training cache."""

RunInputs = TypedDict("RunInputs", {"attributes": Mapping[str, Any], "listings": Mapping[str, str]})
"""Attributes of the job, and listings by weights address, to repeat the run."""


class GangSpec(TypedDict, total=False):
    """How ranks reach rank 0: ``addresses``, the preferred first, and ``ports``, ``FIRST-LAST`` or empty: any.

    A rank counts as lost ``silence_timeout`` seconds after its last message, ``disconnect_timeout`` once disconnected.
    ``end``: ``any``, ``leader`` or ``all``, whose completion completes the run; ``end_grace``: seconds until the
    other ranks are stopped then.
    """

    addresses: List[str]
    ports: str
    silence_timeout: float
    disconnect_timeout: float
    end: str
    end_grace: float


class RunContainer(TypedDict):
    """``image``: its id for the engine. ``shm_size`` and ``memory`` in bytes; null: no limit."""

    engine: str
    image: str
    workdir: str
    shm_size: Optional[int]
    memory: Optional[int]
    cpus: Optional[int]
    devices: List[str]
    ulimits: Dict[str, int]


RunSession = TypedDict("RunSession", {"trigger": str, "timeout_seconds": float})
"""When a run keeps its place after its commands: ``on_startup``, ``on_failure`` or ``on_demand``, and how long."""


class CheckpointStoreSpec(TypedDict, total=False):
    """The checkpoint store and retention. ``url`` null: the data directory. ``secret``: name of its credential.

    ``max_rate``: bytes a second. ``max_bytes``: size of the run's directory at which the run is stopped. ``enabled``: whether the run stores checkpoints. Durations are in seconds.
    """

    url: Optional[str]
    endpoint_url: Optional[str]
    secret: Optional[str]
    prefix: str
    enabled: bool
    keep_last: Optional[int]
    keep_every: Optional[int]
    max_rate: Optional[int]
    max_bytes: Optional[int]
    upload_timeout: float
    debounce_seconds: float
    idle_seconds: float


class CheckpointLoad(TypedDict, total=False):
    """Checkpoints that a run starts with; null: any, the newest first.

    ``runs``: paths of the job's runs in the store; empty: all that are stored under its name. ``place``: their store if
    it isn't that of the run.
    """

    project: str
    job: Optional[str]
    run: Optional[str]
    name: Optional[str]
    optional: bool
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
    """Keys of a specification that depend on the deployment.

    ``cache``: the node's cache of weights; null: ``ROOT/cache``. ``follows``: runs to wait for. ``turn``: order within
    the apply. ``gang`` null: the run has one rank. ``batch`` null: trainctl itself starts the run.
    """

    cache: Optional[str]
    store: CheckpointStoreSpec
    load: List[CheckpointLoad]
    follows: List[RunDependency]
    turn: ApplyPosition
    gang: Optional[GangSpec]
    container: Optional[RunContainer]
    batch: Optional[BatchGrant]


class RunSpec(QueueOrder, DeploymentSpec):
    """Specification of one rank of a run.

    ``nodes``: ids, by rank. ``code``: digest. ``environment``: variables without secrets; ``secret_environment``: names of
    secrets by variable; ``persist_secrets``: store their values on the node's disk until the run starts. ``links``:
    persistent directories. ``caches``: directories of training caches that the run uses.
    """

    key: str
    id: str
    number: int
    generation: int
    lineage: str
    address: str
    project: str
    job: str
    rank: int
    group_size: int
    nodes: List[str]
    code: str
    commands: List[str]
    environment: Dict[str, str]
    secret_environment: Dict[str, str]
    weights: List[RunWeights]
    links: List[PersistentDirectory]
    mounts: List[RunMount]
    host: RunHost
    caches: List[str]
    grace_seconds: float
    gpus: RunGpus
    persist_secrets: bool
    max_duration_seconds: Optional[float]
    run_inputs: RunInputs
    prepare: Optional[PrepareStage]
    retry: Optional[RunRetry]
    session: Optional[RunSession]
