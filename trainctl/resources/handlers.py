"""The handlers of all kinds of resources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from trainctl.apply.step import ApplyStep, MayStop, StepHandler
from trainctl.base.lazy_dataclass import dataclass
from trainctl.errors import NodeUnreachable
from trainctl.ledger.state import Intent, Lookup, RecordedResource
from trainctl.model.address import Address, Kind
from trainctl.plan.values import Observation
from trainctl.plugin_api.provider import ResourceStatus
from trainctl.resources.agents import Services
from trainctl.resources.caches import CacheHandler
from trainctl.resources.clusters import ClusterHandler
from trainctl.resources.jobs import JobHandler
from trainctl.resources.weights import WeightsHandler


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

    That is for clusters that the plan deletes or replaces. Elsewhere an unreachable node is an error, as its run may
    continue.
    """

    handler: ResourceHandler
    services: Services

    def apply(self, step: ApplyStep) -> Mapping[str, Any]:
        return self.handler.apply(step)

    def delete(self, step: ApplyStep) -> None:
        try:
            self.handler.delete(step)
        except NodeUnreachable:
            name = step.recorded.attributes.get("cluster") if step.recorded else None
            address = Address(Kind.CLUSTER, str(name))
            cluster = step.lookup(address) if address in self.services.ending else None
            providers = self.services.agents.providers
            if cluster is None or not providers(cluster.provider).capabilities.creates_machines:
                raise
            step.progress("its machine doesn't respond, and is deleted", 0, 0)

    def undo(self, intent: Intent, lookup: Lookup, may_stop: MayStop) -> Mapping[str, Any]:
        return self.handler.undo(intent, lookup, may_stop)

    def read(self, recorded: RecordedResource, lookup: Lookup) -> Observation:
        return self.handler.read(recorded, lookup)


def handlers(services: Services) -> Mapping[Kind, ResourceHandler]:
    """Create the handler of each kind."""
    return {
        Kind.PROJECT: ProjectHandler(),
        Kind.CLUSTER: ClusterHandler(services.agents, services.context.lineage),
        Kind.WEIGHTS: WeightsHandler(services),
        Kind.CACHE: MachineBoundHandler(
            CacheHandler(services.agents, services.context.lineage), services
        ),
        Kind.JOB: MachineBoundHandler(JobHandler(services), services),
    }
