"""Layout of help pages; imported only to show one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from textwrap import wrap
from typing import Any

from typer.core import TyperArgument, TyperOption

from trainctl.cli.command_notes import help_lines

Row = tuple[str, str]
"""A name and its description."""
Section = tuple[str, Sequence[Row]]
"""A heading and the rows below it."""

_SECTIONS = ("Options", "Output", "Scope", "Variables and policy")
"""Groups of options, in the order of help pages; an option belongs to the first unless it says otherwise."""
_MIN_GROUPED = 10
"""A command with fewer options lists them in one section."""
_MAX_NAME_COLUMNS = 24
_ROOT_EXAMPLES = (
    "trainctl plan",
    "trainctl apply --wait",
    "trainctl logs job.train --follow",
)


def command_help(command: Any, path: str, width: int) -> str:
    """Return the help page of a command; ``path`` is ``trainctl`` and the words that name it."""
    arguments = [parameter for parameter in command.params if isinstance(parameter, TyperArgument)]
    rows = [(argument_name(argument), argument.help or "") for argument in arguments]
    usage = " ".join([path, "[OPTIONS]", *(name for name, _ in rows)])
    notes = help_lines(path.partition(" ")[2])
    ending = ["", 'Global options: -C, --state, --env, --log-level (see "trainctl --help")']
    ending += ["", *notes] if notes else []
    return _page(command.help, usage, [("Arguments", rows), *_options(command)], ending, width)


def group_help(
    summary: str, path: str, rows: Sequence[Row], default: str | None, width: int
) -> str:
    """Return the help page of a group of commands."""
    commands = [(name, f"{text} (default)" if name == default else text) for name, text in rows]
    usage = f"{path} {'[COMMAND]' if default else 'COMMAND'} [OPTIONS]"
    ending = ("", f'Run "{path} COMMAND --help" for more information about a command.')
    return _page(summary, usage, [("Commands", commands)], ending, width)


def root_help(root: Any, commands: Sequence[Section], width: int) -> str:
    """Return the help page of the program."""
    global_options = ("Global options", [*_option_rows(root.params), _HELP_ROW])
    ending = [
        *_section_lines([global_options], width),
        *("", "Examples:", *(f"  {line}" for line in _ROOT_EXAMPLES)),
        *("", 'Run "trainctl help COMMAND" for more information about a command.'),
    ]
    return _page(root.help, "trainctl [OPTIONS] COMMAND [ARGS]...", commands, ending, width)


def _page(
    text: str | None, usage: str, sections: Sequence[Section], ending: Iterable[str], width: int
) -> str:
    lines: list[str] = []
    for paragraph in (text or "").split("\n\n"):
        lines += ["", *wrap(" ".join(paragraph.split()), width)]
    body = [*lines[1:], "", f"Usage: {usage}", *_section_lines(sections, width)]
    return "\n".join([*body, *ending, ""])


_HELP_ROW = ("-h, --help", "Show help")


def argument_name(argument: TyperArgument) -> str:
    """Return an argument as usage lines show it: ``ADDRESS``, ``[PLANFILE]``, ``ADDRESS...``."""
    name = argument.display_name_raw
    return (name if argument.required else f"[{name}]") + ("..." if argument.nargs != 1 else "")


def option_row(option: TyperOption) -> Row:
    """Return an option as help pages list it: its name with the metavar, its text with the default.

    A switch that is on by default is listed by the name that turns it off.
    """
    names = option.opts
    if option.secondary_opts and option.default:
        names = option.secondary_opts
    short = next((f"{name}, " for name in names if not name.startswith("--")), "")
    long = next(name for name in names if name.startswith("--"))
    metavar = "" if option.is_flag else f" {option.metavar or (option.name or '').upper()}"
    value = option.default.value if isinstance(option.default, Enum) else option.default
    is_shown = option.show_default and value is not None and not isinstance(value, bool)
    default = f" [default: {value}]" if is_shown else ""
    return f"{short}{long}{metavar}", f"{option.help or ''}{default}"


def _option_rows(parameters: Iterable[Any]) -> list[Row]:
    """Rows of the options; long names are aligned if some have a short name, too."""
    rows = [option_row(parameter) for parameter in parameters if isinstance(parameter, TyperOption)]
    if all(name.startswith("--") for name, _ in rows):
        return rows
    return [(name if name[1] != "-" else f"    {name}", text) for name, text in rows]


def _options(command: Any) -> Iterator[Section]:
    options = [parameter for parameter in command.params if isinstance(parameter, TyperOption)]
    if len(options) < _MIN_GROUPED:
        yield _SECTIONS[0], _option_rows(options)
        return
    for title in _SECTIONS:
        section = [
            option for option in options if (option.rich_help_panel or _SECTIONS[0]) == title
        ]
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
