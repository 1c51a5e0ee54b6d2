"""``trainctl plan``, ``show``, ``graph``, ``comment`` and ``policy test``."""

from __future__ import annotations

import json
import os
import time
from contextlib import ExitStack
from enum import StrEnum
from io import StringIO
from pathlib import Path
from typing import Annotated

from trainctl import __version__
from trainctl.base.lazy_dataclass import replace as replace_
from trainctl.cli import options
from trainctl.cli.options import (
    NO_FLAGS,
    OptionSelection,
    OutputFormat,
    PlanFormat,
    PlanningFlags,
    option,
    print_result,
)
from trainctl.cli.plans import (
    DEFAULT_APPLY,
    ApplyFlags,
    load_plan,
    plan_from_flags,
    rest_command,
    save_plan,
    show_plan,
    values_of,
    write_file,
)
from trainctl.cli.session import CliSession
from trainctl.cli.workspaces import open_workspace
from trainctl.errors import PermissionDenied, UsageError
from trainctl.model.json_codec import to_json
from trainctl.operations.plan import approved_plan
from trainctl.operations.policies import check_form, policy_problems
from trainctl.operations.states import location_at
from trainctl.plan.values import OUTPUT_MARK
from trainctl.views.plan.tables import policy_lines
from trainctl.views.problems import diagnostic_lines

CHANGES = 2
"""The exit code of ``--detailed-exitcode`` if there are changes."""


def plan_command(
    session: CliSession,
    out: Annotated[
        Path | None,
        option("--out FILE", 'Save the plan; apply it with "trainctl apply FILE"', options.OUTPUT),
    ] = None,
    format_: options.PlanFormatOption = PlanFormat.TEXT,
    sign: Annotated[
        Path | None,
        option("--sign KEY", "With --out, sign the plan by an SSH key: FILE.sig", options.OUTPUT),
    ] = None,
    detailed_exitcode: Annotated[
        bool, option("--detailed-exitcode", "Exit with 2 if there are changes", options.OUTPUT)
    ] = False,
    approval: Annotated[ApplyFlags, OptionSelection("expect_check", ApplyFlags)] = DEFAULT_APPLY,
    flags: Annotated[
        PlanningFlags,
        OptionSelection(
            "destroy refresh refresh_only offline upgrade untrusted concise targets excludes replaces"
            " no_reuse settings variables var_files trust policy parallelism"
        ),
    ] = NO_FLAGS,
) -> int:
    """Preview the changes apply would make.

    Shows resources to create, replace or destroy, weights to transfer, estimated time and cost.
    """
    if sign is not None and out is None:
        raise UsageError("--sign needs --out FILE", "Only saved plans are signed.")
    if flags.untrusted and (
        flags.destroy or flags.refresh_only or flags.upgrade or flags.replaces or sign
    ):
        summary = "--untrusted can't be used with --destroy, --refresh-only, --replace, --sign or --upgrade"
        raise UsageError(summary, "Such a plan sees no state, and is never applied.")
    with ExitStack() as stack:
        if flags.untrusted:
            from trainctl.operations.confinement import confined

            stack.enter_context(confined(session.directory, os.environ))
        workspace = stack.enter_context(open_workspace(session, flags))
        approved = approval.approved_digest(session, workspace.state_url)
        plan = plan_from_flags(workspace, flags)
        saved = out if plan.usable else None
        if saved is not None:
            desired = workspace.desired
            state = location_at(workspace.state_url, desired.state)
            keys = None if flags.untrusted else workspace.state_keys
            save_plan(saved, plan, replace_(desired, state=state), keys, sign)
        show_plan(session, plan, format_, concise=flags.concise, saved=saved)
        if not plan.usable:
            return plan.exit_code
        if approved is not None:
            approved_plan(workspace, plan, approved)
    changes = plan.has_changes or (flags.refresh_only and bool(plan.drift))
    return CHANGES if detailed_exitcode and changes else 0


class GraphFormat(StrEnum):
    """Formats of graphs."""

    MERMAID = "mermaid"
    DOT = "dot"
    SVG = "svg"


def graph_command(
    session: CliSession,
    planfile: options.PlanFileArgument = None,
    format_: Annotated[
        GraphFormat, option("--format FORMAT", "mermaid, dot or svg", options.OUTPUT)
    ] = GraphFormat.MERMAID,
) -> int:
    """Print the graph of resources, or of the changes of PLANFILE; arrows point to what a resource needs.

    Doesn't read the state or use the network.
    """
    from trainctl.views.plan import pages

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
    session: CliSession,
    planfile: options.PlanFileArgument = None,
    format_: options.PlanFormatOption = PlanFormat.TEXT,
    out: Annotated[
        Path | None, option("--out FILE", "Write to this file, which is never code", options.OUTPUT)
    ] = None,
) -> int:
    """Show a saved plan, or without PLANFILE the current state."""
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
    from trainctl.views.plan.html import html_page, preformatted
    from trainctl.views.plan.pages import HTML_MARK, code_block
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
    session: CliSession,
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
    flags: Annotated[PlanningFlags, OptionSelection("variables var_files trust policy")] = NO_FLAGS,
) -> int:
    """Write the plan as a comment and a check of the pull request of this CI job.

    Updates its own comment, and removes it if there is nothing to do. Without PLANFILE, plans first.
    """
    from trainctl.operations import review
    from trainctl.views.plan.json import counts_text
    from trainctl.views.plan.pages import plan_markdown

    if planfile is not None:
        saved = load_plan(planfile, lambda: open_workspace(session).state_keys)
        plan, state_url = saved.plan, saved.desired.state_url or ""
    else:
        with open_workspace(session, flags) as workspace:
            plan, state_url = plan_from_flags(workspace, flags), workspace.state_url
    name = review.review_name(session.directory, state_url)
    with values_of(planfile):
        text = "\n".join(plan_markdown(plan, now=time.time(), rest=rest_command(planfile)))
    body = session.redactor.redact(review.comment_text(name, plan.digest, text))
    code = 0 if plan.usable else plan.exit_code
    if dry_run:
        session.output.print(body)
        return code
    server = review.review_server(os.environ, session.redactor, session.output.note, provider)
    if issue:
        session.output.prose(review.publish_issue(server, name, plan, body))
    else:
        title = counts_text(plan) if plan.usable else "The plan has errors."
        session.output.prose(*review.publish_comment(server, name, plan, title, body))
    return code


def test_command(
    session: CliSession,
    plan: Annotated[Path, option("--plan FILE", "Saved plan, or output of plan --format json")],
    flags: Annotated[PlanningFlags, OptionSelection("policy trust")] = NO_FLAGS,
    format_: options.FormatOption = OutputFormat.TEXT,
) -> int:
    """Check a saved plan against policies, also those of a file in the checkout."""
    from trainctl.views.plan.json import plan_json

    with open_workspace(session, PlanningFlags(trust=flags.trust)) as workspace:
        try:
            form = json.loads(plan.read_bytes())
        except (OSError, ValueError):
            form = None
        if not (isinstance(form, dict) and "resource_changes" in form):
            # reports files that can't be read, too
            form = plan_json(load_plan(plan, lambda: workspace.state_keys).plan)
        results = check_form(workspace, form, flags.policy)
    output, printed = session.output, {"policies": [to_json(result) for result in results]}
    print_result(output, format_, printed, policy_lines(results) or ["No policies."])
    if format_ is OutputFormat.TEXT:
        problems = [problem for result in results for problem in policy_problems(result)]
        output.note(*diagnostic_lines(problems, output.error_style, output.error_width))
    return PermissionDenied.exit_code if any(result.forbids for result in results) else 0
