"""``trainctl validate``."""

from __future__ import annotations

from collections.abc import Iterable

import typer

from trainctl.cli.options import Format, FormatOption
from trainctl.cli.session import session_of
from trainctl.cli.workspaces import open_workspace
from trainctl.errors import ManifestError
from trainctl.model.address import Kind
from trainctl.model.diagnostics import Diagnostic, Severity
from trainctl.operations.workspace import Workspace
from trainctl.views.problems import count_line, diagnostic_lines, more_lines


def command(ctx: typer.Context, format_: FormatOption = Format.TEXT) -> int:
    """Check the manifest; reads no state and uses no network."""
    session = session_of(ctx)
    output = session.output
    with open_workspace(session) as workspace:
        try:
            found = [*workspace.desired.warnings, *_entangled(workspace)]
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


def _entangled(workspace: Workspace) -> Iterable[Diagnostic]:
    """Sources that hold the mirror or lie in it; what knows of mirrors is loaded only where there may be one."""
    if all(address.kind is not Kind.WEIGHTS for address in workspace.desired.resources):
        return ()
    from trainctl.operations.own_mirror import entangled

    return entangled(workspace)
