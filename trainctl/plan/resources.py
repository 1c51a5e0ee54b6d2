"""Changes of projects, clusters, weights and caches; the runs and interrupted attempts that a change ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from trainctl.base.json import digest
from trainctl.base.lazy_dataclass import dataclass, field, replace
from trainctl.ledger.reducer import merge_outputs
from trainctl.ledger.state import Intent, RecordedResource
from trainctl.model.action import Action, ActionReason
from trainctl.model.address import STATE_ONLY_KINDS, Address, Kind
from trainctl.model.run import RunRecord, RunStatus
from trainctl.model.specs.checks import JobLifecycle
from trainctl.model.specs.job_spec import JobSpec
from trainctl.model.specs.resource import DesiredResource
from trainctl.plan.changes import REMOVES, keep_recorded, plain
from trainctl.plan.values import AffectedRun, Change, Observation, PlanInputs
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
            self.address,
            action,
            of.provider,
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


_NO_CAPABILITIES = Capabilities()


def resource_context(inputs: PlanInputs, address: Address) -> ResourceContext:
    """Collect the context of an address."""
    options, state = inputs.options, inputs.state
    declared = inputs.desired.resources.get(address)
    recorded = state.resources.get(address)
    resource = recorded if options.destroy else declared or recorded
    provider = resource.provider if resource else ""
    own = declared.lifecycle if declared else recorded.lifecycle if recorded else JobLifecycle()
    return ResourceContext(
        address=address,
        resource=None if options.destroy else declared,
        recorded=recorded,
        observed=_observed(inputs, address),
        intent=state.open_intents.get(address),
        lifecycle=own,
        seen=state.versions.get(address, 0),
        attempts=state.attempts(address),
        unrecorded_runs=inputs.unrecorded_runs.get(address, ()),
        replace=address in options.replace or address in options.run,
        destroying=options.destroy,
        capabilities=inputs.capabilities.get(provider, _NO_CAPABILITIES),
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


ENDED = {
    RunStatus.COMPLETED: "completed",
    RunStatus.FAILED: "failed",
    RunStatus.DEPLOY_FAILED: "could not be deployed",
    RunStatus.STOPPED: "was stopped",
    RunStatus.LOST: "was lost",
}
"""Predicates for "run 3"."""


def live_run(context: ResourceContext) -> AffectedRun | None:
    """Return the live run that a change of this job would stop; None if its machine is gone."""
    is_present = context.address.kind is Kind.JOB and not context.is_missing
    run = context.newest_run if is_present else None
    if run is None or not run.status.live:
        return None
    return _describe_run(run, JobSpec.from_attributes(context.before))


def unrecorded_run(context: ResourceContext, resumed_key: str = "") -> AffectedRun | None:
    """Return the newest live, unrecorded run, except that of a resumed attempt."""
    live = [run for run in context.unrecorded_runs if run.status.live and run.key != resumed_key]
    if not live:
        return None
    attempts = (attempt.attributes for attempt in context.attempts if attempt.key == live[-1].key)
    return _describe_run(live[-1], JobSpec.from_attributes(next(attempts, {})))


def _describe_run(run: RunRecord, job: JobSpec) -> AffectedRun:
    ranks = max(len(run.ranks), 1)
    gpus = (job.compute.gpus or 0) * ranks
    return AffectedRun(run.id, run.number, run.started_at or run.created_at, ranks, gpus)


def run_end_note(context: ResourceContext, run: RunRecord) -> str:
    """Return a note if the run ended since it was recorded, else an empty text."""
    recorded = context.recorded.outputs.get("runs") if context.recorded else None
    if not recorded or run.status not in ENDED:
        return ""
    if RunStatus(recorded[-1].get("status", RunStatus.CREATED)) is run.status:
        return ""
    return f"run {run.number} {ENDED[run.status]}"


_REUSE = Action.REUSE.name.lower()
_REMOVING = frozenset(action.name.lower() for action in REMOVES)
UNDOES_ATTEMPT = "an interrupted attempt is rolled back first"
RESUMES_ATTEMPT = "resumes an earlier attempt"


def is_attempt_at(intent: Intent | None, after: Mapping[str, Any]) -> bool:
    """Whether the interrupted attempt had these values as its goal."""
    if intent is None or intent.action in _REMOVING:
        return False
    return digest(plain(intent.inputs.get("attributes"))) == digest(plain(after))


def with_resumed_attempt(context: ResourceContext, change: Change) -> Change:
    """Add the key of an earlier attempt to resume, and the unrecorded run to stop."""
    if change.action is Action.NOOP:
        return change
    same = next((attempt for attempt in context.attempts if has_same_effect(attempt, change)), None)
    undone = unrecorded_run(context, same.key if same else "")
    change = replace(change, stops=undone) if undone else change
    if same is None:
        return _with_note(change, UNDOES_ATTEMPT) if context.intent else change
    reason = ActionReason.INTERRUPTED if change.action is Action.CREATE else None
    change = replace(change, resumes=same.key, reason=change.reason or reason)
    return _with_note(change, RESUMES_ATTEMPT)


def _with_note(change: Change, note: str) -> Change:
    """Add a note to that of the change, if it isn't there."""
    notes = change.note.split("; ") if change.note else []
    return change if note in notes else replace(change, note="; ".join([*notes, note]))


