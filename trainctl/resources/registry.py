"""Every kind's handler, made from the ports they share; projects, which are only in the state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from trainctl.apply.step import ApplyStep, Lookup, MayStop, StepHandler
from trainctl.jobs.checkpoints import CheckpointAccess
from trainctl.jobs.secrets import SecretResolver
from trainctl.ledger.state import Intent, RecordedResource
from trainctl.model.address import Address, Kind
from trainctl.model.delivery import MirrorSite
from trainctl.plan.placement import PlannedRun
from trainctl.plan.values import Observation
from trainctl.plugin_api.provider import ResourceStatus
from trainctl.resources.agents import Agents, ProjectContext, Providers
from trainctl.resources.caches import CacheHandler
from trainctl.resources.clusters import ClusterHandler
from trainctl.resources.jobs import JobHandler
from trainctl.resources.weights import WeightsHandler
from trainctl.weights.lock import LockEntry
from trainctl.weights.mirrors import Mirror


class ProjectHandler:
    """Keeps a project in the state."""

    def apply(self, step: ApplyStep) -> Mapping[str, Any]:
        """Nothing to make."""
        return {}

    def delete(self, step: ApplyStep) -> None:
        """Nothing to remove."""

    def abandon(self, intent: Intent, lookup: Lookup, may_stop: MayStop) -> Mapping[str, Any]:
        """Nothing can be left."""
        return {}

    def read(self, recorded: RecordedResource, lookup: Lookup) -> Observation:
        """A project is where the state is."""
        return Observation(ResourceStatus.PRESENT)


class ResourceHandler(StepHandler, Protocol):
    """A handler that can also look."""

    def read(self, recorded: RecordedResource, lookup: Lookup) -> Observation:
        """What is there of a recorded resource. NodeUnreachable where nobody could tell."""
        ...


@dataclass(frozen=True, slots=True)
class Services:
    """What handlers reach the world through."""

    providers: Providers
    agents: Agents
    mirror: Mirror
    secrets: SecretResolver
    context: ProjectContext
    checkpoints: CheckpointAccess
    delete_checkpoints: bool = False
    planned: Mapping[Address, PlannedRun] = field(default_factory=dict)
    """Where the plan has its new runs."""
    lock: Callable[[LockEntry], None] = lambda _: None
    """Told what a source resolved to when all of it is in the mirror."""
    mirror_at: Callable[[MirrorSite], Mirror] | None = None
    """The mirror that a record names, where it isn't the manifest's any more."""


def handlers(services: Services) -> Mapping[Kind, ResourceHandler]:
    """A handler for each kind."""
    return {
        Kind.PROJECT: ProjectHandler(),
        Kind.CLUSTER: ClusterHandler(services.providers, services.agents, services.context.lineage),
        Kind.WEIGHTS: WeightsHandler(
            services.mirror, services.secrets, services.context, services.lock, services.mirror_at
        ),
        Kind.CACHE: CacheHandler(services.agents, services.context.lineage),
        Kind.JOB: JobHandler(
            services.agents,
            services.mirror,
            services.secrets,
            services.context,
            services.checkpoints,
            services.planned,
            delete_checkpoints=services.delete_checkpoints,
        ),
    }
