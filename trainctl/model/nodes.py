"""Nodes as somebody finds them, as values that are shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class NodeReport:
    """One node. ``presence`` is planned, present, gone, unreachable or unreadable; ``why`` says more where it isn't present.

    ``found`` is what it says of itself, as the node program's ``inspect`` gives it; None where it could not be asked.
    ``limit`` is how many bytes its cache of weights may hold.
    """

    cluster: str
    name: str
    address: str
    presence: str
    why: str = ""
    found: Mapping[str, Any] | None = None
    limit: int | None = None
    runs: tuple[Mapping[str, Any], ...] = ()
    """Recorded live runs that are on it, ``{address, number, project, lineage}``; of those the node knows, its own."""
    lineage: str = ""
    """Of the state from which it was looked at: what has another is another project's."""

    @property
    def id(self) -> str:
        """``cluster/name``."""
        return f"{self.cluster}/{self.name}"


def run_words(run: Mapping[str, Any], lineage: str | None = None) -> str:
    """``job.sft run 3``; with ``of PROJECT`` for a run of another state than ``lineage``."""
    words = f"{run.get('address')} run {run.get('number')}"
    return words if lineage in (None, run.get("lineage")) else f"{words} of {run.get('project')}"
