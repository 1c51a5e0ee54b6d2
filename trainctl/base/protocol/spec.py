"""The specification of a run: what one node needs to know to run one rank, except secret values."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, TypedDict

RunWeights = TypedDict("RunWeights", {"name": str, "listing": str, "mount_location": Optional[str]})
"""``name``: address of the weights. ``mount_location`` null: ``weights/NAME`` in the working directory."""

_PersistentDirectory = TypedDict("_PersistentDirectory", {"path": str, "target": str})


class PersistentDirectory(_PersistentDirectory, total=False):
    """A directory that outlives the run, where the job looks for it.

    A relative ``path`` is a symlink in the working directory, an absolute one is bound for the job alone, ``~/…`` is below its
    home; where nothing can be mounted there, ``variable`` names the target.
    """

    read_only: bool
    variable: str


RunMount = TypedDict("RunMount", {"host_path": str, "mount_location": str, "read_only": bool})
RunHost = TypedDict("RunHost", {"venv": Optional[str]})
RunGpus = TypedDict("RunGpus", {"count": Optional[int], "kind": str, "declared": Optional[int]})
"""``count`` null: all. ``declared``: how many the host has by the manifest, null: what its tools report."""

SweepSlots = TypedDict("SweepSlots", {"name": str, "count": int})
RunRetry = TypedDict("RunRetry", {"max_attempts": int, "delay_seconds": float})
RunDependency = TypedDict("RunDependency", {"key": str, "address": str})
ApplyPosition = TypedDict("ApplyPosition", {"apply": str, "index": int})
"""Place of the run among those of its apply, which queue in this order."""

PrepareStage = TypedDict("PrepareStage", {"commands": List[str], "directory": str})
"""Commands that are run once for a training cache."""

RunInputs = TypedDict("RunInputs", {"attributes": Mapping[str, Any], "listings": Mapping[str, str]})
"""Attributes of the job, and listings by weights address, for a run that repeats this one."""


class GangSpec(TypedDict, total=False):
    """How ranks reach rank 0: ``addresses``, the preferred first, and ``ports``, ``FIRST-LAST`` or empty: any.

    ``silence_timeout``, ``disconnect_timeout``: after which silence a rank counts as lost, the latter with a closed connection.
    """

    addresses: List[str]
    ports: str
    silence_timeout: float
    disconnect_timeout: float


class RunContainer(TypedDict):
    """``image``: its id for the engine. ``shm_size`` and ``memory`` in bytes; null: no limit."""

    engine: str
    image: str
    workdir: str
    shm_size: Optional[int]
    memory: Optional[int]
    cpus: Optional[int]


class CheckpointStoreSpec(TypedDict, total=False):
    """Where checkpoints of the run are kept, and which. ``url`` null: the data directory. ``secret``: name of what opens it.

    ``max_rate``: bytes a second. ``enabled``: whether the run keeps any. Durations are in seconds.
    """

    url: Optional[str]
    endpoint_url: Optional[str]
    secret: Optional[str]
    prefix: str
    enabled: bool
    keep_last: Optional[int]
    keep_every: Optional[int]
    max_rate: Optional[int]
    upload_timeout: float
    debounce_seconds: float
    idle_seconds: float


class CheckpointLoad(TypedDict):
    """A reference to checkpoints that a run begins with; null: any, the newest first."""

    project: str
    job: Optional[str]
    run: Optional[str]
    name: Optional[str]
    optional: bool


class QueueOrder(TypedDict):
    """What may change while a run waits. The highest ``priority`` goes first; ``slots``: how many of a sweep go on at once."""

    priority: int
    slots: Optional[SweepSlots]


class DeploymentSpec(TypedDict):
    """Keys of a specification that don't follow from the job.

    ``cache``: of the weights on the node; null: ``ROOT/cache``. ``gang`` null: the run has one rank.
    """

    cache: Optional[str]
    store: CheckpointStoreSpec
    load: List[CheckpointLoad]
    follows: List[RunDependency]
    turn: ApplyPosition
    gang: Optional[GangSpec]
    container: Optional[RunContainer]


class RunSpec(QueueOrder, DeploymentSpec):
    """Specification of one rank of a run.

    ``nodes``: ids, by rank. ``code``: digest. ``environment``: variables without secrets; ``secret_environment``: names of secrets by
    variable; ``persist_secrets``: the node keeps their values on its disk until the run begins. ``caches``: directories of training
    caches that the run uses.
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
