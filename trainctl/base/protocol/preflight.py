"""Checks of a host before weights are copied to it and before a gang starts."""

from __future__ import annotations

from typing import List, Optional, TypedDict

from trainctl.base.protocol.method import Method, NodeCacheRequest, RootRequest
from trainctl.base.protocol.spec import RunGpus

WARNING, ERROR, FAULT = "warning", "error", "fault"
"""Levels of findings. The run avoids a node with an error; a fault is one of the hardware or driver."""

Finding = TypedDict("Finding", {"check": str, "level": str, "summary": str, "remedy": str})
"""``summary`` continues "NODE: ", ``remedy`` is an imperative sentence."""


def make_finding(check: str, level: str, summary: str, remedy: str) -> Finding:
    """Return a finding."""
    return {"check": check, "level": level, "summary": summary, "remedy": remedy}


class PreflightRequest(NodeCacheRequest):
    """``key``: the run. ``listings``: its weights, of ``probe_bytes`` bytes in total. ``checkpoint_bytes``: disk space they need.

    ``ports``: range of the host's ports for a gang, ``FIRST-LAST`` or empty: any; null: no gang.
    """

    data: str
    key: str
    gpus: RunGpus
    in_container: bool
    listings: List[str]
    probe_bytes: int
    checkpoint_bytes: int
    ports: Optional[str]


class PreflightResponse(TypedDict):
    """``started``: the run has started here before. ``port``: a free one for ``preflight_ports``."""

    time: float
    started: bool
    driver: Optional[str]
    findings: List[Finding]
    addresses: List[str]
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

PREFLIGHT = Method(
    "preflight",
    PreflightRequest,
    PreflightResponse,
    "Check GPUs, disks, clock and limits of the host.",
)
PREFLIGHT_PORTS = Method(
    "preflight_ports",
    PreflightPortsRequest,
    PreflightPortsResponse,
    "Check the connections between the hosts of a gang, both ways.",
)
