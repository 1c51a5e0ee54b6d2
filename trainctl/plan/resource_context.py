"""Everything that is known of one address, side by side."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from trainctl.ledger.reducer import merge_outputs
from trainctl.ledger.state import Intent, RecordedResource
from trainctl.model.action import Action, ActionReason
from trainctl.model.address import Address, Kind
from trainctl.model.run import RunRecord
from trainctl.model.specs.resource import DesiredResource, LifecycleSpec
from trainctl.plan.diff import keep_recorded, plain
from trainctl.plan.values import Change, Observation, PlanInputs
from trainctl.plugin_api.provider import ResourceStatus


@dataclass(frozen=True)
class ResourceContext:
    """One address: wanted (``resource``), recorded, observed, interrupted (``intent``), asked for (``replace``).

    ``attempts`` are all that may have left something: the interrupted one, then those that failed, the newest first; ``unrecorded_runs``
    the runs that a look found of these.
    ``destroying`` tells a resource that goes with everything from one whose block is gone.
    """

    address: Address
    resource: DesiredResource | None
    recorded: RecordedResource | None
    observed: Observation | None
    intent: Intent | None
    lifecycle: LifecycleSpec
    seen: int
    attempts: tuple[Intent, ...] = ()
    unrecorded_runs: tuple[RunRecord, ...] = ()
    replace: bool = False
    destroying: bool = False

    @property
    def gone(self) -> bool:
        """Whether a look found that the recorded resource isn't there any more."""
        return self.observed is not None and self.observed.status is ResourceStatus.MISSING

    @property
    def other_mirror(self) -> str:
        """Of weights, the mirror that they are in, if the manifest wants another."""
        return self.observed.other_mirror if self.observed else ""

    @cached_property
    def outputs(self) -> dict[str, Any]:
        """The recorded outputs, as observed where something was."""
        return merge_observed_outputs(self.recorded, self.observed)

    @cached_property
    def newest_run(self) -> RunRecord | None:
        """Of a job, its newest run as last seen."""
        runs = self.outputs.get("runs")
        return RunRecord.from_json(runs[-1]) if runs else None

    @cached_property
    def before(self) -> dict[str, Any]:
        """The recorded attributes."""
        return dict(plain(self.recorded.attributes)) if self.recorded else {}

    def wanted(self, added: dict[str, Any]) -> dict[str, Any]:
        """The desired attributes with what planning adds, and recorded values where changes are to be ignored."""
        attributes = plain(self.resource.attributes) if self.resource else {}
        return keep_recorded(self.before, {**attributes, **added}, self.lifecycle.ignore_changes)

    def make(
        self, action: Action, after: dict[str, Any], reason: ActionReason | None = None, **more: Any
    ) -> Change:
        """A change of something that is wanted; of a creation there is no before."""
        assert self.resource is not None  # noqa: S101  (callers look first)
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
        """A change that takes a recorded resource away."""
        assert self.recorded is not None  # noqa: S101  (callers look first)
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
    """Recorded outputs with what a look found; a run's record takes the place of its older one."""
    known = recorded.outputs if recorded else {}
    return dict(plain(merge_outputs(known, observed.outputs) if observed else known))


def resource_context(inputs: PlanInputs, address: Address) -> ResourceContext:
    """What the inputs say about an address."""
    options, state = inputs.options, inputs.state
    declared = inputs.desired.resources.get(address)
    recorded = state.resources.get(address)
    intent = state.open_intents.get(address)
    own = declared.lifecycle if declared else recorded.lifecycle if recorded else LifecycleSpec()
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
    )


def _observed(inputs: PlanInputs, address: Address) -> Observation | None:
    """What a look found; a job that can't be asked about is gone where its only machine is."""
    found = inputs.observed.get(address)
    recorded = inputs.state.resources.get(address)
    unreachable = found is not None and found.status is ResourceStatus.UNREACHABLE
    if found is None or recorded is None or address.kind is not Kind.JOB or not unreachable:
        return found
    cluster = recorded.job_spec.cluster_address
    seen, machine = inputs.observed.get(cluster), inputs.state.resources.get(cluster)
    only_one = machine is not None and len(machine.outputs.get("nodes") or ()) == 1
    if seen is not None and seen.status is ResourceStatus.MISSING and only_one:
        return replace(found, status=ResourceStatus.MISSING)
    return found
