"""Read a command line: one pass finds the command and sorts the words, then they become values.

Global options may be at any place, and options may have Terraform's spellings. Values of options
and everything after ``--`` are not changed.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from trainctl.base.lazy_dataclass import dataclass, field
from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.cli.app import GLOBAL, HELP, CliCommand, CommandGroup, load
from trainctl.cli.options import CommandParameter
from trainctl.errors import UsageError

_LONG = compile_lazily(r"-{1,2}(?P<name>[A-Za-z][A-Za-z0-9_-]+)(?P<value>=.*)?", re.DOTALL)
_TRUE, _FALSE = ("true", "1"), ("false", "0")
_KINDS: Mapping[type[Any], str] = {int: "an integer", float: "a number"}

_WITHOUT_NUMBER = {"logs --tail": "--follow"}
"""Options that take a number, and those that they mean without one, as ``truss train logs --tail`` does."""

Words: TypeAlias = dict[str, list[Any]]
"""What was typed for options, by the parameter: words, or whether a switch is on."""


@dataclass(slots=True)
class CommandLine:
    """The words sorted so far; ``target`` is the deepest command or group named, ``path`` its name.

    ``help`` is the first target whose help was asked for, with its path.
    """

    target: CliCommand | CommandGroup
    path: list[str] = field(default_factory=list)
    options: Words = field(default_factory=dict)
    global_options: Words = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)
    help: tuple[CliCommand | CommandGroup, list[str]] | None = None

    def ask_help(self) -> None:
        """Note that the help page of the target is asked for."""
        self.help = self.help or (self.target, [*self.path])


class _Flag(NamedTuple):
    """A spelling of an option; ``switch`` is what it makes of a switch, ``words`` are of the same level."""

    parameter: CommandParameter
    switch: bool | None
    words: Words


def read_arguments(arguments: Sequence[str], root: CommandGroup) -> CommandLine:
    """Sort the words of a command line; UsageError suggests similar names."""
    line = CommandLine(root)
    todo = deque(arguments)
    asks_help = False
    while todo:
        word = todo.popleft()
        if word == "--":
            while todo:
                _read_word(line, todo.popleft(), todo)
        elif word.startswith("-") and len(word) > 1 and word[1] not in "0123456789.":
            _read_flag(line, word, todo)
        elif word == "help" and not line.path and not asks_help:
            asks_help = True  # "help COMMAND" is "COMMAND --help"
        else:
            _read_word(line, word, todo)
    if asks_help:
        line.ask_help()
    if line.help is None:
        _use_default_command(line)
        if isinstance(line.target, CommandGroup) and line.path:
            choices = ", ".join(row.name for row in line.target.commands)
            raise UsageError(f"{' '.join(line.path)}: missing command", f"Use one of: {choices}.")
    return line


def values_of(
    parameters: Iterable[CommandParameter],
    options: Words,
    arguments: Sequence[str],
    path: Sequence[str],
) -> dict[str, Any]:
    """Return the value of each parameter; UsageError for the first word that is wrong, or missing."""
    words, rest = dict(options), list(arguments)
    known = {item.name: item for item in parameters}
    for item in known.values():
        if not item.usage.names:
            end = len(rest) if item.repeatable else 1
            words[item.name], rest = rest[:end], rest[end:]
    values = {name: _value(known[name], words.get(name), path) for name in words | known}
    if rest:
        raise _refusal(path, f"got unexpected extra argument(s) ({' '.join(rest)})")
    return values


def _value(item: CommandParameter, words: Sequence[Any] | None, path: Sequence[str]) -> Any:
    if not words:
        if item.required:
            kind = "option" if item.usage.names else "argument"
            raise _refusal(path, f"missing {kind} {_quoted(item)}")
        return item.default
    values = []
    for word in words if item.repeatable else words[-1:]:
        try:
            values.append(item.kind(word))
        except ValueError:
            wanted = _KINDS.get(item.kind) or "one of " + ", ".join(item.kind)
            text = f"invalid value for {_quoted(item)}: {word!r} is not {wanted}"
            raise _refusal(path, text) from None
    return values if item.repeatable else values[0]


def _quoted(item: CommandParameter) -> str:
    return " / ".join(f"'{name}'" for name in item.usage.names or (item.usage.metavar,))


def _refusal(path: Sequence[str], text: str) -> UsageError:
    command = " ".join(["trainctl", *path])
    prefix = f"{' '.join(path)}: " if path else ""
    return UsageError(f"{prefix}{text}", f"Run {command} --help for its arguments.")


def _read_word(line: CommandLine, word: str, todo: deque[str]) -> None:
    if isinstance(line.target, CliCommand):
        line.arguments.append(word)
        return
    rows = {row.name: row for row in line.target.commands}
    if todo and f"{word} {todo[0]}" in rows:  # a name of two words, such as "import truss"
        word = f"{word} {todo.popleft()}"
    if word not in rows:
        path = " ".join([*line.path, word])
        hint = _did_you_mean(word, rows) or "Run trainctl --help for a list of commands."
        raise UsageError(f"unknown command {path!r}", hint)
    row = rows[word]
    line.target = row if isinstance(row, CommandGroup) else load(row)
    line.path.append(word)


def _use_default_command(line: CommandLine) -> None:
    """Continue with the default command of a group."""
    if isinstance(line.target, CommandGroup) and line.target.default:
        _read_word(line, line.target.default, deque())


def _read_flag(line: CommandLine, word: str, todo: deque[str]) -> None:
    known = _flags(line)
    if word[:2] not in known and not _is_long_flag(word, known):
        _use_default_command(line)
        known = _flags(line)
    if word[:2] in known and not word.startswith("--") and not _is_long_flag(word, known):
        name, value = word[:2], word[2:] or None
    else:
        name, value = _match_long_flag(line, word, known)
    flag, switch = known[name], known[name].switch
    if switch is not None and value and not name.startswith("--"):
        todo.appendleft(f"-{value}")  # -fx is -f -x
    elif switch is not None and value is not None:
        if value.lower() not in (*_TRUE, *_FALSE):
            raise UsageError(f"{name}={value}: invalid value", f"Use {name}=true or {name}=false.")
        switch = switch is (value.lower() in _TRUE)
    elif switch is None and value is None:
        without = _WITHOUT_NUMBER.get(" ".join([*line.path, name]))
        if without and not (todo and todo[0].lstrip("-")[:1].isdigit()):
            flag, switch = known[without], True
        else:
            value = _next_value(line, name, todo)
    if flag.parameter is not HELP:
        flag.words.setdefault(flag.parameter.name, []).append(value if switch is None else switch)
    elif switch:
        line.ask_help()


def _flags(line: CommandLine) -> dict[str, _Flag]:
    """Return the options that may come next: the global ones, and those of the command named."""
    own = line.target.options if isinstance(line.target, CliCommand) else []
    flags: dict[str, _Flag] = {}
    for options, words in ((GLOBAL, line.global_options), ([*own, HELP], line.options)):
        for item in options:
            switch = True if item.kind is bool else None
            flags |= dict.fromkeys(item.usage.names, _Flag(item, switch, words))
            if item.usage.negative:
                flags[item.usage.negative] = _Flag(item, False, words)
    return flags


def _match_long_flag(line: CommandLine, word: str, known: Iterable[str]) -> tuple[str, str | None]:
    match = _LONG.fullmatch(word)
    name = f"--{match['name']}" if match else word.partition("=")[0]
    if match is None or name not in known:
        prefix = f"{' '.join(line.path)}: " if line.path else ""
        hint = _did_you_mean(name, [flag for flag in known if flag.startswith("--")])
        path = " ".join(["trainctl", *line.path])
        raise UsageError(
            f"{prefix}unknown option {word.partition('=')[0]}",
            hint or f"Run {path} --help for its options.",
        )
    return name, None if match["value"] is None else match["value"][1:]


def _next_value(line: CommandLine, name: str, todo: deque[str]) -> str:
    if not todo:
        path = " ".join(line.path)
        raise UsageError(f"{path + ': ' if path else ''}missing value for {name}")
    return todo.popleft()


def _is_long_flag(word: str, known: Iterable[str]) -> bool:
    match = _LONG.fullmatch(word)
    return match is not None and f"--{match['name']}" in known


def _did_you_mean(word: str, names: Iterable[str]) -> str:
    from difflib import get_close_matches  # slow to import

    bare = {name.lstrip("-"): name for name in names}  # leading dashes would add similarity
    close = get_close_matches(word.lstrip("-"), bare, n=1)
    return f"Did you mean {bare[close[0]]}?" if close else ""
