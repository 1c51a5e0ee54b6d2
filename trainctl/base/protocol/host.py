"""Verbs about the host itself."""

from __future__ import annotations

from typing import List, Optional, TypedDict

from trainctl.base.protocol.verb import AtCache, AtRoot, Verb
from trainctl.base.protocol.weights import Cached, CacheQuery

HostWanted = TypedDict("HostWanted", {"venv": Optional[str], "program": str})
"""What a job without a container runs, in its virtual environment."""

ImageWanted = TypedDict("ImageWanted", {"image": str, "engine": Optional[str]})


class _Vacancy(AtRoot):
    declared: Optional[int]
    accelerators: List[str]


class VacancyRequest(_Vacancy, total=False):
    """``declared``: how many GPUs jobs may use, null: all. ``accelerators``: kinds of GPUs to recognize.

    ``key``: a run that may have been started here. ``leaving``: a run that makes way.
    """

    key: Optional[str]
    leaving: Optional[str]
    cached: CacheQuery


class FactsRequest(AtCache):
    """``mounts``: absolute places where something will be mounted. ``sources``: directories of the host to mount."""

    data: str
    mounts: List[str]
    sources: List[str]
    hosts: List[HostWanted]
    accelerators: List[str]
    images: List[ImageWanted]
    cached: Optional[CacheQuery]
    vacancy: Optional[VacancyRequest]


Serving = TypedDict("Serving", {"tls": bool, "why": str, "loopback": str})
"""How weights are served to other hosts, or ``why`` not; ``loopback``: the network within which it is done by loopback."""

Logout = TypedDict("Logout", {"survives": bool, "why": str, "fix": str})
"""Whether a run survives the logout of its user."""

Lacks = TypedDict("Lacks", {"lacks": List[str]})
"""In sentences."""

ImageFound = TypedDict("ImageFound", {"engine": Optional[str], "present": bool, "why": str})
"""``why``: no engine would run it."""

Blocked = TypedDict("Blocked", {"path": str, "why": str})
GpuFound = TypedDict("GpuFound", {"name": str, "is": List[str]})
FreeGpu = TypedDict("FreeGpu", {"name": str, "is": List[str], "free": bool})


class Vacancy(TypedDict):
    """``live``: keys of runs that go on. ``nodes``: by rank, of the run ``key`` if it was started here. ``memory``: bytes."""

    gpus: List[FreeGpu]
    live: List[str]
    cpus: int
    memory: int
    nodes: Optional[List[str]]
    cached: Optional[Cached]


Addresses = TypedDict("Addresses", {"addresses": List[str]})
"""Where others reach the host."""


class Facts(TypedDict):
    """``mount``: namespace; link where nothing can be mounted for a job alone. ``disk_free``: bytes that weights may take, null: unknown.

    ``unusable``: why the directories can't be made. ``absent``: of ``sources``. ``gpus``: each with the kinds that it ``is``.
    """

    serving: Serving
    python: str
    cpus: int
    memory: int
    unusable: str
    disk_free: Optional[int]
    mount: str
    logout: Logout
    hosts: List[Lacks]
    absent: List[str]
    gpus: List[GpuFound]
    gpus_problem: Optional[str]
    images: List[ImageFound]
    cached: Optional[Cached]
    vacancy: Optional[Vacancy]
    blocked: List[Blocked]


class InspectRequest(AtCache):
    """``gpus``: how many jobs may use; null: those reported."""

    gpus: Optional[int]


class Gpu(TypedDict):
    """``claimed_by`` and ``used_by``: in words."""

    index: int
    uuid: str
    name: str
    memory_mib: Optional[int]
    claimed_by: Optional[str]
    project: Optional[str]
    used_by: Optional[str]


Disk = TypedDict("Disk", {"total": Optional[int], "free": Optional[int]})
"""Bytes of the file system of ``root``."""


class CachedListing(TypedDict):
    """``leased_by``: live runs in words, ``projects``: theirs. ``last_used``: Unix seconds."""

    id: str
    source: str
    bytes: int
    last_used: Optional[float]
    leased_by: List[str]
    projects: List[Optional[str]]


CacheUse = TypedDict("CacheUse", {"used": int, "listings": List[CachedListing]})


class LiveRun(TypedDict):
    """A run that goes on."""

    key: str
    id: str
    address: str
    number: int
    rank: int
    status: str
    lineage: str
    project: str


class Inspection(TypedDict):
    """What a node has and what uses it."""

    addresses: List[str]
    gpus: List[Gpu]
    gpus_problem: Optional[str]
    disk: Disk
    cache: CacheUse
    runs: List[LiveRun]


ADDRESSES = Verb("addresses", AtRoot, Addresses, "Report where others reach the host.")
FACTS = Verb("facts", FactsRequest, Facts, "Report what matters before anything moves.")
VACANCY = Verb("vacancy", VacancyRequest, Vacancy, "Report what is free now.")
INSPECT = Verb("inspect", InspectRequest, Inspection, "Report what the node has and what uses it.")
