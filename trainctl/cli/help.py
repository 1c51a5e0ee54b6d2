"""Layout of help pages; imported only to show one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from textwrap import wrap

from trainctl.cli.app import COMMAND_SECTIONS, GLOBAL, HELP, CliCommand, CommandGroup
from trainctl.cli.options import CommandParameter

Row = tuple[str, str]
"""A name and its description."""
Section = tuple[str, Sequence[Row]]
"""A heading and the rows below it."""

_SECTIONS = ("Options", "Output", "Scope", "Variables and policy")
"""Groups of options, in the order of help pages; an option belongs to the first unless it says otherwise."""
_MIN_GROUPED = 10
"""A command with fewer options lists them in one section."""
_MAX_NAME_COLUMNS = 24
_MAX_COLUMNS, _MIN_WIDTH = 80, 50
_ROOT_EXAMPLES = (
    "trainctl plan",
    "trainctl apply --wait",
    "trainctl logs job.train --follow",
)


def help_page(target: CliCommand | CommandGroup, path: Sequence[str], columns: int) -> str:
    """Return the help page of a command or a group, ``path``, for a terminal of so many columns."""
    width = max(min(columns, _MAX_COLUMNS) - 2, _MIN_WIDTH)
    words = " ".join(["trainctl", *path])
    if isinstance(target, CliCommand):
        return command_help(target, words, width)
    return group_help(target, words, width) if path else _root_help(target, width)


def command_help(command: CliCommand, path: str, width: int) -> str:
    """Return the help page of a command; ``path`` is ``trainctl`` and the words that name it."""
    from trainctl.cli.command_notes import help_lines

    rows = [(argument_name(item), item.usage.help) for item in command.arguments]
    usage = " ".join([path, "[OPTIONS]", *(name for name, _ in rows)])
    notes = help_lines(path.partition(" ")[2])
    ending = ["", 'Global options: -C, --state, --env, --log-level (see "trainctl --help")']
    ending += ["", *notes] if notes else []
    return _page(command.help, usage, [("Arguments", rows), *_options(command)], ending, width)


def group_help(group: CommandGroup, path: str, width: int) -> str:
    """Return the help page of a group of commands."""
    rows = [
        (row.name, f"{row.help} (default)" if row.name == group.default else row.help)
        for row in group.commands
    ]
    usage = f"{path} {'[COMMAND]' if group.default else 'COMMAND'} [OPTIONS]"
    ending = ("", f'Run "{path} COMMAND --help" for more information about a command.')
    return _page(f"{group.help}.", usage, [("Commands", rows)], ending, width)


def _root_help(root: CommandGroup, width: int) -> str:
    global_options = ("Global options", [*_option_rows(GLOBAL), option_row(HELP)])
    sections = [
        (title, [(row.name, row.help) for row in rows]) for title, rows in COMMAND_SECTIONS.items()
    ]
    ending = [
        *_section_lines([global_options], width),
        *("", "Examples:", *(f"  {line}" for line in _ROOT_EXAMPLES)),
        *("", 'Run "trainctl help COMMAND" for more information about a command.'),
    ]
    return _page(f"{root.help}.", "trainctl [OPTIONS] COMMAND [ARGS]...", sections, ending, width)


def _page(
    text: str, usage: str, sections: Sequence[Section], ending: Iterable[str], width: int
) -> str:
    lines: list[str] = []
    for paragraph in text.split("\n\n"):
        lines += ["", *wrap(" ".join(paragraph.split()), width)]
    body = [*lines[1:], "", f"Usage: {usage}", *_section_lines(sections, width)]
    return "\n".join([*body, *ending])


def argument_name(item: CommandParameter) -> str:
    """Return an argument as usage lines show it: ``ADDRESS``, ``[PLANFILE]``, ``ADDRESS...``."""
    name = item.usage.metavar
    return (name if item.required else f"[{name}]") + ("..." if item.repeatable else "")


def option_row(item: CommandParameter) -> Row:
    """Return an option as help pages list it: its name with the metavar, its text with the default.

    A switch that is on by default is listed by the name that turns it off.
    """
    usage, value = item.usage, item.default
    names = (usage.negative,) if usage.negative and value else usage.names
    short = next((f"{name}, " for name in names if not name.startswith("--")), "")
    long = next(name for name in names if name.startswith("--"))
    metavar = f" {usage.metavar}" if usage.metavar else ""
    is_shown = usage.show_default and value is not None and item.kind is not bool
    default = f" [default: {value}]" if is_shown else ""
    return f"{short}{long}{metavar}", f"{usage.help}{default}"


def _option_rows(options: Iterable[CommandParameter]) -> list[Row]:
    """Rows of options; long names are aligned if some have a short name, too."""
    rows = [option_row(item) for item in options]
    if all(name.startswith("--") for name, _ in rows):
        return rows
    return [(name if name[1] != "-" else f"    {name}", text) for name, text in rows]


def _options(command: CliCommand) -> Iterator[Section]:
    if len(command.options) < _MIN_GROUPED:
        yield _SECTIONS[0], _option_rows(command.options)
        return
    for title in _SECTIONS:
        section = [item for item in command.options if (item.usage.panel or _SECTIONS[0]) == title]
        yield title, _option_rows(section)


def _section_lines(sections: Sequence[Section], width: int) -> Iterator[str]:
    """Yield the sections that have rows, all descriptions in one column."""
    longest = max((len(name) for _, rows in sections for name, _ in rows), default=0)
    column = min(longest, _MAX_NAME_COLUMNS) + 4
    for title, rows in sections:
        if rows:
            yield from ("", f"{title}:")
        for name, text in rows:
            described = wrap(text, width - column)
            head = f"  {name}"
            if len(head) + 2 <= column and described:
                head = f"{head:{column}}{described.pop(0)}"
            yield head
            yield from (f"{'':{column}}{line}" for line in described)
