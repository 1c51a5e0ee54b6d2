"""The host: facts, checks, inspection, code, environments, images."""

from __future__ import annotations

from typing import List, Optional

from trainctl.base.lazy_typed_dict import TypedDict
from trainctl.base.protocol.method import Method, NodeCacheRequest, NotRequired, RootRequest
from trainctl.base.protocol.runs import RunGpus
from trainctl.base.protocol.weights import CachedListing, CacheQueryRequest, CacheQueryResponse


class NoticeSource(TypedDict):
    """Where the platform announces that it takes a machine back. ``kind``: ``imds``. ``url`` absent: of the environment."""

    kind: str
    url: NotRequired[str]


class IdleShutdownSettings(TypedDict):
    """``shutdown``: command that ends the machine. ``stop``: command that keeps its disk, for checkpoints not uploaded.

    ``idle_timeout`` in seconds.
    """

    shutdown: List[str]
    stop: List[str]
    idle_timeout: float
    notice: Optional[NoticeSource]


class IdleShutdownRequest(RootRequest):
    """``settings``: those of the provider."""

    settings: IdleShutdownSettings


class MachineNotices(TypedDict):
    """Unix seconds, null: no notice. ``taken_back``: when the platform takes the machine. ``at_risk``: since when it may."""

    taken_back: Optional[float]
    at_risk: Optional[float]


class IdleShutdownReport(MachineNotices):
    """``idle_since`` in Unix seconds, null: a run is live. ``seconds_left`` until the machine ends, null: no watcher runs."""

    idle_since: Optional[float]
    seconds_left: Optional[float]


IDLE_SHUTDOWN = Method("idle_shutdown", IdleShutdownRequest, IdleShutdownReport)
"""Start or renew the process that ends an idle machine."""


HostRequirement = TypedDict("HostRequirement", {"venv": Optional[str], "program": str})
"""The program that a job without a container runs, in its virtual environment."""

ImageQuery = TypedDict("ImageQuery", {"image": str, "engine": Optional[str]})


class PlacementQuery(RootRequest, total=False):
    """``key``: a run that may have been started here. ``replaced_key``: a run that it replaces."""

    key: Optional[str]
    replaced_key: Optional[str]
    cached: CacheQueryRequest


class FreeResourcesRequest(PlacementQuery):
    """``declared``: number of GPUs that jobs may use, null: all. ``accelerators``: kinds of GPUs to recognize."""

    declared: Optional[int]
    accelerators: List[str]


class JobNeeds(TypedDict):
    """``mounts``: absolute mount points. ``sources``: directories of the host to mount."""

    mounts: List[str]
    sources: List[str]
    hosts: List[HostRequirement]
    images: List[ImageQuery]


class FactsRequest(NodeCacheRequest, JobNeeds):
    """What jobs may need of a node, and the weights to look up in its cache."""

    data: str
    accelerators: List[str]
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


HostCapacity = TypedDict("HostCapacity", {"cpus": int, "memory": int})
"""CPUs that a process may use, and ``memory`` in bytes."""


class FreeResources(HostCapacity):
    """``live``: keys of active runs. ``nodes``: by rank, of the run ``key`` if it was started here."""

    gpus: List[FreeGpu]
    live: List[str]
    nodes: Optional[List[str]]
    cached: Optional[CacheQueryResponse]


AddressesResponse = TypedDict("AddressesResponse", {"addresses": List[str]})
"""Addresses by which other hosts reach this one."""

HostGpuReport = TypedDict(
    "HostGpuReport", {"gpus": List[HostGpuFacts], "gpus_problem": Optional[str]}
)
"""``gpus``: ``is`` lists matching kinds; ``gpus_problem``: of the tools that report them."""


class SoftwareFacts(TypedDict):
    """Version of Python, and what jobs need of the host."""

    python: str
    logout: LogoutPolicy
    hosts: List[MissingHostRequirements]
    images: List[ImageAvailability]


class DirectoryFacts(TypedDict):
    """``unusable``: why the directories can't be created. ``disk_free``: bytes that weights may take, null: unknown.

    ``absent``: missing ``sources``.
    """

    unusable: str
    disk_free: Optional[int]
    absent: List[str]


MountFacts = TypedDict("MountFacts", {"mount": str, "blocked": List[BlockedMount]})
"""``mount``: ``namespace``, or ``link`` without private mounts."""


class Facts(HostCapacity, HostGpuReport, SoftwareFacts, DirectoryFacts, MountFacts):
    """Facts of a host."""

    serving: ServingFacts
    cached: Optional[CacheQueryResponse]
    free_resources: Optional[FreeResources]


class InspectNodeRequest(NodeCacheRequest):
    """``gpus``: number that jobs may use; null: all reported."""

    gpus: Optional[int]


class ReportedGpu(TypedDict):
    """A GPU as its tool reports it."""

    index: int
    uuid: str
    name: str
    memory_mib: Optional[int]


class GpuUsage(ReportedGpu):
    """``claimed_by`` and ``used_by``: texts for people."""

    claimed_by: Optional[str]
    project: Optional[str]
    used_by: Optional[str]


GpuUsageReport = TypedDict(
    "GpuUsageReport", {"gpus": List[GpuUsage], "gpus_problem": Optional[str]}
)
"""GPUs that jobs may use; ``gpus_problem``: of the tools that report them."""

NodeDiskUsage = TypedDict("NodeDiskUsage", {"total": Optional[int], "free": Optional[int]})
"""Bytes of the file system that holds ``root``."""


