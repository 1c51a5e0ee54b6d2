"""Making a plan so: what is checked first, the walk, and following the runs it started."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trainctl.apply.engine import Engine, Permit
from trainctl.apply.interrupt import Interrupt
from trainctl.apply.order import effective
from trainctl.apply.result import Result
from trainctl.errors import Forbidden, Interrupted, PartlyDone
from trainctl.jobs.environment import secret_environment
from trainctl.model.action import Action
from trainctl.model.address import Address, Kind
from trainctl.model.events import Emit, Event, EventType
from trainctl.model.run import RunStatus
from trainctl.operations.runs import Run, find_run, refresh
from trainctl.operations.workspace import Workspace
from trainctl.plan.values import Plan
from trainctl.resources.jobs import runs_of
from trainctl.resources.registry import handlers
from trainctl.resources.weights import lock_entry
from trainctl.weights.lock import LockEntry, LockFile

POLL_SECONDS = 0.5
"""How often a followed run is looked at."""


@dataclass(frozen=True, slots=True)
class ApplyOptions:
    """What the user allowed and asked for."""

    permit: Permit = Permit()
    parallelism: int = 10
    lockfile_readonly: bool = False
    delete_checkpoints: bool = False
    upgrade: bool = False


def apply(
    workspace: Workspace, plan: Plan, options: ApplyOptions, emit: Emit, interrupt: Interrupt
) -> Result:
    """Carry out a plan that was consented to. Nothing is begun if something it needs is known to be missing."""
    _refuse_state_that_would_vanish(workspace, plan)
    _need_secrets(workspace, plan)
    if not options.lockfile_readonly:
        _lock(workspace, plan, upgrade=options.upgrade)
    if not workspace.ledger.state().lineage:
        workspace.ledger.note(
            "a new state"
        )  # whatever is made from here on is named by the lineage this gives it
    made = handlers(workspace.ports(delete_checkpoints=options.delete_checkpoints))
    engine = Engine(
        workspace.ledger, made, emit, interrupt, workspace.agents.close, options.parallelism
    )
    if plan.options.refresh_only:
        workspace.ledger.observe_many(
            {one.address: one.after for one in plan.drift if one.after is not None}
        )
    return engine.run(plan, options.permit)


def follow(
    workspace: Workspace, addresses: Iterable[Address], emit: Emit, interrupt: Interrupt
) -> list[Run]:
    """Watch the newest runs of these jobs until each has ended or the user has had enough; holds nothing meanwhile."""
    runs = {address: find_run(workspace.ledger.state(), address) for address in addresses}
    for run in runs.values():
        if not run.record.status.live:
            emit(run_event(run))
    while any(run.record.status.live for run in runs.values()):
        if interrupt.stopping.wait(POLL_SECONDS):
            break
        for address, run in runs.items():
            runs[address] = refresh(workspace, run)
            said = run_event(runs[address])
            if runs[address].record.status is not run.record.status:
                emit(said)
            elif run.record.status.live:
                emit(Event(EventType.STEP_PROGRESS, said.message, address, {"phase": said.message}))
    for address, run in runs.items():
        if run.record.status.live:
            emit(
                Event(
                    EventType.DIAGNOSTIC,
                    f"run {run.record.number} goes on without being followed",
                    address,
                )
            )
    return list(runs.values())


def unfinished(workspace: Workspace, plan: Plan, result: Result) -> list[Address]:
    """The jobs of a plan to wait for: those that got a new run, and those whose run was live already."""
    state = workspace.ledger.state()
    new = {
        change.address for change in result.done if change.action in (Action.CREATE, Action.REPLACE)
    }
    found = []
    for change in plan.changes:
        runs = (
            runs_of(state.resources.get(change.address)) if change.address.kind is Kind.JOB else ()
        )
        if runs and (change.address in new or runs[-1].status.live):
            found.append(change.address)
    return found


def run_event(run: Run) -> Event:
    """What there is to say of a run."""
    record = run.record
    words = record.status.value.removeprefix("TRAINING_JOB_").lower().replace("_", " ")
    detail = f": {record.error}" if record.error else ""
    data = {
        "run": record.id,
        "status": record.status.value,
        "exit_code": next((r.exit_code for r in record.ranks), None),
    }
    return Event(
        EventType.RUN_STATUS,
        f"run {record.number} ({record.id}) {words}{detail}",
        run.job.address,
        data,
    )


def exit_code(result: Result, followed: Iterable[Run]) -> int:
    """Of an apply that followed its runs: 12 as well if one did not complete, 130 if it was not followed to its end."""
    statuses = {run.record.status for run in followed}
    if result.exit_code == 0 and any(status.live for status in statuses):
        return Interrupted.exit_code
    if result.exit_code == 0 and statuses - {RunStatus.COMPLETED}:
        return PartlyDone.exit_code
    return result.exit_code


def _need_secrets(workspace: Workspace, plan: Plan) -> None:
    """Read every secret that the jobs to be run refer to, so that a missing one is told before anything is begun."""
    for change in effective(plan.changes).values():
        if (
            change.address.kind is Kind.JOB
            and change.after
            and change.action in (Action.CREATE, Action.REPLACE)
        ):
            for name in sorted(set(secret_environment(change.after).values())):
                workspace.secrets.value(name)


def _lock(workspace: Workspace, plan: Plan, *, upgrade: bool) -> None:
    """Note in the lock file what the plan resolved. A source without versions is noted once: it differs everywhere."""
    versioned: list[LockEntry] = []
    unversioned: list[LockEntry] = []
    for change in plan.changes:
        after = change.after or {}
        if change.address.kind is Kind.WEIGHTS and after.get("pin"):
            entry = lock_entry(after, workspace.setting.directory)
            (unversioned if entry.source.startswith("file:") else versioned).append(entry)
    lock = LockFile(workspace.setting.directory)
    lock.put(versioned, replace=True)
    lock.put(unversioned, replace=upgrade)


def _refuse_state_that_would_vanish(workspace: Workspace, plan: Plan) -> None:
    """A new local state on a CI runner is lost with the runner, and with it the knowledge of what was made."""
    if plan.lineage or not workspace.setting.environ.get("CI") or not workspace.state_is_default:
        return
    clusters = [change for change in plan.changes if change.address.kind is Kind.CLUSTER]
    if any(change.provider != "local" for change in clusters):
        raise Forbidden(
            "a new state in this directory would vanish with the CI runner",
            "Keep it where the next run finds it: set `state: {url: …}` or --state URL.",
        )
