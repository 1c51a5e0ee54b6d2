"""``trainctl plan``, ``show``, ``graph`` and ``comment``."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import replace as replace_
from enum import StrEnum
from io import StringIO
from pathlib import Path
from typing import Annotated

import typer

from trainctl import __version__
from trainctl.cli import options
from trainctl.cli.options import PlanFormat, PlanFormatOption, PlanningFlags, option
from trainctl.cli.plans import (
    ApprovalFlags,
    load_plan,
    plan_from_flags,
    rest_command,
    save_plan,
    show_plan,
    values_of,
    write_file,
)
from trainctl.cli.session import CliSession, session_of
from trainctl.cli.workspaces import open_workspace
from trainctl.errors import UsageError
from trainctl.operations.plan import approved_plan
from trainctl.operations.states.opening import location_at
from trainctl.operations.survey.confinement import confined
from trainctl.plan.values import OUTPUT_MARK

CHANGES = 2
"""The exit code of ``--detailed-exitcode`` if there are changes."""


def plan_command(
    ctx: typer.Context,
    out: Annotated[
        Path | None,
        option("--out FILE", 'Save the plan; apply it with "trainctl apply FILE"', options.OUTPUT),
    ] = None,
    format_: PlanFormatOption = PlanFormat.TEXT,
    sign: Annotated[
        Path | None,
        option("--sign KEY", "With --out, sign the plan by an SSH key: FILE.sig", options.OUTPUT),
    ] = None,
    detailed_exitcode: Annotated[
        bool, option("--detailed-exitcode", "Exit with 2 if there are changes", options.OUTPUT)
    ] = False,
    expect_check: options.ExpectCheck = False,
    destroy: options.Destroy = False,
    refresh: options.Refresh = True,
    refresh_only: options.RefreshOnly = False,
    offline: options.Offline = False,
    upgrade: options.Upgrade = False,
    untrusted: Annotated[
        bool,
        option("--untrusted", "Use no state, secret, program or private server", options.SCOPE),
    ] = False,
    concise: Annotated[
        bool,
        option("--concise", "Show only counts, destroyed and replaced resources", options.OUTPUT),
    ] = False,
    target: options.Targets = None,
    exclude: options.Excludes = None,
    replace: options.Replaces = None,
    no_reuse: options.NoReuse = False,
    set_: options.Settings = None,
    var: options.Variables = None,
    var_file: options.VarFiles = None,
    trust: options.TrustFile = None,
    policy: options.PolicyFile = None,
    parallelism: options.Parallelism = 10,
) -> int:
    """Preview the changes apply would make.

    Shows resources to create, replace or destroy, weights to transfer, estimated time and cost.
    """
    session = session_of(ctx)
    if sign is not None and out is None:
        raise UsageError("--sign needs --out FILE", "Only saved plans are signed.")
    if untrusted and (destroy or refresh_only or upgrade or replace or sign):
        summary = "--untrusted can't be used with --destroy, --refresh-only, --replace, --sign or --upgrade"
        raise UsageError(summary, "Such a plan sees no state, and is never applied.")
    flags = PlanningFlags(
        refresh, refresh_only, offline, upgrade, destroy, target, exclude, replace, (), var, var_file,
        parallelism, trust=trust, policy=policy, reuse=not no_reuse, untrusted=untrusted, settings=set_,
    )  # fmt: skip
    with ExitStack() as stack:
        if untrusted:
            stack.enter_context(confined(session.directory, os.environ))
        workspace = stack.enter_context(open_workspace(session, flags))
        approved = ApprovalFlags(check=expect_check).digest(session, workspace.state_url)
        plan = plan_from_flags(workspace, flags)
        saved = out if plan.usable else None
        if saved is not None:
            desired = workspace.desired
            state = location_at(workspace.state_url, desired.state)
            keys = None if untrusted else workspace.state_keys
            save_plan(saved, plan, replace_(desired, state=state), keys, sign)
        show_plan(session, plan, format_, concise=concise, saved=saved)
        if not plan.usable:
            return plan.exit_code
        if approved is not None:
            approved_plan(workspace, plan, approved)
    changes = plan.has_changes or (refresh_only and bool(plan.drift))
    return CHANGES if detailed_exitcode and changes else 0


class GraphFormat(StrEnum):
    """Formats of graphs."""

    MERMAID = "mermaid"
    DOT = "dot"
    SVG = "svg"


def graph_command(
    ctx: typer.Context,
    planfile: options.PlanFileArgument = None,
    format_: Annotated[
        GraphFormat, option("--format FORMAT", "mermaid, dot or svg", options.OUTPUT)
    ] = GraphFormat.MERMAID,
) -> int:
    """Print the graph of resources, or of the changes of PLANFILE; arrows point to what a resource needs.

    Doesn't read the state or use the network.
    """
    from trainctl.views.plan import pages

    session = session_of(ctx)
    if planfile is not None:
        resources = pages.plan_graph(
            load_plan(planfile, lambda: open_workspace(session).state_keys).plan
        )
    else:
        with open_workspace(session, PlanningFlags(offline=True)) as workspace:
            desired = workspace.desired.resources.values()
        resources = pages.resource_graph({item.address: item.depends_on for item in desired})
    forms = {"mermaid": pages.mermaid_lines, "dot": pages.dot_lines, "svg": pages.graph_svg}
    session.output.print("\n".join(forms[format_](resources)))
    return 0


def show_command(
    ctx: typer.Context,
    planfile: options.PlanFileArgument = None,
    format_: PlanFormatOption = PlanFormat.TEXT,
    out: Annotated[
        Path | None, option("--out FILE", "Write to this file, which is never code", options.OUTPUT)
    ] = None,
) -> int:
    """Show a saved plan, or without PLANFILE the current state."""
    session = session_of(ctx)
    if out is None:
        return _show(session, planfile, format_)
    terminal, text = session.output, StringIO()
    session.output = terminal.redirected(text)
    try:
        code = _show(session, planfile, format_)
    finally:
        session.output = terminal
    write_file(out, text.getvalue())
    return code


def _show(session: CliSession, planfile: Path | None, format_: PlanFormat) -> int:
    if planfile is not None:
        saved = load_plan(planfile, lambda: open_workspace(session).state_keys)
        with values_of(planfile):
            show_plan(session, saved.plan, format_, shown=planfile)
        return 0
    from trainctl.ledger.codec import state_to_json
    from trainctl.ledger.leases import open_leases
    from trainctl.views.plan.pages import HTML_MARK, code_block, html_page, preformatted
    from trainctl.views.state import state_lines

    with open_workspace(session) as workspace:
        state = workspace.ledger.state()
    if format_ is PlanFormat.JSON:
        session.output.json({"trainctl_version": __version__, **state_to_json(state)})
        return 0
    lines = state_lines(state, open_leases(state))
    if format_ is PlanFormat.MARKDOWN:
        lines = [HTML_MARK, "", *code_block(lines)]
    elif format_ is PlanFormat.HTML:
        lines = html_page("State", [preformatted(lines)])
    elif session.output.is_file_in(session.directory):
        lines = [f"# {OUTPUT_MARK}", *lines]
    session.output.print("\n".join(lines))
    return 0


def comment_command(
    ctx: typer.Context,
    planfile: options.PlanFileArgument = None,
    dry_run: Annotated[
        bool, option("--dry-run", "Print the comment instead of writing it")
    ] = False,
    issue: Annotated[
        bool, option("--issue", "Keep an issue open while there are changes or drift")
    ] = False,
    provider: Annotated[
        str | None, option("--provider NAME", "github or gitlab [default: that of the CI job]")
    ] = None,
    var: options.Variables = None,
    var_file: options.VarFiles = None,
    trust: options.TrustFile = None,
    policy: options.PolicyFile = None,
) -> int:
    """Write the plan as a comment and a check of the pull request of this CI job.

    Updates its own comment, and removes it if there is nothing to do. Without PLANFILE, plans first.
    """
    from trainctl.operations.review import publishing
    from trainctl.views.plan.json import PlanCounts
    from trainctl.views.plan.pages import plan_markdown

    session = session_of(ctx)
    if planfile is not None:
        saved = load_plan(planfile, lambda: open_workspace(session).state_keys)
        plan, state_url = saved.plan, saved.desired.state_url or ""
    else:
        flags = PlanningFlags(variables=var, var_files=var_file, trust=trust, policy=policy)
        with open_workspace(session, flags) as workspace:
            plan, state_url = plan_from_flags(workspace, flags), workspace.state_url
    name = publishing.review_name(session.directory, state_url)
    with values_of(planfile):
        text = "\n".join(plan_markdown(plan, now=time.time(), rest=rest_command(planfile)))
    body = session.redactor.redact(publishing.comment_text(name, plan.digest, text))
    code = 0 if plan.usable else plan.exit_code
    if dry_run:
        session.output.print(body)
        return code
    server = publishing.review_server(os.environ, session.redactor, session.output.note, provider)
    if issue:
        session.output.prose(publishing.publish_issue(server, name, plan, body))
    else:
        title = str(PlanCounts.of(plan)) if plan.usable else "The plan has errors."
        session.output.prose(*publishing.publish_comment(server, name, plan, title, body))
    return code
