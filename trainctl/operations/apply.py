"""Apply a plan: check it, update the lock file, run the engine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

from trainctl.apply.engine import ApplyEngine, ApplyPermissions
from trainctl.apply.interrupt import Interrupt
from trainctl.apply.walk import ApplyResult, effective_changes
from trainctl.errors import PermissionDenied, TrainctlError
from trainctl.ledger.edits import edit
from trainctl.model.action import Action
from trainctl.model.address import Kind
from trainctl.model.events import Emit, Event, EventType
from trainctl.model.specs.job_spec import JobSpec
from trainctl.model.specs.resource import WeightsSpec
from trainctl.model.trust import PolicyResult
from trainctl.operations.machines.quarantine import quarantine_lost_nodes, record_quarantine
from trainctl.operations.review.policies import with_policies
from trainctl.operations.runs.follow import runs_waiting_for_secrets, send_secrets
from trainctl.operations.secrets import trust_violations
from trainctl.operations.workspace import Workspace
from trainctl.plan.placement import planned_runs
from trainctl.plan.plan_file import approval_digests
from trainctl.plan.values import Change, Plan
from trainctl.resources.jobs import deferral_reason
from trainctl.resources.registry import handlers
from trainctl.resources.weights import lock_entry, source_request_of
from trainctl.weights.lock import LockEntry, LockFile, LockKey


@dataclass(frozen=True, slots=True)
class ApplyOptions:
    """Permissions and limits of an apply."""

    permit: ApplyPermissions = ApplyPermissions()
    parallelism: int = 10
    lockfile_readonly: bool = False


def apply(
    workspace: Workspace, plan: Plan, options: ApplyOptions, emit: Emit, interrupt: Interrupt
) -> ApplyResult:
    """Apply an approved plan; refuse it first if anything it needs is missing."""
    _refuse_ephemeral_state(workspace, plan)
    results = _refuse_forbidden(workspace, plan)
    _require_secrets(workspace, plan)
    if not options.lockfile_readonly:
        _lock_mirrored(workspace, plan)
    if not workspace.ledger.state().lineage:
        # The first entry gives the state its lineage, which all names contain.
        workspace.ledger.note("a new state")
    _record_waivers(workspace, plan, results)
    edit(workspace.ledger, plan.edits, plan.digest)
    for address, text in plan.edits.addresses.items():
        emit(Event(EventType.DIAGNOSTIC, text, address))
    approved = approval_digests(plan)
    if approved:
        workspace.ledger.approve(plan.digest, approved)
    quarantine_lost_nodes(workspace.ledger)
    services = workspace.services(delete_checkpoints=plan.options.delete_checkpoints)
    ending = {change.address for change in plan.changes if change.action in _ENDING}
    services = replace(
        services,
        planned=planned_runs(plan),
        ending=ending,
        quarantine=partial(record_quarantine, workspace.ledger),
    )
    if not options.lockfile_readonly:
        services = replace(services, lock=_lock_writer(workspace, plan))
    engine = ApplyEngine(
        workspace.ledger,
        handlers(services),
        emit,
        interrupt,
        workspace.agents.close,
        options.parallelism,
        lambda change: deferral_reason(change, workspace.agents, workspace.ledger.recorded),
    )
    _resume_waiting_runs(workspace, plan, emit)
    if plan.options.refresh_only:
        workspace.ledger.observe_many(
            {change.address: change.after for change in plan.drift if change.after is not None}
        )
    result = engine.run(plan, options.permit)
    workspace.ledger.flush()
    return result


def _resume_waiting_runs(workspace: Workspace, plan: Plan, emit: Emit) -> None:
    """Send secrets to waiting runs that the plan does not change."""
    unchanged = {change.address for change in plan.changes if change.action is Action.NOOP}
    waiting = [run for run in runs_waiting_for_secrets(workspace) if run.job.address in unchanged]
    send_secrets(workspace, waiting, emit)


def _require_secrets(workspace: Workspace, plan: Plan) -> None:
    """Read the plan's secrets, so that a missing one is reported at the start.

    Mirrored weights need none.
    """
    mirrored = {line.address for line in plan.weights if line.listing and not line.bytes_upstream}
    for change in effective_changes(plan.changes).values():
        if change.address in mirrored:
            continue
        try:
            if change.after and change.action in (Action.CREATE, Action.UPDATE, Action.REPLACE):
                _read_secrets(workspace, change)
        except TrainctlError as error:
            error.address = error.address or str(change.address)
            raise


def _read_secrets(workspace: Workspace, change: Change) -> None:
    if change.address.kind is Kind.WEIGHTS:
        weights = WeightsSpec.from_attributes(change.after or {})
        workspace.secrets.declared_credential(weights)
    elif change.address.kind is Kind.JOB and change.action is not Action.UPDATE:
        for name in sorted(_secrets_of_job(workspace, change.job_spec)):
            workspace.secrets.value(name)


def _secrets_of_job(workspace: Workspace, job: JobSpec) -> set[str]:
    """Return the secrets of a run, its image registry and checkpoint store."""
    login = job.image.docker_auth if job.image else None
    names = {*job.runtime.secret_environment.values(), *(login.secrets if login else ())}
    uses_store = job.runtime.checkpointing_config.enabled or job.runtime.loads
    store = workspace.desired.checkpoints.secret
    return names | {store} if uses_store and store else names


_ENDING = frozenset({Action.DELETE, Action.REPLACE})
_UNVERSIONED = ("file:", "s3:", "r2:", "gs:", "azure:")
"""Schemes whose sources have only a current version."""


def _lock_writer(workspace: Workspace, plan: Plan) -> Callable[[LockEntry], None]:
    """Return a function that records a mirrored source in the lock file.

    The entry of an unversioned source is replaced only with ``--upgrade``.
    """
    lock_file, mutex = LockFile(workspace.settings.directory), threading.Lock()

    def put(entry: LockEntry) -> None:
        replaces = plan.options.upgrade or not entry.source.startswith(_UNVERSIONED)
        with mutex:
            lock_file.put([entry], replace=replaces)

    return put


def _lock_mirrored(workspace: Workspace, plan: Plan) -> None:
    """Record mirrored sources in the lock file, and drop undeclared entries.

    An unwritable lock file fails here, before the apply starts.
    """
    lock, directory = LockFile(workspace.settings.directory), workspace.settings.directory
    weights = [
        change for change in plan.changes if change.address.kind is Kind.WEIGHTS and change.after
    ]
    declared = _declared_keys(workspace, plan)
    if weights or (declared is not None and lock.path.exists()):
        mirrored = (item.after for item in weights if item.action is Action.NOOP)
        specs = [WeightsSpec.from_attributes(after) for after in mirrored if after]
        entries = (lock_entry(spec, directory) for spec in specs if spec.pin)
        lock.put(entries, manifest_keys=declared)


def _declared_keys(workspace: Workspace, plan: Plan) -> set[LockKey] | None:
    """Return the lock keys of all declared sources; None if that is unknown."""
    desired, options = workspace.desired, plan.options
    partial = options.targets or options.excludes or options.destroy or options.refresh_only
    if partial or desired.sources_vary:
        return None
    return {
        source_request_of(resource.weights_spec, workspace.settings.directory).key
        for resource in desired.resources.values()
        if resource.address.kind is Kind.WEIGHTS
    }


def _refuse_forbidden(workspace: Workspace, plan: Plan) -> tuple[PolicyResult, ...]:
    """Check policies and trust again: they may differ from those of the plan. Return the policies' results."""
    checked = with_policies(workspace, replace(plan, diagnostics=()))
    trust = () if plan.options.destroy else trust_violations(workspace)
    for violation in (item for item in (*checked.diagnostics, *trust) if item.forbids):
        raise PermissionDenied(
            violation.summary, violation.detail, address=violation.address, code=violation.code
        )
    return checked.policy_results


def _record_waivers(workspace: Workspace, plan: Plan, results: Iterable[PolicyResult]) -> None:
    """Add the waivers that a plan needs to the history, with the actor."""
    for result in results:
        if result.waiver and plan.has_changes:
            text = f"policy {result.policy!r} {result.waiver}"
            workspace.ledger.note(f"{text}; plan {plan.digest}")


def _refuse_ephemeral_state(workspace: Workspace, plan: Plan) -> None:
    """Refuse a new local state on a CI runner, which would be lost with it."""
    if plan.lineage or not workspace.settings.environ.get("CI") or not workspace.state_is_default:
        return
    clusters = [change for change in plan.changes if change.address.kind is Kind.CLUSTER]
    if any(change.provider != "local" for change in clusters):
        raise PermissionDenied(
            "a new state in this directory would be lost with the CI runner",
            "Use a location that the next run can read: set `state: {url: …}` or --state URL.",
            code="ephemeral-state",
        )
