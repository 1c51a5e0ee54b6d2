"""Check that nodes have the processors, memory and GPUs that jobs require."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from trainctl.model.address import Address
from trainctl.model.diagnostics import Diagnostic, error, warning
from trainctl.model.specs.resource import DesiredResource
from trainctl.plan.placement import is_large_enough
from trainctl.plan.values import NodeFacts
from trainctl.plugin_api.provider import Node

if TYPE_CHECKING:
    from trainctl.base.protocol.host import HostGpuFacts


def gpu_problems(
    cluster: DesiredResource,
    jobs: Sequence[DesiredResource],
    nodes: Sequence[Node],
    facts: Sequence[NodeFacts],
) -> Iterator[Diagnostic]:
    """Find jobs whose GPUs no node has, and nodes with fewer GPUs than declared.

    Unreachable nodes count with their declared GPUs.
    """
    facts_by_node = {fact.id: fact for fact in facts}
    for node in nodes:
        reported = facts_by_node[node.id].reported["gpus"] if node.id in facts_by_node else ()
        if reported and (node.gpus or 0) > len(reported):
            yield error(
                f"{node.gpus} GPUs are declared for {node.id}, but it has {_gpu_list(reported)}",
                f"Set `gpus` of {cluster.address} to {len(reported)}.",
                address=str(cluster.address),
                code="too-few-gpus",
            )
    unknown = any(node.gpus is None and node.id not in facts_by_node for node in nodes)
    for job in () if unknown else jobs:
        yield from _job_gpu_problems(job, cluster, nodes, facts_by_node)
    broken = _broken_tools(nodes, facts_by_node)
    if broken and any(job.job_spec.compute.gpus is None for job in jobs):
        yield warning(
            broken,
            "Jobs without compute.accelerator run without GPUs there.",
            address=str(cluster.address),
            code="gpu-query-failed",
        )


def _job_gpu_problems(
    job: DesiredResource,
    cluster: DesiredResource,
    nodes: Sequence[Node],
    facts_by_node: Mapping[str, NodeFacts],
) -> Iterator[Diagnostic]:
    compute = job.job_spec.compute
    required, kind, node_count = compute.gpus, compute.gpu_kind, compute.node_count
    usable = {node.id: _usable_count(node, facts_by_node.get(node.id), kind) for node in nodes}
    broken = _broken_tools(nodes, facts_by_node)
    placeable = _placeable_ranks(nodes, usable, required)
    if 0 < placeable < node_count <= len(nodes):
        per_node = _gpu_count_text(required, kind) if required else "all GPUs"
        shares_machine = len(set(map(_machine_id, nodes))) < len(nodes)
        shared = ", where nodes share a machine" if shares_machine else ""
        yield error(
            f"{node_count} nodes with {per_node} each are needed, but {cluster.address} has room for {placeable}{shared}",
            _join_details(
                broken,
                "Lower compute.node_count, change compute.accelerator, or run the job on another cluster.",
            ),
            address=str(job.address),
            code="too-few-nodes",
        )
    if required is None:
        return
    most = max((_usable_count(node, facts_by_node.get(node.id)) for node in nodes), default=0)
    if required > most:
        yield error(
            f"each node needs {_gpu_count_text(required)}, but {cluster.address} has {most}",
            _join_details(broken, "" if broken and not most else _remedy(cluster, required)),
            address=str(job.address),
            code="too-few-gpus",
        )
        return
    if not placeable:
        listed = "; ".join(
            f"{node.id} has {_gpu_list(gpus)}"
            for node in nodes
            if node.id in facts_by_node and (gpus := facts_by_node[node.id].reported["gpus"])
        )
        yield error(
            f"each node needs {_gpu_count_text(required, kind)}: {listed}",
            _join_details(broken, "Change compute.accelerator, or run the job on another cluster."),
            address=str(job.address),
            code="gpu-type-mismatch",
        )


def _remedy(cluster: DesiredResource, required: int) -> str:
    """Return the hint; the implicit local cluster reports its own GPUs."""
    if "gpus" not in cluster.attributes:
        return f"Run the job on hosts with such GPUs, or change compute.accelerator: {cluster.address} reports its own GPUs."
    name = cluster.address.name
    section = f"clusters: {{{name}: {{provider: {cluster.provider}, gpus: {required}}}}}"
    return (
        f"If the nodes have GPUs, declare them: `{section}`. Otherwise change compute.accelerator."
    )


def _gpu_count_text(count: int, kind: str = "") -> str:
    return f"{count} {kind} GPU{'s' if count > 1 else ''}".replace("  ", " ")


def _placeable_ranks(nodes: Sequence[Node], usable: Mapping[str, int], required: int | None) -> int:
    """Count ranks that get GPUs at the same time; nodes of a machine share them."""
    machines: dict[str, list[int]] = {}
    for node in nodes:
        machines.setdefault(_machine_id(node), []).append(usable[node.id])
    ranks = 0
    for counts in machines.values():
        per_rank = max(counts) if required is None else required
        fitting = sum(1 for count in counts if count >= per_rank)
        ranks += min(fitting, max(counts) // per_rank) if per_rank else fitting
    return ranks


def _machine_id(node: Node) -> str:
    """Return an id of the node's machine: its address and connection details."""
    return json.dumps([node.address, node.details], sort_keys=True)


