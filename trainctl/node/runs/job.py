"""What a node reads of the job that a run spec carries: its attributes, as in a plan."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence

from trainctl.base.protocol.runs import RunGpus, RunSpec
from trainctl.base.units import parse_accelerator, parse_duration


def start_commands(spec: RunSpec) -> List[str]:
    """The commands of the job."""
    return [*spec["job"]["runtime"]["start_commands"]]


def with_commands(spec: RunSpec, commands: Sequence[str]) -> RunSpec:
    """The specification with other commands."""
    job = spec["job"]
    runtime = {**job["runtime"], "start_commands": [*commands]}
    changed: RunSpec = {**spec, "job": {**job, "runtime": runtime}}
    return changed


def prepare_commands(spec: RunSpec) -> List[str]:
    """Commands that run once for the project's training cache."""
    cache = spec["job"]["runtime"]["cache_config"]
    return [*(cache["prepare_commands"] or ())] if cache["enabled"] else []


def secret_variables(spec: RunSpec) -> Dict[str, str]:
    """Names of secrets by variable."""
    declared: Mapping[str, Any] = spec["job"]["runtime"]["environment_variables"]
    return {
        name: value["secret"]
        for name, value in declared.items()
        if not isinstance(value, str) and name not in spec["environment"]
    }


def declared_variables(spec: RunSpec) -> Mapping[str, str]:
    """Variables of the job, with names of secrets as values."""
    return {**spec["environment"], **secret_variables(spec)}


class WeightsMount(NamedTuple):
    """Address, listing and place of weights."""

    address: str
    listing: str
    location: str


def weights_of(spec: RunSpec) -> Iterator[WeightsMount]:
    """The weights of the job; a location is relative to the working directory or absolute."""
    for weights in spec["job"]["weights"]:
        address = weights["address"]
        location = weights["mount_location"] or f"weights/{address}"
        yield WeightsMount(address, spec["listings"][address], location)


def gpus_of(spec: RunSpec) -> RunGpus:
    """The GPUs that the job needs here; none if a batch system has granted them."""
    if spec["batch"]:
        return {"count": 0, "kind": "", "declared": 0}
    kind, count = parse_accelerator(spec["job"]["compute"]["accelerator"])
    return {"count": count, "kind": kind, "declared": spec["declared_gpus"]}


def max_duration_seconds(spec: RunSpec) -> Optional[float]:
    """Time limit of the run."""
    limit = spec["job"]["max_duration"]
    return None if limit is None else parse_duration(limit)


def keeps_checkpoints(spec: RunSpec) -> bool:
    """Whether the run stores checkpoints."""
    return bool(spec["job"]["runtime"]["checkpointing_config"]["enabled"])


def upload_seconds(spec: RunSpec) -> float:
    """How long to wait for the last upload when the run ends."""
    return parse_duration(spec["checkpoints"]["upload_timeout"])


def checkpoint_bytes(spec: RunSpec) -> Optional[int]:
    """Size of the run's directory at which the run is stopped."""
    gib = spec["job"]["runtime"]["checkpointing_config"]["volume_size_gib"]
    return gib * 2**30 if gib else None
