"""``trainctl validate``."""

from __future__ import annotations

import typer

from trainctl.cli.options import Format, FormatOption
from trainctl.cli.session import session_of
from trainctl.cli.workspaces import open_workspace
from trainctl.errors import ManifestError
from trainctl.model.diagnostics import Diagnostic, Severity
from trainctl.views.problems import count_line, diagnostic_lines, more_lines


def command(ctx: typer.Context, format_: FormatOption = Format.TEXT) -> int:
    """Check the manifest; reads no state and uses no network."""
    session = session_of(ctx)
    output = session.output
    with open_workspace(session) as workspace:
        try:
            found = list(workspace.desired.warnings)
        except ManifestError as error:
            found = [one for one in error.diagnostics if isinstance(one, Diagnostic)]
    valid = all(one.severity is not Severity.ERROR for one in found)
    if format_ is Format.JSON:
        output.json({"valid": valid, "diagnostics": [one.to_json() for one in found]})
        return 0 if valid else 1
    if found:
        for line in [
            *diagnostic_lines(found, output.error_style, output.error_width),
            count_line(found),
            *more_lines(found, output.error_style),
        ]:
            output.note(line)
    if valid:
        output.print("The manifest is valid.")
    return 0 if valid else 1
