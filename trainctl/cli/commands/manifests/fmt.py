"""``trainctl fmt``."""

from __future__ import annotations

from difflib import unified_diff
from typing import Annotated

import typer

from trainctl.cli.options import option
from trainctl.cli.session import session_of
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
    files = list(format_files(session.directory))
    changed = [file for file in files if file.before != file.after]
    for file in changed:
        session.output.print(file.name)
        if diff:
            lines = file.before.splitlines(), file.after.splitlines()
            for line in unified_diff(*lines, file.name, f"{file.name} (formatted)", lineterm=""):
                session.output.print(line)
        if not check:
            (session.directory / file.name).write_bytes(file.after.encode())
    return 1 if check and changed else 0
