"""Verbs about the host itself."""

from __future__ import annotations

from typing import List, Optional, TypedDict

from trainctl.base.protocol.method import Method, NodeCacheRequest, RootRequest
from trainctl.base.protocol.weights import CacheQueryRequest, CacheQueryResponse

HostRequirement = TypedDict("HostRequirement", {"venv": Optional[str], "program": str})
"""What a job without a container runs, in its virtual environment."""

ImageQuery = TypedDict("ImageQuery", {"image": str, "engine": Optional[str]})


class _FreeResourcesRequest(RootRequest):
    declared: Optional[int]
    accelerators: List[str]


class FreeResourcesRequest(_FreeResourcesRequest, total=False):
    """``declared``: how many GPUs jobs may use, null: all. ``accelerators``: kinds of GPUs to recognize.

    ``key``: a run that may have been started here. ``replaced_key``: a run that makes way.
    """

    key: Optional[str]
    replaced_key: Optional[str]
    cached: CacheQueryRequest


class FactsRequest(NodeCacheRequest):
    """``mounts``: absolute places where something will be mounted. ``sources``: directories of the host to mount."""

    data: str
    mounts: List[str]
    sources: List[str]
    hosts: List[HostRequirement]
    accelerators: List[str]
    images: List[ImageQuery]
    cached: Optional[CacheQueryRequest]
    free_resources: Optional[FreeResourcesRequest]


ServingFacts = TypedDict("ServingFacts", {"tls": bool, "why": str, "loopback": str})
"""How weights are served to other hosts, or ``why`` not; ``loopback``: the network within which it is done by loopback."""

LogoutPolicy = TypedDict("LogoutPolicy", {"survives": bool, "why": str, "fix": str})
"""Whether a run survives the logout of its user."""

MissingHostRequirements = TypedDict("MissingHostRequirements", {"lacks": List[str]})
"""In sentences."""

ImageAvailability = TypedDict(
    "ImageAvailability", {"engine": Optional[str], "present": bool, "why": str}
)
"""``why``: no engine would run it."""

BlockedMount = TypedDict("BlockedMount", {"path": str, "why": str})
HostGpuFacts = TypedDict("HostGpuFacts", {"name": str, "is": List[str]})
FreeGpu = TypedDict("FreeGpu", {"name": str, "is": List[str], "free": bool})


class FreeResources(TypedDict):
    """``live``: keys of runs that go on. ``nodes``: by rank, of the run ``key`` if it was started here. ``memory``: bytes."""

    gpus: List[FreeGpu]
    live: List[str]
    cpus: int
    memory: int
    nodes: Optional[List[str]]
    cached: Optional[CacheQueryResponse]


AddressesResponse = TypedDict("AddressesResponse", {"addresses": List[str]})
"""Where others reach the host."""


class Facts(TypedDict):
    """``mount``: namespace; link where nothing can be mounted for a job alone. ``disk_free``: bytes that weights may take, null: unknown.

    ``unusable``: why the directories can't be made. ``absent``: of ``sources``. ``gpus``: each with the kinds that it ``is``.
    """

    serving: ServingFacts
    python: str
    cpus: int
    memory: int
    unusable: str
    disk_free: Optional[int]
    mount: str
    logout: LogoutPolicy
    hosts: List[MissingHostRequirements]
    absent: List[str]
    gpus: List[HostGpuFacts]
    gpus_problem: Optional[str]
    images: List[ImageAvailability]
    cached: Optional[CacheQueryResponse]
    free_resources: Optional[FreeResources]
    blocked: List[BlockedMount]


class InspectNodeRequest(NodeCacheRequest):
    """``gpus``: how many jobs may use; null: those reported."""

    gpus: Optional[int]


class GpuUsage(TypedDict):
    """``claimed_by`` and ``used_by``: in words."""

    index: int
    uuid: str
    name: str
    memory_mib: Optional[int]
    claimed_by: Optional[str]
    project: Optional[str]
    used_by: Optional[str]


NodeDiskUsage = TypedDict("NodeDiskUsage", {"total": Optional[int], "free": Optional[int]})
"""Bytes of the file system of ``root``."""


class ListingUsage(TypedDict):
    """``leased_by``: live runs in words, ``projects``: theirs. ``last_used``: Unix seconds."""

    id: str
    source: str
    bytes: int
    last_used: Optional[float]
    leased_by: List[str]
    projects: List[Optional[str]]


WeightsCacheUsage = TypedDict("WeightsCacheUsage", {"used": int, "listings": List[ListingUsage]})


class NodeLiveRun(TypedDict):
    """A run that goes on."""

    key: str
    id: str
    address: str
    number: int
    rank: int
    status: str
    lineage: str
    project: str


class NodeInspection(TypedDict):
    """What a node has and what uses it."""

    addresses: List[str]
    gpus: List[GpuUsage]
    gpus_problem: Optional[str]
    disk: NodeDiskUsage
    cache: WeightsCacheUsage
    runs: List[NodeLiveRun]


ADDRESSES = Method(
    "addresses", RootRequest, AddressesResponse, "Report where others reach the host."
)
FACTS = Method("facts", FactsRequest, Facts, "Report what matters before anything moves.")
FREE_RESOURCES = Method(
    "free_resources", FreeResourcesRequest, FreeResources, "Report what is free now."
)
INSPECT = Method(
    "inspect", InspectNodeRequest, NodeInspection, "Report what the node has and what uses it."
)
