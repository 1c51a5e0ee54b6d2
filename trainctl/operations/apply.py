"""Apply a plan: check it, update the lock file, run the engine."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from trainctl.apply.engine import ApplyEngine, ApplyPermissions
from trainctl.apply.interrupt import Interrupt
from trainctl.apply.walk import ApplyResult, effective_changes
from trainctl.base.lazy_dataclass import dataclass, replace
from trainctl.errors import PermissionDenied, TrainctlError
from trainctl.ledger.edits import edit
from trainctl.model.action import Action
from trainctl.model.address import Kind
from trainctl.model.events import Emit, Event, EventType
from trainctl.model.specs.resource import WeightsSpec
from trainctl.model.trust import PolicyResult
from trainctl.operations.directories import default_state_url, split_environment
from trainctl.operations.nodes import quarantine_lost_nodes, record_quarantine
from trainctl.operations.policies import with_policies
from trainctl.operations.runs.control import runs_waiting_for_secrets, send_secrets
from trainctl.operations.runs.lookup import JobRun, keep_points
from trainctl.operations.secrets import trust_violations
from trainctl.operations.workspace import Workspace
from trainctl.plan.placement import planned_runs
from trainctl.plan.plan_file import approval_digests
from trainctl.plan.values import Plan
from trainctl.resources.handlers import handlers
from trainctl.resources.jobs import deferral_reason
from trainctl.resources.runs.run_control import runs_of
from trainctl.resources.weights import lock_entry
from trainctl.weights.lock import LockEntry, LockFile


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
    policies = _refuse_forbidden(workspace, plan)
    _require_secrets(workspace, plan)
    if not options.lockfile_readonly:
        _lock_mirrored(workspace, plan)
    if not workspace.ledger.state().lineage:
        # The first entry gives the state its lineage, which all names contain.
        workspace.ledger.note("a new state")
    for policy in policies if plan.has_changes else ():
        if policy.waiver:
            text = f"policy {policy.policy!r} {policy.waiver}"
            workspace.ledger.note(f"{text}; plan {plan.digest}")
    edit(workspace.ledger, plan.edits, plan.digest)
    for address, text in plan.edits.addresses.items():
        emit(Event(EventType.DIAGNOSTIC, text, address))
    approved = approval_digests(plan)
    if approved:
        workspace.ledger.approve(plan.digest, approved)
    quarantine_lost_nodes(workspace.ledger)
    services = replace(
        workspace.services(delete_checkpoints=plan.options.delete_checkpoints),
        planned=planned_runs(plan),
        ending={
            change.address
            for change in plan.acting
            if change.action in (Action.DELETE, Action.REPLACE)
        },
        quarantine=partial(record_quarantine, workspace.ledger),
    )
    if not options.lockfile_readonly:
        services = replace(services, lock=_lock_writer(workspace, plan))
    engine = ApplyEngine(
        ledger=workspace.ledger,
        handlers=handlers(services),
        emit=emit,
        interrupt=interrupt,
        give_up=workspace.agents.close,
        parallelism=options.parallelism,
        why_not_yet=lambda change: deferral_reason(
            change, workspace.agents, workspace.ledger.recorded
        ),
    )
    # Waiting runs that the plan does not change get their secrets now.
    if waiting := runs_waiting_for_secrets(workspace):
        unchanged = {each.address for each in plan.changes if each.action is Action.NOOP}
        send_secrets(workspace, [run for run in waiting if run.job.address in unchanged], emit)
    if plan.options.refresh_only:
        workspace.ledger.observe_many(
            {change.address: change.after for change in plan.drift if change.after is not None}
        )
    result = engine.run(plan, options.permit)
    jobs = [
        workspace.ledger.recorded(change.address)
        for change in plan.acting
        if change.address.kind is Kind.JOB
    ]
    # a run that was replaced, and one that has already ended
    keep_points(workspace, [JobRun(job, run) for job in jobs if job for run in runs_of(job)[-2:]])
    workspace.ledger.flush()
    return result


def _require_secrets(workspace: Workspace, plan: Plan) -> None:
    """Read the plan's secrets, so that a missing one is reported at the start.

    Mirrored weights need none.
    """
    mirrored = {line.address for line in plan.weights if line.listing and not line.bytes_upstream}
    for change in effective_changes(plan.acting).values():
        needs = change.action in (Action.CREATE, Action.UPDATE, Action.REPLACE)
        if not needs or not change.after or change.address in mirrored:
            continue
        try:
            if change.address.kind is Kind.WEIGHTS:
                workspace.secrets.declared_credential(WeightsSpec.from_attributes(change.after))
            elif change.address.kind is Kind.JOB and change.action is not Action.UPDATE:
                job = change.job_spec
                login = job.image.docker_auth if job.image else None
                names = {
                    *job.runtime.secret_environment.values(),
                    *(login.secrets if login else ()),
                }
                if job.runtime.checkpointing_config.enabled or job.runtime.loads:
                    names |= {*filter(None, [workspace.desired.checkpoints.secret])}
                for name in sorted(names):
                    workspace.secrets.value(name)
        except TrainctlError as error:
            error.address = error.address or str(change.address)
            raise


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
    desired, options = workspace.desired, plan.options
    partial_plan = options.targets or options.excludes or options.destroy or options.refresh_only
    declared = None
    if not (partial_plan or desired.sources_vary):
        declared = {request.key for request in workspace.source_requests.values()}
    if weights or (declared is not None and lock.path.exists()):
        mirrored = (item.after for item in weights if item.action is Action.NOOP)
        specs = [WeightsSpec.from_attributes(after) for after in mirrored if after]
        entries = (lock_entry(spec, directory) for spec in specs if spec.pin)
        lock.put(entries, manifest_keys=declared)


def _refuse_forbidden(workspace: Workspace, plan: Plan) -> tuple[PolicyResult, ...]:
    """Check policies and trust again: they may differ from those of the plan. Return the policies' results."""
    checked = with_policies(workspace, replace(plan, diagnostics=()))
    trust = () if plan.options.destroy else trust_violations(workspace)
    for violation in (item for item in (*checked.diagnostics, *trust) if item.forbids):
        raise PermissionDenied(
            violation.summary, violation.detail, address=violation.address, code=violation.code
        )
    return checked.policy_results


def _refuse_ephemeral_state(workspace: Workspace, plan: Plan) -> None:
    """Refuse a new local state on a CI runner, which would be lost with it."""
    directory, environ = workspace.settings.directory, workspace.settings.environ
    if plan.lineage or not environ.get("CI"):
        return
    if split_environment(workspace.state_url)[0] != default_state_url(directory):
        return
    clusters = [change for change in plan.changes if change.address.kind is Kind.CLUSTER]
    if any(change.provider != "local" for change in clusters):
        raise PermissionDenied(
            "a new state in this directory would be lost with the CI runner",
            "Use a location that the next run can read: set `state: {url: …}` or --state URL.",
            code="ephemeral-state",
        )
