"""Checks that the weights of new runs fit on their nodes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping

from trainctl.base.units import format_bytes
from trainctl.model.action import ActionReason
from trainctl.model.address import Address
from trainctl.model.diagnostics import Diagnostic, error, warning
from trainctl.plan.values import Change, DeliveryRow, NodeFacts

WAITING_FOR_SPACE = "waiting-for-disk-space"
"""Code of the warning that a run waits until live runs release disk space."""

_ASK_AGAIN = "Run it again when other runs have ended."
_RESUME_HINT = (
    "It starts with trainctl reconcile, apply --wait or a later apply, when other runs have ended."
)

RowsByContent = Mapping[str, DeliveryRow]
"""Deliveries of a job to a node by content: equal weights are stored once."""


def available_space(facts: NodeFacts) -> int:
    """Return the bytes available for weights on a node."""
    space = facts.cached.get("room")
    if space is None:
        space = facts.reported["disk_free"]
    return sys.maxsize if space is None else space


def space_problems(
    facts: Mapping[str, NodeFacts], jobs: Iterable[Change], rows: Iterable[DeliveryRow]
) -> Iterator[Diagnostic]:
    """Report weights that never fit on a node (error) or must wait (warning)."""
    by_address = {job.address: job for job in jobs}
    needs: dict[str, dict[Address, dict[str, DeliveryRow]]] = {}
    for row in rows:
        if row.node in facts and row.node is not None and row.tiers is not None:
            needs.setdefault(row.node, {}).setdefault(row.job, {})[row.content] = row
    for node, of_jobs in sorted(needs.items()):
        yield from _node_problems(facts[node], of_jobs, by_address)


def _node_problems(
    facts: NodeFacts, jobs: Mapping[Address, RowsByContent], changes: Mapping[Address, Change]
) -> Iterator[Diagnostic]:
    demands = {job: _cache_demand(facts, rows.values()) for job, rows in jobs.items()}
    tight = {job: demand for job, demand in demands.items() if demand > available_space(facts)}
    for job, demand in sorted(tight.items()):
        has, needs = _space_text(facts), format_bytes(demand)
        if not _will_fit(facts, jobs[job]):
            yield error(
                f"{has} but needs {needs} for weights",
                f"Free disk space there, {_enlarge_hint(facts)}, or narrow allow_patterns. Weights that no live run uses are evicted automatically.",
                address=str(job),
                code="insufficient-disk-space",
            )
        elif changes[job].stops is None:  # otherwise the stopped run releases its space
            by_request = changes[job].reason is ActionReason.BY_REQUEST
            yield warning(
                f"{has} in addition to live runs, but needs {needs} for weights: the job waits",
                f"{_ASK_AGAIN if by_request else _RESUME_HINT} To run both at the same time, {_enlarge_hint(facts)}.",
                address=str(job),
                code=WAITING_FOR_SPACE,
            )
    all_rows = {content: row for rows in jobs.values() for content, row in rows.items()}
    together = _cache_demand(facts, all_rows.values())
    if not tight and together > available_space(facts):
        has, needs = _space_text(facts), format_bytes(together)
        yield warning(
            f"{has} for weights, but needs {needs} to run all jobs at the same time",
            f"Affected jobs: {', '.join(sorted(map(str, jobs)))}. Jobs that don't fit wait. {_RESUME_HINT}",
            address=str(min(jobs)),
            code="insufficient-disk-space",
        )


def _cache_demand(facts: NodeFacts, rows: Iterable[DeliveryRow]) -> int:
    return sum(_space_needed(facts, row) for row in rows)


def _space_text(facts: NodeFacts) -> str:
    limit = "" if facts.limit is None else f" of {format_bytes(facts.limit)}"
    return f"{facts.id} has {format_bytes(available_space(facts))}{limit} free"


def _enlarge_hint(facts: NodeFacts) -> str:
    limit = "" if facts.limit is None else ", raise cache.node.size"
    return f"use a larger disk for the node cache{limit}"


def _space_needed(facts: NodeFacts, row: DeliveryRow) -> int:
    """Return the bytes that a delivery needs; blobs of live runs can't be evicted."""
    missing = row.tiers.missing if row.tiers else 0
    return missing if facts.cached.get("room") is None else facts.claims.get(row.weights, missing)


def _will_fit(facts: NodeFacts, needs: RowsByContent) -> bool:
    """Whether the weights of a job fit without other runs."""
    total = sum(row.tiers.total for row in needs.values() if row.tiers)
    most = facts.cached.get("most")
    return most is not None and total <= most
