"""Nodes that could not be asked, beside an answer that others gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trainctl.errors import NodeUnreachable
from trainctl.model.run import RunRecord


@dataclass(frozen=True, slots=True)
class Away:
    """A node, the ranks of which nobody else could tell, and why it could not be asked."""

    node: str
    ranks: tuple[int, ...]
    why: str


def away_of(run: RunRecord, silent: Mapping[int, NodeUnreachable]) -> tuple[Away, ...]:
    """The nodes of the ranks that could not be asked, each once, in rank order."""
    found: dict[str, list[int]] = {}
    why: dict[str, str] = {}
    for rank in run.ranks:
        if rank.rank in silent:
            found.setdefault(rank.node, []).append(rank.rank)
            why.setdefault(rank.node, silent[rank.rank].summary)
    return tuple(Away(node, tuple(ranks), why[node]) for node, ranks in found.items())
