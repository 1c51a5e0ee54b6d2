"""The specification of a run: what one node needs to know to run one rank, except secret values."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, TypedDict

Weights = TypedDict("Weights", {"name": str, "listing": str, "mount_location": Optional[str]})
"""``name``: address of the weights. ``mount_location`` null: ``weights/NAME`` in the working directory."""

_Link = TypedDict("_Link", {"path": str, "target": str})


class Link(_Link, total=False):
    """A directory that outlives the run, where the job looks for it.

    A relative ``path`` is a symlink in the working directory, an absolute one is bound for the job alone, ``~/…`` is below its
    home; where nothing can be mounted there, ``variable`` names the target.
    """

    read_only: bool
    variable: str


Mount = TypedDict("Mount", {"host_path": str, "mount_location": str, "read_only": bool})
Host = TypedDict("Host", {"venv": Optional[str]})
Gpus = TypedDict("Gpus", {"count": Optional[int], "kind": str, "declared": Optional[int]})
"""``count`` null: all. ``declared``: how many the host has by the manifest, null: what its tools report."""

Slots = TypedDict("Slots", {"name": str, "count": int})
Retry = TypedDict("Retry", {"max_attempts": int, "delay_seconds": float})
Followed = TypedDict("Followed", {"key": str, "address": str})
Turn = TypedDict("Turn", {"apply": str, "index": int})
"""Place of the run among those of its apply, which queue in this order."""

Prepare = TypedDict("Prepare", {"commands": List[str], "directory": str})
"""Commands that are run once for a training cache."""

MadeOf = TypedDict("MadeOf", {"attributes": Mapping[str, Any], "listings": Mapping[str, str]})
"""Attributes of the job, and listings by weights address, for a run that repeats this one."""


class Gang(TypedDict, total=False):
    """How ranks reach rank 0: ``addresses``, the preferred first, and ``ports``, ``FIRST-LAST`` or empty: any.

    ``silent_seconds``, ``closed_seconds``: after which silence a rank counts as lost, the latter with a closed connection.
    """

    addresses: List[str]
    ports: str
    silent_seconds: float
    closed_seconds: float


class Container(TypedDict):
    """``image``: its id for the engine. ``shm_size`` and ``memory`` in bytes; null: no limit."""

    engine: str
    image: str
    workdir: str
    shm_size: Optional[int]
    memory: Optional[int]
    cpus: Optional[int]


class Store(TypedDict, total=False):
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
    settle_seconds: float
    quiet_seconds: float


class Load(TypedDict):
    """A reference to checkpoints that a run begins with; null: any, the newest first."""

    project: str
    job: Optional[str]
    run: Optional[str]
    name: Optional[str]
    optional: bool


class Order(TypedDict):
    """What may change while a run waits. The highest ``priority`` goes first; ``slots``: how many of a sweep go on at once."""

    priority: int
    slots: Optional[Slots]


class Surroundings(TypedDict):
    """Keys of a specification that don't follow from the job.

    ``cache``: of the weights on the node; null: ``ROOT/cache``. ``gang`` null: the run has one rank.
    """

    cache: Optional[str]
    store: Store
    load: List[Load]
    follows: List[Followed]
    turn: Turn
    gang: Optional[Gang]
    container: Optional[Container]


class RunSpec(Order, Surroundings):
    """Specification of one rank of a run.

    ``nodes``: ids, by rank. ``code``: digest. ``environment``: variables without secrets; ``secret_environment``: names of secrets by
    variable; ``keeps_secrets``: the node keeps their values on its disk until the run begins. ``caches``: directories of training
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
    weights: List[Weights]
    links: List[Link]
    mounts: List[Mount]
    host: Host
    caches: List[str]
    grace_seconds: float
    gpus: Gpus
    keeps_secrets: bool
    max_duration_seconds: Optional[float]
    made_of: MadeOf
    prepare: Optional[Prepare]
    retry: Optional[Retry]
