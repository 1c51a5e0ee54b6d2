"""``trainctl policy test``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from trainctl.cli import options
from trainctl.cli.options import FormatOption, OutputFormat, PlanningFlags, option, print_result
from trainctl.cli.plans import load_plan
from trainctl.cli.session import session_of
from trainctl.cli.workspaces import open_workspace
from trainctl.errors import PermissionDenied
from trainctl.model.json_codec import to_json
from trainctl.operations.review.policies import check_form, policy_problems
from trainctl.views.plan.json import plan_json
from trainctl.views.plan.tables import policy_lines
from trainctl.views.problems import diagnostic_lines


def test_command(
    ctx: typer.Context,
    plan: Annotated[Path, option("--plan FILE", "Saved plan, or output of plan --format json")],
    policy: options.PolicyFile = None,
    trust: options.TrustFile = None,
    format_: FormatOption = OutputFormat.TEXT,
) -> int:
    """Check a saved plan against policies, also those of a file in the checkout."""
    session = session_of(ctx)
    with open_workspace(session, PlanningFlags(trust=trust)) as workspace:
        try:
            form = json.loads(plan.read_bytes())
        except (OSError, ValueError):
            form = None
        if not (isinstance(form, dict) and "resource_changes" in form):
            # reports files that can't be read, too
            form = plan_json(load_plan(plan, lambda: workspace.state_keys).plan)
        results = check_form(workspace, form, policy)
    output, printed = session.output, {"policies": [to_json(result) for result in results]}
    print_result(output, format_, printed, policy_lines(results) or ["No policies."])
    if format_ is OutputFormat.TEXT:
        problems = [problem for result in results for problem in policy_problems(result)]
        output.note(*diagnostic_lines(problems, output.error_style, output.error_width))
    return PermissionDenied.exit_code if any(result.forbids for result in results) else 0