def plan_cleanup(context: ResourceContext) -> Change | None:
    """Plan the removal of leftovers of an unrecorded resource that isn't desired."""
    if not context.attempts:
        return None
    intent = context.attempts[0]
    return Change(
        context.address,
        Action.DELETE,
        intent.provider,
        ActionReason.INTERRUPTED,
        plain(intent.attributes),
        depends_on=intent.depends_on,
        seen=context.seen,
        note="leftovers of an interrupted attempt are removed",
    )


def has_same_effect(intent: Intent, change: Change) -> bool:
    """Whether an attempt was at the same change, so that its key can be reused."""
    if change.action in REMOVES:
        return intent.action in _REMOVING
    if (change.action is Action.REUSE) is not (intent.action == _REUSE):
        return False
    starts_run, started_run = change.action is not Action.UPDATE, intent.action != "update"
    if change.address.kind is Kind.JOB and starts_run is not started_run:
        return False
    return is_attempt_at(intent, change.after or {})


PLANNED_WEIGHTS_ATTRIBUTES = frozenset({"revision", "pin", "files", "bytes"})

_OUTPUTS = {
    Kind.CLUSTER: ("nodes",),
    Kind.WEIGHTS: ("listing", "mirror", "mirror_endpoint"),
    Kind.CACHE: ("directory",),
}
"""Outputs known only after apply."""

_FIXED = {Kind.CLUSTER: ("provider",), Kind.CACHE: ("project", "cluster", "dir")}
"""Attributes that force a replacement."""


@dataclass(frozen=True, slots=True)
class DesiredValues:
    """Desired attributes, those unknown until apply, and already known outputs."""

    after: dict[str, Any]
    unknown: dict[str, Any] = field(default_factory=dict)
    known_outputs: dict[str, Any] = field(default_factory=dict)


