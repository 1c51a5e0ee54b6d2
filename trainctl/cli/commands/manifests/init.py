"""``trainctl init``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from trainctl.cli.options import argument, option
from trainctl.cli.session import session_of
from trainctl.errors import UsageError
from trainctl.operations.init import EXAMPLES, write_example, write_minimal
from trainctl.views.terminal.text import table


def init_command(
    ctx: typer.Context,
    directory: Annotated[
        Path, argument("DIR", "Directory of the project [default: current directory]")
    ] = Path(),
    example: Annotated[str | None, option("--example NAME", "Copy a complete example")] = None,
    list_examples: Annotated[bool, option("--list-examples", "List the examples")] = False,
) -> int:
    """Create a project: a minimal manifest for this machine, or an example.

    Files that exist are kept.
    """
    output = session_of(ctx).output
    if list_examples:
        output.prose(*table(("EXAMPLE", "SHOWS"), list(EXAMPLES.items())))
        return 0
    if example is not None and example not in EXAMPLES:
        raise UsageError(f"unknown example {example!r}", f"Use one of: {', '.join(EXAMPLES)}.")
    if example is None:
        result = write_minimal(directory, Path("~/.ssh/config").expanduser())
    else:
        result = write_example(example, directory)
    place = "" if directory == Path() else f"-C {shlex.quote(str(directory))} "
    for name in result.written:
        output.prose(f"Wrote {directory / name}.")
    for name in result.existing:
        output.prose(f"Kept {directory / name}: it exists already.")
    output.prose("", f"Next: edit {directory / 'trainctl.yaml'}, then run trainctl {place}plan.")
    return 0