WeightsCacheUsage = TypedDict("WeightsCacheUsage", {"used": int, "listings": List[CachedListing]})


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


class NodeInspection(AddressesResponse, GpuUsageReport):
    """Resources of a node and their use. ``idle_shutdown`` null: the machine doesn't end itself."""

    disk: NodeDiskUsage
    cache: WeightsCacheUsage
    runs: List[NodeLiveRun]
    idle_shutdown: Optional[IdleShutdownReport]


ADDRESSES = Method("addresses", RootRequest, AddressesResponse)
"""Report the addresses of the host."""
FACTS = Method("facts", FactsRequest, Facts)
"""Report the facts that a plan needs."""
FREE_RESOURCES = Method("free_resources", FreeResourcesRequest, FreeResources)
"""Report free GPUs, CPUs and memory."""
INSPECT = Method("inspect", InspectNodeRequest, NodeInspection)
"""Report the node's resources and their use."""


WARNING, ERROR, FAULT = "warning", "error", "fault"
"""Levels of findings. The run avoids a node with an error; a fault is one of the hardware or driver."""

Finding = TypedDict("Finding", {"check": str, "level": str, "summary": str, "remedy": str})
"""``summary`` continues "NODE: ", ``remedy`` is an imperative sentence."""


def make_finding(check: str, level: str, summary: str, remedy: str) -> Finding:
    """Return a finding."""
    return {"check": check, "level": level, "summary": summary, "remedy": remedy}


class DiskNeeds(TypedDict):
    """``listings``: weights of the run, of ``probe_bytes`` bytes in total. ``checkpoint_bytes``: disk space they need."""

    data: str
    listings: List[str]
    probe_bytes: int
    checkpoint_bytes: int


class PreflightRequest(NodeCacheRequest, DiskNeeds):
    """``key``: the run. ``ports``: range of the host's ports for a gang, ``FIRST-LAST`` or empty: any; null: no gang."""

    key: str
    gpus: RunGpus
    in_container: bool
    ports: Optional[str]


HostCheck = TypedDict("HostCheck", {"driver": Optional[str], "findings": List[Finding]})
"""What a check of a host found, and the version of its GPU driver."""


class PreflightResponse(AddressesResponse, HostCheck):
    """``started``: the run has started here before. ``port``: a free one for ``preflight_ports``."""

    time: float
    started: bool
    port: Optional[int]


PortOfRank = TypedDict("PortOfRank", {"addresses": List[str], "port": int})
"""Addresses of a rank's host, the preferred first, and the port on which it listens."""


class PreflightPortsRequest(RootRequest):
    """``token``: identifies this check. ``hosts``: by rank."""

    rank: int
    token: str
    hosts: List[PortOfRank]


PreflightPortsResponse = TypedDict(
    "PreflightPortsResponse", {"unreached": List[int], "mtu": Optional[int], "problem": str}
)
"""Unreached ranks, and the MTU of the interface to rank 0 (of rank 0: to rank 1). ``problem``: why it can't listen."""

PREFLIGHT = Method("preflight", PreflightRequest, PreflightResponse)
"""Check GPUs, disks, clock and limits of the host."""
PREFLIGHT_PORTS = Method("preflight_ports", PreflightPortsRequest, PreflightPortsResponse)
"""Check the connections between the hosts of a gang, both ways."""


CodeRequest = TypedDict("CodeRequest", {"root": str, "digest": str})


class HasCodeRequest(CodeRequest):
    """``lineage``: the state for which the code is kept for an hour."""

    lineage: str


CodeResponse = TypedDict("CodeResponse", {"present": bool, "sha256": Optional[str]})
"""``sha256``: of the archive, which another client may have packed."""

EnvironmentRequest = TypedDict(
    "EnvironmentRequest", {"root": str, "code": str, "requirements": str}
)
"""``code``: digest. ``requirements``: path in the code."""

EnvironmentResponse = TypedDict("EnvironmentResponse", {"venv": str, "built": bool})
RegistryLogin = TypedDict("RegistryLogin", {"registry": str, "username": str, "password": str})


class PullImageRequest(RootRequest):
    """``engine`` null: the first that works."""

    lineage: str
    image: str
    engine: Optional[str]
    login: Optional[RegistryLogin]


EngineInfo = TypedDict("EngineInfo", {"name": str, "version": str, "root_is_user": bool})
"""``root_is_user``: root in a container is the user on the host."""


class ImageInfo(TypedDict):
    """``id`` always names the same image in the engine. ``digest``: of its manifest in the registry, or of the image.

    ``workdir``: its WORKDIR, empty if unset.
    """

    id: str
    digest: str
    workdir: str


class PullImageResponse(ImageInfo):
    """``note``: for the user, may be empty."""

    engine: EngineInfo
    pulled: bool
    note: str


HAS_CODE = Method("has_code", HasCodeRequest, CodeResponse)
"""Report whether the node has a code tree."""
UPLOAD_CODE = Method("upload_code", CodeRequest, CodeResponse)
"""Store a code tree; the payload is its tar."""
READ_CODE = Method("read_code", CodeRequest, bytes)
"""Return the tar of a code tree."""
BUILD_ENVIRONMENT = Method("build_environment", EnvironmentRequest, EnvironmentResponse)
"""Build the virtual environment of a requirements file if it is missing. Events: ``{line}``."""
PULL_IMAGE = Method("pull_image", PullImageRequest, PullImageResponse)
"""Pull a container image unless it is present. Events: ``{line}``."""
