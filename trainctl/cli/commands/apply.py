"""``trainctl apply``, ``destroy``, ``run`` and ``reconcile``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import Annotated

from trainctl.apply.interrupt import Interrupt
from trainctl.base.lazy_dataclass import replace as with_
from trainctl.cli import options
from trainctl.cli.options import (
    NO_FLAGS,
    OptionSelection,
    OutputFormat,
    PlanningFlags,
    argument,
    duration,
    option,
)
from trainctl.cli.plan_execution import errors_as_events, execute_plan, plan_and_apply
from trainctl.cli.plans import DEFAULT_APPLY, ApplyFlags, load_plan
from trainctl.cli.session import CliSession
from trainctl.cli.workspaces import open_workspace
from trainctl.errors import PermissionDenied, UsageError, UserInterrupt
from trainctl.model.address import Address
from trainctl.model.events import Emit
from trainctl.operations.plan import refuse_stale, require_digest
from trainctl.operations.reconcile import Reconciler
from trainctl.operations.runs.checkpoints import find_retained_data
from trainctl.operations.runs.logs import LogSelection
from trainctl.operations.runs.lookup import job_address, select_runs
from trainctl.operations.workspace import Workspace
from trainctl.views.apply_result import retained_lines
from trainctl.views.events import JsonEventPrinter, TextEventPrinter
from trainctl.views.runs.status import run_exit_code
from trainctl.views.terminal.progress import ProgressDisplay

ShortApplyFlags = Annotated[
    ApplyFlags, OptionSelection("auto_approve stop_running format", ApplyFlags)
]


def apply_command(
    session: CliSession,
    planfile: options.PlanFileArgument = None,
    apply_flags: Annotated[
        ApplyFlags,
        OptionSelection(
            "auto_approve wait stop_running expect expect_check expect_comment allow_unresolved_images"
            " require_signature lockfile lock_timeout format",
            ApplyFlags,
        ),
    ] = DEFAULT_APPLY,
    flags: Annotated[
        PlanningFlags,
        OptionSelection(
            "destroy refresh refresh_only offline upgrade targets excludes replaces no_reuse settings"
            " variables var_files trust policy parallelism"
        ),
    ] = NO_FLAGS,
) -> int:
    """Create, update or replace resources to match the manifest.

    Shows the plan and asks for confirmation first. With PLANFILE, applies that plan without asking;
    options of the plan are then taken from the file.
    """
    if apply_flags.lockfile and flags.upgrade:
        summary = "--upgrade and --lockfile=readonly can't be used together"
        raise UsageError(summary, "Remove one of the options.")
    if planfile is not None:
        return _apply_saved(session, planfile, apply_flags, flags)
    if apply_flags.require_signature is not None:
        raise UsageError("--require-signature needs a PLANFILE", "Only saved plans are signed.")
    apply_flags.require_approval(session)
    with open_workspace(session, flags) as workspace:
        return plan_and_apply(session, workspace, flags, apply_flags)


def _apply_saved(
    session: CliSession, path: Path, apply_flags: ApplyFlags, flags: PlanningFlags
) -> int:
    """Apply a saved plan; it may stop the live runs that it names."""
    if flags.settings:
        summary = "--set can't be used with a saved plan"
        raise UsageError(summary, f"Plan with it: trainctl plan --set PATH=VALUE --out {path}.")
    with errors_as_events(session, apply_flags.format):
        saved = load_plan(
            path, lambda: open_workspace(session, flags).state_keys, apply_flags.require_signature
        )
        if saved.plan.options.untrusted:
            raise PermissionDenied(
                f"{path} is a plan for review only: it was made with --untrusted",
                "Plan again without --untrusted after the review.",
                code="untrusted-plan",
            )
        expect = apply_flags.approved_digest(session, saved.desired.state_url or "")
        if expect is not None:
            require_digest(saved.plan, expect)
            apply_flags.require_images(saved.plan)
        named = frozenset(change.stops.id for change in saved.plan.changes if change.stops)
        agreed = with_(apply_flags, named_runs=named)
        own = PlanningFlags(
            trust=flags.trust, policy=flags.policy, var_files=[*map(Path, saved.plan.var_files)]
        )
        with open_workspace(session, own, saved.desired) as workspace:
            plan = refuse_stale(workspace, saved)
            resumed = plan != saved.plan
            return execute_plan(
                session, workspace, plan, agreed, flags.parallelism, resumed=resumed
            )


def destroy_command(
    session: CliSession,
    apply_flags: ShortApplyFlags = DEFAULT_APPLY,
    flags: Annotated[
        PlanningFlags,
        OptionSelection(
            "delete_checkpoints refresh targets excludes variables var_files trust policy parallelism",
            targets=option(
                "--target ADDRESS",
                "Destroy only this resource and its dependents (repeatable)",
                options.SCOPE,
            ),
            excludes=option(
                "--exclude ADDRESS",
                "Keep this resource and its dependencies (repeatable)",
                options.SCOPE,
            ),
        ),
    ] = NO_FLAGS,
) -> int:
    """Destroy all managed resources. Keeps the mirror and, by default, checkpoints."""
    flags = with_(flags, destroy=True)
    apply_flags.require_approval(session)
    question = "Do you really want to destroy everything listed above?"
    with open_workspace(session, flags) as workspace:
        retained = find_retained_data(workspace)
        code = plan_and_apply(session, workspace, flags, apply_flags, question)
        if code == 0 and apply_flags.format is OutputFormat.TEXT:
            deleted = {"checkpoints"} if flags.delete_checkpoints else set()
            session.output.prose(
                *retained_lines([data for data in retained if data.what not in deleted])
            )
        return code


def run_command(
    session: CliSession,
    address: Annotated[list[str], argument("ADDRESS", "Jobs, e.g. job.train")],
    follow: Annotated[
        bool, option("-f, --follow, --tail", "Stream new output until the run ends")
    ] = False,
    resume: Annotated[
        bool, option("--resume", "Start from the latest complete checkpoint")
    ] = False,
    by: Annotated[
        str | None,
        option("--by KEY[:max]", "Resume from the best checkpoint by this result, or JOB.KEY"),
    ] = None,
    repeat: Annotated[
        str | None, option("--run RUN", "Repeat an earlier run with its code, weights and commands")
    ] = None,
    apply_flags: ShortApplyFlags = DEFAULT_APPLY,
    flags: Annotated[
        PlanningFlags, OptionSelection("settings variables var_files trust policy parallelism")
    ] = NO_FLAGS,
) -> int:
    """Start a new run of one or more jobs with the current code, even if nothing changed."""
    if repeat is not None and (resume or by or flags.settings or len(address) > 1):
        raise UsageError(
            "--run can't be used with --resume, --set or several jobs",
            "Name one job, and leave out the other option.",
        )
    jobs = tuple(job_address(word) for word in address)
    names = list(map(str, jobs))
    flags = with_(flags, targets=names, runs=names, resume=resume, by=by, repeat=repeat)
    lockfile = None if repeat is None else "readonly"
    apply_flags = with_(apply_flags, follows=follow, lockfile=lockfile)
    apply_flags.require_approval(session)
    with open_workspace(session, flags) as workspace:
        code = plan_and_apply(session, workspace, flags, apply_flags)
        if code != 0 or not follow:
            return code
        return _follow(session, workspace, jobs, apply_flags.format)


def _follow(
    session: CliSession, workspace: Workspace, jobs: Sequence[Address], format_: OutputFormat
) -> int:
    """Print the logs of the jobs until they end; Ctrl-C stops only the output."""
    from trainctl.cli.commands.logs import print_logs

    state = workspace.ledger.state()
    runs = [run for job in jobs for run in select_runs(state, job)]
    try:
        ended, _ = print_logs(session, workspace, runs, LogSelection(follow=True), format_)
    except KeyboardInterrupt:
        for job in jobs:
            name = quote(str(job).removeprefix("job."))
            session.output.note(
                f"{job} continues.\n"
                f"  Follow it: trainctl logs -f {name}\n"
                f"  Stop it:   trainctl stop {name}"
            )
        return UserInterrupt.exit_code
    return max(run_exit_code(run.record) for run in ended)


def reconcile_command(
    session: CliSession,
    interval: Annotated[str, option("--interval DURATION", "Time between checks")] = "30s",
    once: Annotated[bool, option("--once", "Check once, for cron and CI")] = False,
    format_: options.FormatOption = OutputFormat.TEXT,
    flags: Annotated[
        PlanningFlags, OptionSelection("variables var_files trust parallelism")
    ] = NO_FLAGS,
) -> int:
    """Resume approved work that was blocked or interrupted, such as jobs that wait for nodes."""
    seconds = duration("--interval", interval)
    if seconds <= 0:
        raise UsageError(f"--interval {interval}: must be positive", "Use for example 30s or 5m.")
    output = session.output

    def run(emit: Emit, interrupt: Interrupt) -> int:
        reconciler = Reconciler(emit, interrupt, flags.parallelism)
        if once:
            return reconciler.run_once(lambda: open_workspace(session, flags))
        while not interrupt.stopping.is_set():
            reconciler.run_once(lambda: open_workspace(session, flags))
            interrupt.stopping.wait(seconds)
        return UserInterrupt.exit_code

    if format_ is OutputFormat.JSON:
        with Interrupt(output.note) as interrupt:
            return run(JsonEventPrinter(output), interrupt)
    if not once:
        output.note(f"Checking every {interval}. Press Ctrl-C to stop; runs continue.")
    with ProgressDisplay(output) as progress, Interrupt(progress.note) as interrupt:
        return run(TextEventPrinter(output, progress), interrupt)
