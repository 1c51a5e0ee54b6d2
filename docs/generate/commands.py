"""``docs/reference/commands.md``, from the commands and their help."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typer.core import TyperArgument, TyperOption

from docs.generate.markdown import code, fence, prose, table, text_of
from trainctl.cli.app import COMMANDS, CommandGroup, LazyGroup, build
from trainctl.cli.command_notes import COMMON_EXIT_CODES, NOTES
from trainctl.cli.help import argument_name, option_row

_CODES = ", ".join(f"`{one}`" for one in COMMON_EXIT_CODES)
_INTRODUCTION = f"""\
# Commands

Every command accepts the [global options](#global-options), before or after its name.
Long options may also be written with one dash. The [exit codes](exit-codes.md) {_CODES}
are common to all commands; the sections below list the others.
"""


def page() -> str:
    """Return the text of the page."""
    root = build()
    lines = [_INTRODUCTION, *_index(), "## Global options", "", *_options(root)]
    for name, command in _commands(root):
        lines += _section(name, command)
    return text_of(lines)


def _index() -> list[str]:
    cells = []
    for row in COMMANDS:
        for below in row.commands if isinstance(row, CommandGroup) else (None,):
            name, summary = (
                (f"{row.name} {below.name}", below.help) if below else (row.name, row.help)
            )
            cells.append((f"[`{name}`](#trainctl-{name.replace(' ', '-')})", summary))
    return table(("command", "description"), cells)


def _commands(root: LazyGroup) -> Iterator[tuple[str, Any]]:
    for row in root.rows:
        command: Any = root.get_command(None, row.name)
        if isinstance(row, CommandGroup):
            for below in row.commands:
                yield f"{row.name} {below.name}", command.get_command(None, below.name)
        else:
            yield row.name, command


def _section(name: str, command: Any) -> Iterator[str]:
    arguments = [one for one in command.params if isinstance(one, TyperArgument)]
    yield from (f"## trainctl {name}", "", prose(command.help), "")
    usage = ["trainctl", name, "[OPTIONS]", *map(argument_name, arguments)]
    yield from fence("text", " ".join(usage))
    if arguments:
        rows = ((code(argument_name(one)), one.help or "") for one in arguments)
        yield from table(("argument", "description"), rows)
    yield from _options(command)
    notes = NOTES[name]
    if notes.exit_codes:
        rows = ((code(str(one)), notes.exit_codes[one]) for one in sorted(notes.exit_codes))
        yield from table(("exit code", "meaning"), rows)
    yield from fence("text", "\n".join(notes.examples))


def _options(command: Any) -> list[str]:
    rows = map(option_row, (one for one in command.params if isinstance(one, TyperOption)))
    return table(("option", "description"), ((code(name.strip()), text) for name, text in rows))