def _broken_tools(nodes: Sequence[Node], facts_by_node: Mapping[str, NodeFacts]) -> str:
    """List failures of GPU tools: ``nvidia-smi on lab/gpu-1 exits with 18: …``."""
    failures = []
    for node in nodes:
        facts = facts_by_node.get(node.id)
        problem = facts.reported["gpus_problem"] if facts else None
        if node.gpus != 0 and problem:
            tool, _, failure = " ".join(problem.split()).partition(" ")
            failures.append(f"{tool} on {node.id} {failure}")
    return "; ".join(failures)


def _join_details(broken: str, remedy: str) -> str:
    return ". ".join(filter(None, (broken, remedy)))


def _usable_count(node: Node, facts: NodeFacts | None, kind: str = "") -> int:
    return facts.usable_gpus(kind) if facts else node.gpus or 0


def _gpu_list(gpus: Sequence[HostGpuFacts]) -> str:
    """Format GPUs: ``8 x NVIDIA H100 80GB HBM3``."""
    counts = Counter(gpu["name"] for gpu in gpus)
    return ", ".join(f"{count} \u00d7 {name}" for name, count in sorted(counts.items()))


_MOST_NAMED = 4


def machine_problems(
    cluster: Address, jobs: Iterable[DesiredResource], nodes: int, facts: Sequence[NodeFacts]
) -> Iterator[Diagnostic]:
    """Find jobs whose processors or memory too few nodes have."""
    if len(facts) < nodes or not facts:
        return
    for job in jobs:
        compute = job.job_spec.compute
        fitting = sum(
            is_large_enough(compute, fact.reported["cpus"], fact.reported["memory"])
            for fact in facts
        )
        if compute.node_count > len(facts) or fitting >= compute.node_count:
            continue  # too few nodes are another error
        ordered = sorted(
            facts, key=lambda node: (-node.reported["memory"], -node.reported["cpus"], node.id)
        )
        machines = [
            f"{node.id} has {node.reported['cpus']} processors and {node.reported['memory'] / 2**30:.1f}Gi"
            for node in ordered[:_MOST_NAMED]
        ]
        if len(facts) > _MOST_NAMED:
            machines.append(f"and {len(facts) - _MOST_NAMED} more")
        required = (
            f"{compute.cpu_count} processors" if compute.cpu_count else "",
            f"{compute.memory} of memory" if compute.memory else "",
        )
        yield error(
            f"{' and '.join(filter(None, required))} needed per node, but {cluster} has too few such nodes",
            f"{'; '.join(machines)}. Lower compute.cpu_count or compute.memory, or run the job on another cluster.",
            address=str(job.address),
            code="machine-too-small",
        )