def plan_resource(context: ResourceContext, desired_values: DesiredValues) -> Change:
    """Plan a desired resource other than a job."""
    if context.recorded is None:
        return _make(context, desired_values, Action.CREATE)
    if context.is_missing:
        return _make(context, desired_values, Action.CREATE, ActionReason.MISSING)
    if context.replace:
        return _make(context, desired_values, Action.REPLACE, ActionReason.BY_REQUEST)
    before, after = context.before, desired_values.after
    fixed = _FIXED.get(context.address.kind, ())
    if context.address.kind is Kind.CLUSTER:
        fixed = (*fixed, *context.capabilities.replacement_settings)
    if paths := tuple((name,) for name in fixed if before.get(name) != after.get(name)):
        return _make(
            context, desired_values, Action.REPLACE, ActionReason.CANNOT_UPDATE, replace_paths=paths
        )
    if before != after and _without_nulls(before) != _without_nulls(after):
        differing = {
            key for key in before.keys() | after.keys() if before.get(key) != after.get(key)
        }
        moved = context.address.kind is Kind.WEIGHTS and differing <= PLANNED_WEIGHTS_ATTRIBUTES
        reason = ActionReason.SOURCE_MOVED if moved else None
        return _make(context, desired_values, Action.UPDATE, reason)
    if context.other_mirror:
        note = f"the mirror was {context.other_mirror}"
        return _make(context, desired_values, Action.UPDATE, ActionReason.MIRROR_MOVED, note=note)
    if context.observed is not None and context.observed.recovered_nodes:
        note = f"{', '.join(context.observed.recovered_nodes)} is reachable again"
        return _make(context, desired_values, Action.UPDATE, note=note)
    if context.intent is not None:
        note = "" if is_attempt_at(context.intent, after) else UNDOES_ATTEMPT
        return _make(context, desired_values, Action.UPDATE, ActionReason.INTERRUPTED, note=note)
    return plan_noop(context, after)


def plan_noop(context: ResourceContext, after: dict[str, Any], **more: Any) -> Change:
    """Plan a no-op, or an update if lifecycle settings or dependencies changed."""
    recorded, resource, note = context.recorded, context.resource, ""
    if recorded is not None and resource is not None:
        if recorded.lifecycle != context.lifecycle:
            note = "only lifecycle settings are updated in the state"
        elif set(recorded.depends_on) != set(resource.depends_on):
            note = "only dependencies are updated in the state"
    action = Action.UPDATE if note else Action.NOOP
    more["note"] = ", ".join(part for part in (more.get("note"), note) if part)
    return context.make(action, after, outputs_after=context.outputs, **more)


def plan_unchanged(inputs: PlanInputs, addresses: Iterable[Address]) -> dict[Address, Change]:
    """Plan no-ops for resources that exist only in the state as they are declared; others need a context."""
    options, state, declared = inputs.options, inputs.state, inputs.desired.resources
    if options.destroy or options.refresh_only:
        return {}
    others = {*state.open_intents, *state.orphaned_intents, *options.replace, *options.run}
    others.update(inputs.edits.addresses)
    changes = {}
    for address in addresses:
        recorded, resource = state.resources.get(address), declared.get(address)
        if (
            recorded is not None
            and resource is not None
            and address.kind in STATE_ONLY_KINDS
            and address not in others
            and recorded.attributes == resource.attributes
            and (
                recorded.lifecycle is resource.lifecycle or recorded.lifecycle == resource.lifecycle
            )
            and recorded.depends_on == resource.depends_on
        ):
            changes[address] = Change(
                address,
                Action.NOOP,
                resource.provider,
                before=recorded.attributes,
                after=resource.attributes,
                depends_on=resource.depends_on,
                lifecycle=resource.lifecycle,
                seen=state.versions.get(address, 0),
                outputs=recorded.outputs,
                outputs_after=recorded.outputs,
            )
    return changes


def _without_nulls(attributes: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in attributes.items() if value is not None}


def _make(
    context: ResourceContext,
    desired_values: DesiredValues,
    action: Action,
    reason: ActionReason | None = None,
    **more: Any,
) -> Change:
    names = _OUTPUTS.get(context.address.kind, ())
    if (
        context.address.kind is Kind.WEIGHTS
        and action is Action.UPDATE
        and not context.other_mirror
    ):
        pin = desired_values.after.get("pin")
        names = () if pin and context.before.get("pin") == pin else ("listing",)
    unknown = {
        **desired_values.unknown,
        **{name: True for name in names if name not in desired_values.known_outputs},
    }
    recorded = {} if action is Action.CREATE else context.outputs
    outputs = {**recorded, **desired_values.known_outputs}
    return context.make(
        action,
        desired_values.after,
        reason,
        after_unknown=unknown,
        outputs_after={key: value for key, value in outputs.items() if key not in unknown},
        **more,
    )
