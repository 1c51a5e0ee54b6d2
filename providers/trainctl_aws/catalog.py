"""Instance types that trainctl knows, their prices on one date, and the quotas that limit them."""

from __future__ import annotations

from trainctl.base.lazy_dataclass import dataclass

PRICE_DATE = "2025-06-15"
"""Date of the prices below."""
PRICE_REGION = "us-east-1"
"""Region of the prices below."""


@dataclass(frozen=True, slots=True)
class InstanceType:
    """An instance type; ``network_cards`` is the number of its interfaces for EFA, 0 without EFA."""

    name: str
    gpus: int
    gpu_kind: str
    vcpus: int
    price: float
    """On-demand price per hour of Linux in USD."""
    network_cards: int = 0


_TYPES = (
    InstanceType("p6-b200.48xlarge", 8, "B200", 192, 113.9328, 8),
    InstanceType("p5en.48xlarge", 8, "H200", 192, 63.296, 16),
    InstanceType("p5.48xlarge", 8, "H100", 192, 55.04, 32),
    InstanceType("p5.4xlarge", 1, "H100", 16, 6.88, 1),
    InstanceType("p4de.24xlarge", 8, "A100", 96, 27.447, 4),
    InstanceType("p4d.24xlarge", 8, "A100_40GB", 96, 21.958, 4),
    InstanceType("p3.2xlarge", 1, "V100", 8, 3.06),
    InstanceType("p3.8xlarge", 4, "V100", 32, 12.24),
    InstanceType("p3.16xlarge", 8, "V100", 64, 24.48),
    InstanceType("g6e.xlarge", 1, "L40S", 4, 1.861),
    InstanceType("g6e.12xlarge", 4, "L40S", 48, 10.493, 1),
    InstanceType("g6e.48xlarge", 8, "L40S", 192, 30.131, 4),
    InstanceType("g6.xlarge", 1, "L4", 4, 0.8048),
    InstanceType("g6.12xlarge", 4, "L4", 48, 4.6016),
    InstanceType("g6.48xlarge", 8, "L4", 192, 13.3504, 1),
    InstanceType("g5.xlarge", 1, "A10G", 4, 1.006),
    InstanceType("g5.2xlarge", 1, "A10G", 8, 1.212),
    InstanceType("g5.12xlarge", 4, "A10G", 48, 5.672),
    InstanceType("g5.48xlarge", 8, "A10G", 192, 16.288, 1),
    InstanceType("g4dn.xlarge", 1, "T4", 4, 0.526),
    InstanceType("g4dn.12xlarge", 4, "T4", 48, 3.912),
    InstanceType("g4dn.metal", 8, "T4", 96, 7.824, 1),
    InstanceType("m7i.xlarge", 0, "", 4, 0.2016),
    InstanceType("c7i.4xlarge", 0, "", 16, 0.714),
    InstanceType("t3.micro", 0, "", 2, 0.0104),
    InstanceType("t3.small", 0, "", 2, 0.0208),
)
TYPES = {known.name: known for known in _TYPES}
ACCELERATORS = tuple(dict.fromkeys(known.gpu_kind for known in _TYPES if known.gpus))


def types_with(accelerator: str, count: int) -> tuple[str, ...]:
    """Return the types with this number of GPUs of a kind, the cheapest first."""
    found = [t for t in _TYPES if t.gpu_kind == accelerator and t.gpus == count]
    return tuple(t.name for t in sorted(found, key=lambda known: known.price))


def counts_of(accelerator: str) -> tuple[int, ...]:
    """Return the numbers of GPUs of a kind that a machine can have."""
    return tuple(sorted({known.gpus for known in _TYPES if known.gpu_kind == accelerator}))


@dataclass(frozen=True, slots=True)
class ServiceQuota:
    """A service quota of EC2, in vCPUs of running instances."""

    code: str
    name: str


_STANDARD = ServiceQuota(
    "L-1216C47A", "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances"
)
_SPOT_STANDARD = ServiceQuota(
    "L-34B43A08", "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests"
)
_ON_DEMAND = {
    "p": ServiceQuota("L-417A185B", "Running On-Demand P instances"),
    "g": ServiceQuota("L-DB2E81BA", "Running On-Demand G and VT instances"),
}
_SPOT = {
    "p": ServiceQuota("L-7212CCBC", "All P4, P3 and P2 Spot Instance Requests"),
    "p5": ServiceQuota("L-C4BD4855", "All P5 Spot Instance Requests"),
    "g": ServiceQuota("L-3819A6DF", "All G and VT Spot Instance Requests"),
}


def quota_of(instance_type: str, *, spot: bool) -> ServiceQuota:
    """Return the quota that limits instances of a type."""
    if not spot:
        return _ON_DEMAND.get(instance_type[0], _STANDARD)
    family = "p5" if instance_type.startswith("p5") else instance_type[0]
    return _SPOT.get(family, _SPOT_STANDARD)
