"""Every kind's handler, made from the ports they share; projects, which are only in the state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from trainctl.apply.step import Handler, Lookup, MayStop, Step
from trainctl.jobs.checkpoints import CheckpointAccess
from trainctl.jobs.secrets import Secrets
from trainctl.ledger.state import Intent, Recorded
from trainctl.model.address import Address, Kind
from trainctl.model.delivery import MirrorSite
from trainctl.plan.placement import Planned
from trainctl.plan.values import Observation
from trainctl.resources.agents import Agents, Home, Providers
from trainctl.resources.caches import CacheHandler
from trainctl.resources.clusters import ClusterHandler
from trainctl.resources.jobs import JobHandler
from trainctl.resources.weights import WeightsHandler
from trainctl.spi.provider import Presence
from trainctl.weights.lock import LockEntry
from trainctl.weights.mirrors import Mirror


class ProjectHandler:
    """Keeps a project in the state."""

    def carry_out(self, step: Step) -> Mapping[str, Any]:
        """Nothing to make."""
        return {}

    def delete(self, step: Step) -> None:
        """Nothing to remove."""

    def abandon(self, intent: Intent, lookup: Lookup, may_stop: MayStop) -> Mapping[str, Any]:
        """Nothing can be left."""
        return {}

    def read(self, recorded: Recorded, lookup: Lookup) -> Observation:
        """A project is where the state is."""
        return Observation(Presence.PRESENT)


class Resource(Handler, Protocol):
    """A handler that can also look."""

    def read(self, recorded: Recorded, lookup: Lookup) -> Observation:
        """What is there of a recorded resource. NodeUnreachable where nobody could tell."""
        ...


@dataclass(frozen=True, slots=True)
class Ports:
    """What handlers reach the world through."""

    providers: Providers
    agents: Agents
    mirror: Mirror
    secrets: Secrets
    home: Home
    checkpoints: CheckpointAccess
    delete_checkpoints: bool = False
    planned: Mapping[Address, Planned] = field(default_factory=dict)
    """Where the plan has its new runs."""
    lock: Callable[[LockEntry], None] = lambda _: None
    """Told what a source resolved to when all of it is in the mirror."""
    mirror_at: Callable[[MirrorSite], Mirror] | None = None
    """The mirror that a record names, where it isn't the manifest's any more."""


def handlers(ports: Ports) -> Mapping[Kind, Resource]:
    """A handler for each kind."""
    return {
        Kind.PROJECT: ProjectHandler(),
        Kind.CLUSTER: ClusterHandler(ports.providers, ports.agents, ports.home.lineage),
        Kind.WEIGHTS: WeightsHandler(
            ports.mirror, ports.secrets, ports.home, ports.lock, ports.mirror_at
        ),
        Kind.CACHE: CacheHandler(ports.agents, ports.home.lineage),
        Kind.JOB: JobHandler(
            ports.agents,
            ports.mirror,
            ports.secrets,
            ports.home,
            ports.checkpoints,
            ports.planned,
            delete_checkpoints=ports.delete_checkpoints,
        ),
    }
