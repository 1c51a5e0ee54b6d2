"""The specification of one rank of a run, without secret values."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, TypedDict

_PersistentDirectory = TypedDict("_PersistentDirectory", {"path": str, "target": str})


class PersistentDirectory(_PersistentDirectory, total=False):
    """A directory that outlives the run.

    A relative ``path`` becomes a symlink in the working directory, an absolute one a private bind mount, ``~/…`` is below
    the job's home. Without mounts, the environment variable ``variable`` holds the target.
    """

    read_only: bool
    variable: str


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

    ``cache``: the node's cache of weights; null: ``ROOT/cache``. ``checkpoints``: the section of the manifest.
    ``follows``: runs to wait for. ``turn``: order within the apply. ``gang`` null: the run has one rank. ``batch`` null:
    trainctl itself starts the run.
    """

    cache: Optional[str]
    store: CheckpointStoreSpec
    checkpoints: Mapping[str, Any]
    load: List[CheckpointLoad]
    follows: List[RunDependency]
    turn: ApplyPosition
    gang: Optional[GangSpec]
    container: Optional[RunContainer]
    batch: Optional[BatchGrant]


class RunSpec(QueueOrder, DeploymentSpec):
    """Specification of one rank of a run.

    ``job``: attributes of the job, as in a plan; ``node.runs.job`` reads them. ``nodes``: ids, by rank. ``code``: digest.
    ``environment``: variables without secrets, some of which replace the job's. ``listings``: by address of the weights.
    ``links``: persistent directories. ``caches``: directories of training caches that the run uses, ``project_cache`` the
    one that ``prepare_commands`` fill. ``venv``: the environment that was built, else that of the job. ``declared_gpus``:
    the host's GPUs by the manifest, null: as its tools report.
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
