"""``trainctl apply``."""

from __future__ import annotations

from dataclasses import replace as with_
from pathlib import Path
from typing import Annotated

import typer

from trainctl.cli import planning
from trainctl.cli.applying import plan_and_apply, require_digest
from trainctl.cli.consent import Consent, errors_as_events
from trainctl.cli.options import Format, FormatOption
from trainctl.cli.planning import PlanningFlags, duration, words
from trainctl.cli.plans import load_plan
from trainctl.cli.session import Session, session_of
from trainctl.cli.workspaces import open_workspace
from trainctl.errors import UsageError


def command(
    ctx: typer.Context,
    planfile: Annotated[
        Path | None, typer.Argument(metavar="[PLANFILE]", help="A plan that `plan --out` saved.")
    ] = None,
    auto_approve: planning.AutoApprove = False,
    wait: Annotated[
        bool,
        typer.Option("--wait", help="Follow the runs to their end; carry on what waits for them."),
    ] = False,
    stop_running: planning.StopRunning = False,
    expect: Annotated[
        str | None,
        typer.Option("--expect", metavar="DIGEST", help="Apply only if the plan has this digest."),
    ] = None,
    lockfile: Annotated[
        str | None,
        typer.Option("--lockfile", metavar="readonly", help="Don't write trainctl.lock."),
    ] = None,
    lease_timeout: Annotated[
        str,
        typer.Option(
            "--lease-timeout", metavar="1m", help="How long to wait for another's change."
        ),
    ] = "0",
    format_: FormatOption = Format.TEXT,
    destroy: Annotated[bool, typer.Option("--destroy", help="Remove everything.")] = False,
    refresh: planning.Refresh = True,
    refresh_only: planning.RefreshOnly = False,
    offline: planning.Offline = False,
    upgrade: planning.Upgrade = False,
    target: planning.Targets = None,
    exclude: planning.Excludes = None,
    replace: planning.Replaces = None,
    var: planning.Variables = None,
    var_file: planning.VarFiles = None,
    trust: planning.TrustFile = None,
    parallelism: planning.Parallelism = 10,
) -> int:
    """Make it so: mirror weights, get nodes ready, deliver, run."""
    session = session_of(ctx)
    if lockfile not in (None, "readonly"):
        raise UsageError(f"--lockfile={lockfile}: the only value is readonly")
    if lockfile and upgrade:
        raise UsageError(
            "--upgrade moves what trainctl.lock names, and --lockfile=readonly leaves it",
            "Leave one of them out.",
        )
    flags = PlanningFlags(
        refresh, refresh_only, offline, upgrade, destroy, words(target), words(exclude), words(replace), (),
        words(var), tuple(var_file or ()), parallelism, trust=trust,
    )  # fmt: skip
    consent = Consent(
        auto_approve,
        stop_running,
        wait,
        format_,
        lockfile is not None,
        duration("--lease-timeout", lease_timeout),
    )
    if planfile is not None:
        return _apply_saved(session, planfile, consent, expect, flags)
    consent.require_someone(session)
    with open_workspace(session, flags) as workspace:
        return plan_and_apply(session, workspace, flags, consent, expect=expect)


def _apply_saved(
    session: Session, path: Path, consent: Consent, expect: str | None, flags: PlanningFlags
) -> int:
    """Apply a plan that was reviewed: nothing is planned anew, and live runs that it names may be stopped."""
    from trainctl.cli.applying import carry_out
    from trainctl.operations.planning import refuse_stale

    with errors_as_events(session, consent.format):
        saved = load_plan(path)
        require_digest(saved.plan, expect)
        named = frozenset(change.stops.id for change in saved.plan.changes if change.stops)
        agreed = with_(consent, named_runs=named)
        own = PlanningFlags(trust=flags.trust)
        with open_workspace(session, own, saved.desired) as workspace:
            plan = refuse_stale(workspace, saved.plan)
            return carry_out(session, workspace, plan, agreed, flags.parallelism)
