"""Normalize arguments: global options first, Terraform's spellings, typos.

Values of options and everything after ``--`` are not changed.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from itertools import pairwise
from typing import TYPE_CHECKING

from typer.core import TyperOption

from trainctl.base.lazy_dataclass import dataclass, field
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.cli.app import LazyGroup
from trainctl.errors import UsageError

if TYPE_CHECKING:
    from typer._click import Command as ClickCommand

_LONG = compile_lazily(r"-{1,2}(?P<name>[A-Za-z][A-Za-z0-9_-]+)(?P<value>=.*)?", re.DOTALL)
_TRUE, _FALSE = ("true", "1"), ("false", "0")


@dataclass(frozen=True, slots=True)
class _Flag:
    """An option; ``negative`` is the spelling of a boolean option's no."""

    takes_value: bool
    negative: str | None = None


_WITHOUT_NUMBER = {"logs --tail": "--follow"}
"""Options that take a number, and those that they mean without one, as ``truss train logs --tail`` does."""

_HELP = {"-h": _Flag(False), "--help": _Flag(False)}


@dataclass(slots=True)
class _ArgumentScan:
    """The arguments sorted so far; ``command`` is the deepest command named."""

    root: LazyGroup
    command: ClickCommand
    path: list[str] = field(default_factory=list)
    front: list[str] = field(default_factory=list)
    rest: list[str] = field(default_factory=list)
    asks_help: bool = False


def normalize_arguments(arguments: Sequence[str], root: LazyGroup) -> list[str]:
    """Return the arguments for the parser; UsageError suggests similar names."""
    words = _ArgumentScan(root, root)
    todo = deque(arguments)
    for first, second in (row.name.split() for row in root.rows if " " in row.name):
        pairs = list(pairwise(arguments))
        if (first, second) in pairs:  # a name of two words, such as "import truss", is one word
            at = pairs.index((first, second))
            todo = deque([*arguments[:at], f"{first} {second}", *arguments[at + 2 :]])
    while todo:
        word = todo.popleft()
        if word == "--":
            words.rest += [word, *todo]
            break
        if word.startswith("-") and len(word) > 1 and word[1] not in "0123456789.":
            _scan_flag(words, word, todo)
        else:
            _scan_word(words, word)
    own = words.rest[: words.rest.index("--")] if "--" in words.rest else words.rest
    if words.asks_help or "--help" in own or "-h" in own:
        return [*words.front, *words.rest, *(["--help"] if words.asks_help else [])]
    _use_default_command(words)
    if isinstance(words.command, LazyGroup) and words.path:
        choices = ", ".join(row.name for row in words.command.rows)
        raise UsageError(f"{' '.join(words.path)}: missing command", f"Use one of: {choices}.")
    return words.front + words.rest


def _scan_word(words: _ArgumentScan, word: str) -> None:
    if word == "help" and not words.path and not words.asks_help:
        words.asks_help = True  # "help COMMAND" is "COMMAND --help"
        return
    if isinstance(words.command, LazyGroup):
        names = [row.name for row in words.command.rows]
        command = words.command.get_command(None, word)
        if command is None:
            path = " ".join([*words.path, word])
            hint = _did_you_mean(word, names) or "Run trainctl --help for a list of commands."
            raise UsageError(f"unknown command {path!r}", hint)
        words.command = command
        words.path.append(word)
    words.rest.append(word)


def _use_default_command(words: _ArgumentScan) -> None:
    """Continue with the default command of a group."""
    if isinstance(words.command, LazyGroup) and words.command.default:
        _scan_word(words, words.command.default)


def _scan_flag(words: _ArgumentScan, word: str, todo: deque[str]) -> None:
    own, common = _flags_of(words.command), _flags_of(words.root)
    if word[:2] not in common | own and not _is_long_flag(word, common | own):
        _use_default_command(words)
        own = _flags_of(words.command)
    known = common | own
    if word[:2] in known and not word.startswith("--") and not _is_long_flag(word, known):
        name, value = word[:2], word[2:] or None
    else:
        name, value = _match_long_flag(words, word, known)
    target = words.rest if name in own else words.front
    flag = known[name]
    if not flag.takes_value and not (name.startswith("--") and value is not None):
        target.append(word if name[1] != "-" else name)
    elif not flag.takes_value:
        if str(value).lower() in _TRUE:
            target.append(name)
        elif str(value).lower() not in _FALSE:
            raise UsageError(f"{name}={value}: invalid value", f"Use {name}=true or {name}=false.")
        elif flag.negative:
            target.append(flag.negative)
    elif value is not None:
        target += [name, value]
    elif (without := _WITHOUT_NUMBER.get(" ".join([*words.path, name]))) and not (
        todo and todo[0].lstrip("-")[:1].isdigit()
    ):
        target.append(without)
    else:
        target += [name, _next_value(words, name, todo)]


def _match_long_flag(
    words: _ArgumentScan, word: str, known: Iterable[str]
) -> tuple[str, str | None]:
    match = _LONG.fullmatch(word)
    name = f"--{match['name']}" if match else word.partition("=")[0]
    if match is None or name not in known:
        prefix = f"{' '.join(words.path)}: " if words.path else ""
        hint = _did_you_mean(name, [flag for flag in known if flag.startswith("--")])
        path = " ".join(["trainctl", *words.path])
        raise UsageError(
            f"{prefix}unknown option {word.partition('=')[0]}",
            hint or f"Run {path} --help for its options.",
        )
    return name, None if match["value"] is None else match["value"][1:]


def _next_value(words: _ArgumentScan, name: str, todo: deque[str]) -> str:
    if not todo:
        path = " ".join(words.path)
        raise UsageError(f"{path + ': ' if path else ''}missing value for {name}")
    return todo.popleft()


def _flags_of(command: ClickCommand) -> dict[str, _Flag]:
    flags = dict(_HELP)
    for option in command.params:
        if isinstance(option, TyperOption):
            negative = option.secondary_opts[0] if option.secondary_opts else None
            flags |= dict.fromkeys(option.opts, _Flag(not option.is_flag, negative))
            if negative:
                flags |= dict.fromkeys(option.secondary_opts, _Flag(False, option.opts[0]))
    return flags


def _is_long_flag(word: str, known: Iterable[str]) -> bool:
    match = _LONG.fullmatch(word)
    return match is not None and f"--{match['name']}" in known


def _did_you_mean(word: str, names: Sequence[str]) -> str:
    bare = {name.lstrip("-"): name for name in names}  # leading dashes would add similarity
    close = get_close_matches(word.lstrip("-"), bare, n=1)
    return f"Did you mean {bare[close[0]]}?" if close else ""
