"""The handlers of all kinds of resources, and the services they share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, Protocol

from trainctl.apply.step import ApplyStep, MayStop, StepHandler
from trainctl.errors import NodeUnreachable
from trainctl.inputs.checkpoints import CheckpointAccess
from trainctl.ledger.state import Intent, Lookup, RecordedResource
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
from trainctl.secrets.resolver import SecretResolver
from trainctl.weights.lock import LockEntry
from trainctl.weights.mirrors import Mirror


class ProjectHandler:
    """Handles projects, which exist only in the state."""

    def apply(self, step: ApplyStep) -> Mapping[str, Any]:
        """Do nothing."""
        return {}

    def delete(self, step: ApplyStep) -> None:
        """Do nothing."""

    def undo(self, intent: Intent, lookup: Lookup, may_stop: MayStop) -> Mapping[str, Any]:
        """Do nothing."""
        return {}

    def read(self, recorded: RecordedResource, lookup: Lookup) -> Observation:
        """Report the project as present."""
        return Observation(ResourceStatus.PRESENT)


class ResourceHandler(StepHandler, Protocol):
    """A step handler that can also observe a resource."""

    def read(self, recorded: RecordedResource, lookup: Lookup) -> Observation:
        """Observe a recorded resource; NodeUnreachable if its status is unknown."""
        ...


@dataclass(frozen=True, slots=True)
class MachineBoundHandler:
    """Deletes what is on a created machine that doesn't respond along with the machine.

    ``ending``: clusters that the plan deletes or replaces. Elsewhere an unreachable node is an error, as its run may go
    on.
    """

    handler: ResourceHandler
    agents: Agents
    ending: Set[Address]

    def apply(self, step: ApplyStep) -> Mapping[str, Any]:
        return self.handler.apply(step)

    def delete(self, step: ApplyStep) -> None:
        try:
            self.handler.delete(step)
        except NodeUnreachable:
            name = step.recorded.attributes.get("cluster") if step.recorded else None
            address = Address(Kind.CLUSTER, str(name))
            cluster = step.lookup(address) if address in self.ending else None
            if cluster is None or not self.agents.creates_machines(cluster.provider):
                raise
            step.progress("its machine doesn't respond, and is deleted", 0, 0)

    def undo(self, intent: Intent, lookup: Lookup, may_stop: MayStop) -> Mapping[str, Any]:
        return self.handler.undo(intent, lookup, may_stop)

    def read(self, recorded: RecordedResource, lookup: Lookup) -> Observation:
        return self.handler.read(recorded, lookup)


@dataclass(frozen=True, slots=True)
class Services:
    """Shared dependencies of the handlers."""

    providers: Providers
    agents: Agents
    mirror: Mirror
    secrets: SecretResolver
    context: ProjectContext
    checkpoints: CheckpointAccess
    delete_checkpoints: bool = False
    planned: Mapping[Address, PlannedRun] = field(default_factory=dict)
    """The planned placement of new runs."""
    ending: Set[Address] = frozenset()
    """Clusters that the plan deletes or replaces."""
    lock: Callable[[LockEntry], None] = lambda _: None
    """Called with the resolved version of a source once it is mirrored."""
    quarantine: Callable[[Address, str, str], None] = lambda *_: None
    """Quarantine a node: address of its cluster, node id, reason."""
    mirror_at: Callable[[MirrorSite], Mirror] | None = None
    """Open a recorded mirror that is no longer the manifest's."""


def handlers(services: Services) -> Mapping[Kind, ResourceHandler]:
    """Create the handler of each kind."""
    caches = CacheHandler(services.agents, services.context.lineage)
    jobs = JobHandler(
        services.agents,
        services.mirror,
        services.secrets,
        services.context,
        services.checkpoints,
        services.planned,
        services.quarantine,
        delete_checkpoints=services.delete_checkpoints,
    )
    return {
        Kind.PROJECT: ProjectHandler(),
        Kind.CLUSTER: ClusterHandler(services.providers, services.agents, services.context.lineage),
        Kind.WEIGHTS: WeightsHandler(
            services.mirror, services.secrets, services.context, services.lock, services.mirror_at
        ),
        Kind.CACHE: MachineBoundHandler(caches, services.agents, services.ending),
        Kind.JOB: MachineBoundHandler(jobs, services.agents, services.ending),
    }
