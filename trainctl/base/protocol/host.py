"""The host: facts, free resources, inspection."""

from __future__ import annotations

from typing import List, Optional, TypedDict

from trainctl.base.protocol.idle_shutdown import IdleShutdownReport
from trainctl.base.protocol.method import Method, NodeCacheRequest, RootRequest
from trainctl.base.protocol.weights import CacheQueryRequest, CacheQueryResponse

HostRequirement = TypedDict("HostRequirement", {"venv": Optional[str], "program": str})
"""The program that a job without a container runs, in its virtual environment."""

ImageQuery = TypedDict("ImageQuery", {"image": str, "engine": Optional[str]})


class _FreeResourcesRequest(RootRequest):
    declared: Optional[int]
    accelerators: List[str]


class FreeResourcesRequest(_FreeResourcesRequest, total=False):
    """``declared``: number of GPUs that jobs may use, null: all. ``accelerators``: kinds of GPUs to recognize.

    ``key``: a run that may have been started here. ``replaced_key``: a run that it replaces.
    """

    key: Optional[str]
    replaced_key: Optional[str]
    cached: CacheQueryRequest


class FactsRequest(NodeCacheRequest):
    """``mounts``: absolute mount points. ``sources``: directories of the host to mount."""

    data: str
    mounts: List[str]
    sources: List[str]
    hosts: List[HostRequirement]
    accelerators: List[str]
    images: List[ImageQuery]
    cached: Optional[CacheQueryRequest]
    free_resources: Optional[FreeResourcesRequest]


ServingFacts = TypedDict("ServingFacts", {"tls": bool, "why": str, "loopback": str})
"""How weights are served to other hosts, or ``why`` not; ``loopback``: id of the network that reaches it by loopback."""

LogoutPolicy = TypedDict("LogoutPolicy", {"survives": bool, "why": str, "fix": str})
"""Whether a run survives the logout of its user."""

MissingHostRequirements = TypedDict("MissingHostRequirements", {"lacks": List[str]})
"""Missing requirements, in sentences."""

ImageAvailability = TypedDict(
    "ImageAvailability", {"engine": Optional[str], "present": bool, "why": str, "rdma": bool}
)
"""``why``: reason if no engine can run it; ``rdma``: whether its containers get ``/dev/infiniband``."""

BlockedMount = TypedDict("BlockedMount", {"path": str, "why": str})
HostGpuFacts = TypedDict("HostGpuFacts", {"name": str, "is": List[str]})
FreeGpu = TypedDict("FreeGpu", {"name": str, "is": List[str], "free": bool})


class FreeResources(TypedDict):
    """``live``: keys of active runs. ``nodes``: by rank, of the run ``key`` if it was started here. ``memory``: bytes."""

    gpus: List[FreeGpu]
    live: List[str]
    cpus: int
    memory: int
    nodes: Optional[List[str]]
    cached: Optional[CacheQueryResponse]


AddressesResponse = TypedDict("AddressesResponse", {"addresses": List[str]})
"""Addresses by which other hosts reach this one."""


class Facts(TypedDict):
    """``mount``: ``namespace``, or ``link`` without private mounts. ``disk_free``: bytes that weights may take, null: unknown.

    ``unusable``: why the directories can't be created. ``absent``: missing ``sources``. ``gpus``: ``is`` lists matching kinds.
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
    """``gpus``: number that jobs may use; null: all reported."""

    gpus: Optional[int]


class GpuUsage(TypedDict):
    """``claimed_by`` and ``used_by``: texts for people."""

    index: int
    uuid: str
    name: str
    memory_mib: Optional[int]
    claimed_by: Optional[str]
    project: Optional[str]
    used_by: Optional[str]


NodeDiskUsage = TypedDict("NodeDiskUsage", {"total": Optional[int], "free": Optional[int]})
"""Bytes of the file system that holds ``root``."""


class ListingUsage(TypedDict):
    """``leased_by``: names of live runs, ``projects``: their projects. ``last_used``: Unix seconds."""

    id: str
    source: str
    bytes: int
    last_used: Optional[float]
    leased_by: List[str]
    projects: List[Optional[str]]


WeightsCacheUsage = TypedDict("WeightsCacheUsage", {"used": int, "listings": List[ListingUsage]})


class NodeLiveRun(TypedDict):
    """An active run."""

    key: str
    id: str
    address: str
    number: int
    rank: int
    status: str
    lineage: str
    project: str


class NodeInspection(TypedDict):
    """Resources of a node and their use. ``idle_shutdown`` null: the machine doesn't end itself."""

    addresses: List[str]
    gpus: List[GpuUsage]
    gpus_problem: Optional[str]
    disk: NodeDiskUsage
    cache: WeightsCacheUsage
    runs: List[NodeLiveRun]
    idle_shutdown: Optional[IdleShutdownReport]


ADDRESSES = Method("addresses", RootRequest, AddressesResponse, "Report the addresses of the host.")
FACTS = Method("facts", FactsRequest, Facts, "Report the facts that a plan needs.")
FREE_RESOURCES = Method(
    "free_resources", FreeResourcesRequest, FreeResources, "Report free GPUs, CPUs and memory."
)
INSPECT = Method(
    "inspect", InspectNodeRequest, NodeInspection, "Report the node's resources and their use."
)
