"""Planning context of one address: desired, recorded and observed resource."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from trainctl.ledger.reducer import merge_outputs
from trainctl.ledger.state import Intent, RecordedResource
from trainctl.model.action import Action, ActionReason
from trainctl.model.address import Address, Kind
from trainctl.model.run import RunRecord
from trainctl.model.specs.checks import JobLifecycle
from trainctl.model.specs.resource import DesiredResource
from trainctl.plan.diff import keep_recorded, plain
from trainctl.plan.values import Change, Observation, PlanInputs
from trainctl.plugin_api.provider import Capabilities, ResourceStatus


@dataclass(frozen=True)
class ResourceContext:
    """All that is known of one address; ``resource`` is the desired one.

    ``intent``: the interrupted attempt. ``attempts``: all that may have left something, that one, then failed ones, the
    newest first. ``unrecorded_runs``: observed runs of these. ``replace``: requested by the user. ``destroying``: the
    plan destroys everything. ``capabilities``: those of the desired or recorded provider.
    """

    address: Address
    resource: DesiredResource | None
    recorded: RecordedResource | None
    observed: Observation | None
    intent: Intent | None
    lifecycle: JobLifecycle
    seen: int
    attempts: tuple[Intent, ...] = ()
    unrecorded_runs: tuple[RunRecord, ...] = ()
    replace: bool = False
    destroying: bool = False
    capabilities: Capabilities = field(default_factory=Capabilities)

    @property
    def is_missing(self) -> bool:
        """Whether the recorded resource was observed to be missing."""
        return self.observed is not None and self.observed.status is ResourceStatus.MISSING

    @property
    def other_mirror(self) -> str:
        """The current mirror of weights, if it is not the desired one."""
        return self.observed.other_mirror if self.observed else ""

    @cached_property
    def outputs(self) -> dict[str, Any]:
        """Recorded outputs, updated by observed ones."""
        return merge_observed_outputs(self.recorded, self.observed)

    @cached_property
    def newest_run(self) -> RunRecord | None:
        """The newest run of a job."""
        runs = self.outputs.get("runs")
        return RunRecord.from_json(runs[-1]) if runs else None

    @cached_property
    def before(self) -> dict[str, Any]:
        """Recorded attributes."""
        return dict(plain(self.recorded.attributes)) if self.recorded else {}

    def desired(self, added: dict[str, Any]) -> dict[str, Any]:
        """Return desired and added attributes with ``ignore_changes`` applied."""
        attributes = plain(self.resource.attributes) if self.resource else {}
        return keep_recorded(self.before, {**attributes, **added}, self.lifecycle.ignore_changes)

    def make(
        self, action: Action, after: dict[str, Any], reason: ActionReason | None = None, **more: Any
    ) -> Change:
        """Create a change of a desired resource."""
        assert self.resource is not None  # noqa: S101  (checked by callers)
        created = action is Action.CREATE
        return self._change(
            action,
            self.resource,
            reason=reason,
            before=None if created else self.before,
            after=after,
            outputs={} if created else self.outputs,
            **more,
        )

    def remove(self, action: Action, reason: ActionReason | None = None, **more: Any) -> Change:
        """Create a change that removes a recorded resource."""
        assert self.recorded is not None  # noqa: S101  (checked by callers)
        return self._change(
            action,
            self.recorded,
            reason=reason,
            before=self.before,
            outputs=self.outputs,
            **more,
        )

    def _change(
        self, action: Action, of: DesiredResource | RecordedResource, **more: Any
    ) -> Change:
        return Change(
            address=self.address,
            action=action,
            provider=of.provider,
            depends_on=of.depends_on,
            lifecycle=self.lifecycle,
            seen=self.seen,
            **more,
        )


def merge_observed_outputs(
    recorded: RecordedResource | None, observed: Observation | None
) -> dict[str, Any]:
    """Update recorded outputs with observed ones, runs by their ids."""
    outputs = recorded.outputs if recorded else {}
    return dict(plain(merge_outputs(outputs, observed.outputs) if observed else outputs))


def resource_context(inputs: PlanInputs, address: Address) -> ResourceContext:
    """Collect the context of an address."""
    options, state = inputs.options, inputs.state
    declared = inputs.desired.resources.get(address)
    recorded = state.resources.get(address)
    intent = state.open_intents.get(address)
    resource = recorded if options.destroy else declared or recorded
    provider = resource.provider if resource else ""
    own = declared.lifecycle if declared else recorded.lifecycle if recorded else JobLifecycle()
    return ResourceContext(
        address=address,
        resource=None if options.destroy else declared,
        recorded=recorded,
        observed=_observed(inputs, address),
        intent=intent,
        lifecycle=own,
        seen=state.versions.get(address, 0),
        attempts=state.attempts(address),
        unrecorded_runs=inputs.unrecorded_runs.get(address, ()),
        replace=address in options.replace or address in options.run,
        destroying=options.destroy,
        capabilities=inputs.capabilities.get(provider, Capabilities()),
    )


def _observed(inputs: PlanInputs, address: Address) -> Observation | None:
    """Return the observation; a job is missing if its cluster's only node is."""
    observed = inputs.observed.get(address)
    recorded = inputs.state.resources.get(address)
    unreachable = observed is not None and observed.status is ResourceStatus.UNREACHABLE
    if observed is None or recorded is None or address.kind is not Kind.JOB or not unreachable:
        return observed
    address = recorded.job_spec.cluster_address
    cluster, status = inputs.state.resources.get(address), inputs.observed.get(address)
    single_node = cluster is not None and len(cluster.outputs.get("nodes") or ()) == 1
    if status is not None and status.status is ResourceStatus.MISSING and single_node:
        return replace(observed, status=ResourceStatus.MISSING)
    return observed
