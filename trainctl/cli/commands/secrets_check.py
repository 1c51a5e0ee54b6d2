"""``trainctl secrets check``."""

from __future__ import annotations

import typer

from trainctl.cli import planning
from trainctl.cli.listings import ListingFormat, ListingFormatOption, show
from trainctl.cli.planning import PlanningFlags, words
from trainctl.cli.session import session_of
from trainctl.cli.workspaces import open_trusting
from trainctl.operations.secrets import check_secrets, exit_code
from trainctl.views.problems import diagnostic_lines, more_lines
from trainctl.views.secrets import SECRET_COLUMNS, secret_lines, secret_rows, secrets_json


def command(
    ctx: typer.Context,
    format_: ListingFormatOption = ListingFormat.TEXT,
    trust: planning.TrustFile = None,
    var: planning.Variables = None,
    var_file: planning.VarFiles = None,
) -> int:
    """Show where each secret comes from, whether it can be read here, and who would get it; sends none of them."""
    session = session_of(ctx)
    flags = PlanningFlags(trust=trust, variables=words(var), var_files=tuple(var_file or ()))
    with open_trusting(session, flags) as workspace:
        checked = check_secrets(workspace)
    output = session.output
    lines = secret_lines(checked, output.width)
    show(output, format_, secrets_json(checked), (SECRET_COLUMNS, secret_rows(checked)), lines)
    problems = [problem for one in checked for problem in one.problems]
    if format_ is not ListingFormat.JSON:
        for line in [
            *diagnostic_lines(problems, output.error_style, output.error_width),
            *more_lines(problems, output.error_style),
        ]:
            output.note(line)
    return exit_code(checked)
