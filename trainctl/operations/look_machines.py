"""Whether machines have the processors and the memory that jobs ask for: told when it is planned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trainctl.desired.values import Desired
from trainctl.model.address import Address
from trainctl.model.diagnostics import Diagnostic, error
from trainctl.model.resource import Resource
from trainctl.plan.placement import Wanted
from trainctl.plan.values import NodeFacts

_NAMED = 4


def machine_problems(
    desired: Desired, cluster: Address, nodes: int, facts: Sequence[NodeFacts]
) -> Iterator[Diagnostic]:
    """An error for each job that asks for more than enough of its ``nodes`` have; none while one of these could not be asked."""
    if len(facts) < nodes or not facts:
        return
    for job in desired.jobs_on(cluster):
        yield from _of_job(job, cluster, facts)


def _of_job(job: Resource, cluster: Address, facts: Sequence[NodeFacts]) -> Iterator[Diagnostic]:
    wanted = Wanted.by(job.attributes)
    if (
        wanted.nodes > len(facts)
        or sum(wanted.fits(one.cpus, one.memory) for one in facts) >= wanted.nodes
    ):
        return  # too few nodes are another error
    compute = job.attributes["compute"]
    asked = (
        f"{wanted.cpus} processors" if wanted.cpus else "",
        f"{compute['memory']} of memory" if wanted.memory else "",
    )
    yield error(
        f"{' and '.join(filter(None, asked))} are wanted of each node, and {cluster} has too few such",
        f"{_largest(facts)}. Lower compute.cpu_count or compute.memory, or run the job on another cluster.",
        address=str(job.address),
        where=job.where,
        code="machine-too-small",
    )


def _largest(facts: Sequence[NodeFacts]) -> str:
    """What machines there are; of many those with the most memory."""
    ordered = sorted(facts, key=lambda one: (-one.memory, -one.cpus, one.id))
    told = [
        f"{one.id} has {one.cpus} processors and {one.memory / 2**30:.1f}Gi"
        for one in ordered[:_NAMED]
    ]
    more = len(facts) - _NAMED
    return "; ".join([*told, *([f"and {more} more"] if more > 0 else [])])
