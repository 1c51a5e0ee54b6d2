"""What a job asks of each of its nodes."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from trainctl.manifest.types.base import ManifestSection, validation_error

MEMORY = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:[kMGTPE]|[KMGTPE]i)?")
ACCELERATOR = re.compile(r"([A-Za-z][A-Za-z0-9_-]*)(?::([0-9]+))?")
KNOWN_ACCELERATORS = (
    *("B10", "T4", "L4", "A10G", "V100", "A100", "A100_40GB", "H100", "H200", "H100_40GB", "B200"),
    *("L40S", "RTX_PRO_6000", "B300", "GB300"),
)
"""The service's names: they feed suggestions only; what counts is what hosts report."""


def _memory(text: str) -> str:
    if MEMORY.fullmatch(text) is None:
        raise validation_error(
            "not an amount of memory",
            "Use a number with k, M, G, T, Ki, Mi, Gi or Ti, for example 64Gi or 64G.",
            code="invalid-size",
        )
    return text


def _accelerator(text: str) -> str:
    match = ACCELERATOR.fullmatch(text)
    if match is None:
        raise validation_error(
            "not TYPE or TYPE:COUNT",
            "Use for example H100 or H100:8.",
            code="invalid-accelerator",
        )
    if match[2] is None:
        return text
    if len(match[2]) > 4 or int(match[2]) == 0:
        raise validation_error(
            "the number of accelerators must be between 1 and 9999",
            "Use for example H100:8.",
            code="invalid-accelerator",
        )
    return match[1] if int(match[2]) == 1 else f"{match[1]}:{int(match[2])}"


class Compute(ManifestSection):
    """Resources of a job, per node."""

    node_count: Annotated[int, Field(ge=1)] = 1
    """Number of nodes."""
    cpu_count: Annotated[int, Field(ge=1)] | None = None
    """Processors per node; default: all."""
    memory: (
        Annotated[
            str,
            AfterValidator(_memory),
            Field(json_schema_extra={"pattern": f"^{MEMORY.pattern}$"}),
        ]
        | None
    ) = None
    """Memory per node, for example 64Gi."""
    accelerator: (
        Annotated[
            str,
            AfterValidator(_accelerator),
            Field(json_schema_extra={"pattern": f"^{ACCELERATOR.pattern}$"}),
        ]
        | None
    ) = None
    """GPUs per node, as ``TYPE`` or ``TYPE:COUNT``, for example H100:8; default: all GPUs of the
    host."""
    availability_model: Literal["dedicated", "spot"] = "dedicated"
    """``dedicated`` nodes, or cheaper ``spot`` nodes that can be preempted."""
