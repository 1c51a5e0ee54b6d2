"""Optional interface of providers that list their machines, also those of no state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from trainctl.plugin_api.provider import ClusterSettings


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine that trainctl created, as its provider reports it.

    ``cluster``, ``node``, ``lineage`` and ``key`` are those recorded with the machine when it was created.
    """

    id: str
    cluster: str
    node: str
    lineage: str
    key: str
    state: str
    """The provider's word for the state, such as ``running``."""
    type: str = ""
    zone: str = ""
    launched_at: float | None = None
    """Seconds since the epoch."""
    price_per_hour: float | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    """Members that the provider's ``end`` needs, such as the region."""


@runtime_checkable
class ListsMachines(Protocol):
    """A provider that lists and ends machines without a state."""

    def machines(self, cluster: ClusterSettings) -> Sequence[Machine]:
        """Return all existing machines of trainctl that the account has, of any cluster and lineage.

        The settings of ``cluster`` say where to look, such as in which region. Raises NodeError or NodeUnreachable.
        """
        ...

    def end(self, machine: Machine) -> None:
        """Delete a machine; no error if it doesn't exist."""
        ...
