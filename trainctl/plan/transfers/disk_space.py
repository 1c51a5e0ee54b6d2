"""Whether the weights of new runs find room on their nodes: now, once others have ended, or never."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from trainctl.base.units import format_bytes
from trainctl.model.action import ActionReason
from trainctl.model.address import Address
from trainctl.model.diagnostics import Diagnostic, error, warning
from trainctl.plan.values import Change, DeliveryRow, NodeFacts

WAITING_FOR_SPACE = "waiting-for-disk-space"
"""The code of the warning that a run will wait, as there is no room for its weights beside those of live runs."""

_ASK_AGAIN = "Run it again when other runs have ended."
_RESUME_HINT = (
    "It starts with trainctl reconcile, apply --wait or a later apply, when other runs have ended."
)

Lines = Mapping[str, DeliveryRow]
"""What one job needs of one node, by content: what two weights name lies there once."""


def available_space(seen: NodeFacts) -> int:
    """Bytes that weights may still take on a node, as far as it told."""
    return seen.disk_free if seen.room is None else seen.room


def space_problems(
    facts: Mapping[str, NodeFacts], jobs: Iterable[Change], lines: Iterable[DeliveryRow]
) -> Iterator[Diagnostic]:
    """An error for weights that a node can never hold; a warning where that is only for now, or for all jobs together."""
    by_address = {job.address: job for job in jobs}
    needs: dict[str, dict[Address, dict[str, DeliveryRow]]] = {}
    for line in lines:
        if line.node in facts and line.node is not None and line.tiers is not None:
            needs.setdefault(line.node, {}).setdefault(line.job, {})[line.content] = line
    for node, of_jobs in sorted(needs.items()):
        yield from _of_node(facts[node], of_jobs, by_address)


def _of_node(
    seen: NodeFacts, jobs: Mapping[Address, Lines], changes: Mapping[Address, Change]
) -> Iterator[Diagnostic]:
    wishes = {job: _cache_demand(seen, own) for job, own in jobs.items()}
    tight = {job: wish for job, wish in wishes.items() if wish > available_space(seen)}
    for job, wish in sorted(tight.items()):
        has, needs = _space_text(seen), format_bytes(wish)
        if not _will_fit(seen, jobs[job]):
            yield error(
                f"{has} but needs {needs} for weights",
                f"Free disk space there, {_enlarge_hint(seen)}, or narrow allow_patterns. Weights that no live run uses are evicted automatically.",
                address=str(job),
                code="insufficient-disk-space",
            )
        elif changes[job].stops is None:  # what its own run has there is free when its turn comes
            asked = changes[job].reason is ActionReason.BY_REQUEST
            yield warning(
                f"{has} in addition to live runs, but needs {needs} for weights: the job waits",
                f"{_ASK_AGAIN if asked else _RESUME_HINT} To run both at the same time, {_enlarge_hint(seen)}.",
                address=str(job),
                code=WAITING_FOR_SPACE,
            )
    together = _cache_demand(
        seen, {one: line for own in jobs.values() for one, line in own.items()}
    )
    if not tight and together > available_space(seen):
        has, needs = _space_text(seen), format_bytes(together)
        yield warning(
            f"{has} for weights, but needs {needs} to run all jobs at the same time",
            f"Affected jobs: {', '.join(sorted(map(str, jobs)))}. Jobs that don't fit wait. {_RESUME_HINT}",
            address=str(min(jobs)),
            code="insufficient-disk-space",
        )


def _cache_demand(seen: NodeFacts, lines: Lines) -> int:
    """Bytes that weights take in the node's cache."""
    return sum(_space_needed(seen, line) for line in lines.values())


def _space_text(seen: NodeFacts) -> str:
    limit = "" if seen.limit is None else f" of {format_bytes(seen.limit)}"
    return f"{seen.id} has {format_bytes(available_space(seen))}{limit} free"


def _enlarge_hint(seen: NodeFacts) -> str:
    """What gives a node more room."""
    limit = "" if seen.limit is None else ", raise cache.node.size"
    return f"use a larger disk for the node cache{limit}"


def _space_needed(seen: NodeFacts, line: DeliveryRow) -> int:
    """Bytes that the weights take of the room: all that no live run has there, as the rest makes room; else what is missing."""
    missing = line.tiers.missing if line.tiers else 0
    return missing if seen.room is None else seen.claims.get(line.weights, missing)


def _will_fit(seen: NodeFacts, needs: Lines) -> bool:
    """Whether a job's weights fit where nothing else is needed."""
    alone = sum(line.tiers.total for line in needs.values() if line.tiers)
    return seen.most is not None and alone <= seen.most
