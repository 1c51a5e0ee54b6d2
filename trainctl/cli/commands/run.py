"""``trainctl run``."""

from __future__ import annotations

from shlex import quote
from typing import Annotated

import typer

from trainctl.cli import planning
from trainctl.cli.applying import plan_and_apply
from trainctl.cli.consent import Consent
from trainctl.cli.logs import print_logs
from trainctl.cli.options import Format, FormatOption
from trainctl.cli.planning import PlanningFlags, words
from trainctl.cli.session import Session, session_of
from trainctl.cli.workspaces import open_workspace
from trainctl.errors import Interrupted, UsageError
from trainctl.operations.logs import Selection
from trainctl.operations.runs import Run, find_run, job_address, jobs_of_matrix
from trainctl.operations.workspace import Workspace
from trainctl.views.statuses import ended_code


def command(
    ctx: typer.Context,
    address: Annotated[list[str], typer.Argument(metavar="ADDRESS…", help="The jobs to run.")],
    follow: Annotated[
        bool, typer.Option("--follow", help="Show the log until the run ends.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Begin from the newest complete checkpoint.")
    ] = False,
    again: Annotated[
        str | None,
        typer.Option(
            "--run", metavar="ID", help="Repeat this run: its code, weights and commands."
        ),
    ] = None,
    auto_approve: planning.AutoApprove = False,
    stop_running: planning.StopRunning = False,
    format_: FormatOption = Format.TEXT,
    var: planning.Variables = None,
    var_file: planning.VarFiles = None,
    trust: planning.TrustFile = None,
    parallelism: planning.Parallelism = 10,
) -> int:
    """Start one new run with today's code, whatever has changed; or one that repeats an earlier one."""
    session = session_of(ctx)
    if again is not None and (resume or len(address) > 1):
        raise UsageError("--run repeats one run of one job, from its own beginning")
    jobs = tuple(job_address(word) for word in address)
    typed = tuple(map(str, jobs))
    flags = PlanningFlags(
        targets=typed,
        runs=typed,
        resume=resume,
        again=again,
        variables=words(var),
        var_files=tuple(var_file or ()),
        parallelism=parallelism,
        trust=trust,
    )
    consent = Consent(
        auto_approve,
        stop_running,
        format=format_,
        follows=follow,
        lockfile_readonly=again is not None,
    )
    consent.require_someone(session)
    with open_workspace(session, flags) as workspace:
        code = plan_and_apply(session, workspace, flags, consent)
        if code != 0 or not follow:
            return code
        state = workspace.ledger.state()
        started = [one for job in jobs for one in jobs_of_matrix(state, job) or [job]]
        runs = [find_run(state, one) for one in started]
        return _follow(session, workspace, runs, format_)


def _follow(session: Session, workspace: Workspace, runs: list[Run], format_: Format) -> int:
    """The logs of the runs to their ends, one after the other; Ctrl-C only leaves."""
    code = 0
    for run in runs:
        try:
            ended = print_logs(
                session, workspace, run, Selection(follow=True), format_, closes=run is runs[-1]
            ).run
        except KeyboardInterrupt:
            name = str(run.job.address).removeprefix("job.")
            session.output.note(
                f"Run {run.record.number} ({run.record.id}) goes on.\n"
                f"  Follow it: trainctl logs -f {quote(name)}\n"
                f"  Stop it:   trainctl stop {quote(name)}"
            )
            return Interrupted.exit_code
        code = max(code, ended_code(ended.record))
    return code
