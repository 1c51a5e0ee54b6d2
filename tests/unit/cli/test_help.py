"""Help pages: summaries, examples, and the same words for the same option."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from typer.core import TyperOption

from trainctl.cli.app import COMMANDS, CommandGroup, build
from trainctl.cli.help import command_help, option_row

WIDTH = 78
OWN_WORDS = {
    "--all", "--cluster", "--dry-run", "--exclude", "--follow", "--format", "--name", "--out", "--rank", "--run", "--since",
    "--sort", "--target",
}  # fmt: skip
"""Options with a text that depends on the command."""


def summaries() -> Iterator[tuple[str, str]]:
    for row in COMMANDS:
        yield row.name, row.help
        if isinstance(row, CommandGroup):
            yield from ((f"{row.name} {below.name}", below.help) for below in row.commands)


def commands() -> Iterator[tuple[str, Any]]:
    root = build()
    for row in COMMANDS:
        command: Any = root.get_command(None, row.name)
        if isinstance(row, CommandGroup):
            for below in row.commands:
                yield f"{row.name} {below.name}", command.get_command(None, below.name)
        else:
            yield row.name, command


PAGES = {name: command_help(command, f"trainctl {name}", WIDTH) for name, command in commands()}


def test_summaries_are_short() -> None:
    """Three to ten words in at most 60 characters, without a full stop."""
    assert [
        name
        for name, summary in summaries()
        if not (len(summary) <= 60 and 3 <= len(summary.split()) <= 10 and summary[0].isupper())
        or summary.endswith(".")
    ] == []


def test_pages_have_no_python_types_and_fit_80_columns() -> None:
    for name, page in PAGES.items():
        head = page.partition("\nExit codes")[0].partition("\nExample")[0]
        assert "<" not in head, name
        assert max(map(len, head.splitlines())) <= WIDTH, name
        assert "Global options: " in page, name


def test_an_option_has_one_metavar_and_one_text() -> None:
    metavars, texts = defaultdict(set), defaultdict(set)
    for _, command in commands():
        for option in command.params:
            if isinstance(option, TyperOption):
                shown, text = option_row(option)
                flag, _, metavar = shown.rpartition(", ")[2].partition(" ")
                metavars[flag].add(metavar)
                texts[flag].add(text.partition(" [default")[0])
    assert metavars.pop("--out") == {"FILE", "DIR"}
    assert not {flag: found for flag, found in metavars.items() if len(found) > 1}
    assert {flag for flag, found in texts.items() if len(found) > 1} <= OWN_WORDS
