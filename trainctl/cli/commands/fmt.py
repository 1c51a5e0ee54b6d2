"""``trainctl fmt``."""

from __future__ import annotations

from difflib import unified_diff
from typing import Annotated

import typer

from trainctl.cli.options import option
from trainctl.cli.session import session_of
from trainctl.errors import TrainctlError
from trainctl.operations.fmt import format_files


def fmt_command(
    ctx: typer.Context,
    check: Annotated[
        bool, option("--check", "Write nothing; exit with 1 if a file isn't formatted")
    ] = False,
    diff: Annotated[bool, option("--diff", "Show the differences")] = False,
) -> int:
    """Format the manifest: indentation, blank lines and line ends.

    Comments and values stay. Prints the names of the files that aren't formatted, and writes them.
    """
    session = session_of(ctx)
    output = session.output
    files = list(format_files(session.directory))
    if not files:
        raise TrainctlError(
            "no manifest found",
            "Run trainctl init, or use -C to name another directory.",
            code="manifest-not-found",
        )
    changed = [file for file in files if file.before != file.after]
    for file in changed:
        output.print(file.name)
        if diff:
            lines = file.before.splitlines(), file.after.splitlines()
            for line in unified_diff(*lines, file.name, f"{file.name} (formatted)", lineterm=""):
                color = {"+": "green", "-": "red"}.get(line[0])
                output.print(output.style(line, color) if color else line)
        if not check:
            (session.directory / file.name).write_bytes(file.after.encode())
    return 1 if check and changed else 0
