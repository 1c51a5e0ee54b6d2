"""``docs/reference/commands.md``, from the commands and their help."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from inspect import cleandoc

from docs.generate.markdown import code, fence, prose, table, text_of
from trainctl.cli.app import GLOBAL, CliCommand, load, named_commands
from trainctl.cli.command_notes import COMMON_EXIT_CODES, NOTES
from trainctl.cli.help import argument_name, option_row
from trainctl.cli.options import CommandParameter

_CODES = ", ".join(f"`{one}`" for one in COMMON_EXIT_CODES)
_INTRODUCTION = f"""\
# Commands

Every command accepts the [global options](#global-options), before or after its name.
Long options may also be written with one dash. The [exit codes](exit-codes.md) {_CODES}
are common to all commands; the sections below list the others.
"""


def page() -> str:
    """Return the text of the page."""
    lines = [_INTRODUCTION, *_index(), "## Global options", "", *_options(GLOBAL)]
    for name, row in named_commands().items():
        lines += _section(name, load(row))
    return text_of(lines)


def _index() -> list[str]:
    cells = [
        (f"[`{name}`](#trainctl-{name.replace(' ', '-')})", row.help)
        for name, row in named_commands().items()
    ]
    return table(("command", "description"), cells)


def _section(name: str, command: CliCommand) -> Iterator[str]:
    yield from (f"## trainctl {name}", "", prose(cleandoc(command.help)), "")
    usage = ["trainctl", name, "[OPTIONS]", *map(argument_name, command.arguments)]
    yield from fence("text", " ".join(usage))
    if command.arguments:
        rows = ((code(argument_name(one)), one.usage.help) for one in command.arguments)
        yield from table(("argument", "description"), rows)
    yield from _options(command.options)
    notes = NOTES[name]
    if notes.exit_codes:
        rows = ((code(str(one)), notes.exit_codes[one]) for one in sorted(notes.exit_codes))
        yield from table(("exit code", "meaning"), rows)
    yield from fence("text", "\n".join(notes.examples))


def _options(options: Iterable[CommandParameter]) -> list[str]:
    rows = map(option_row, options)
    return table(("option", "description"), ((code(name.strip()), text) for name, text in rows))
