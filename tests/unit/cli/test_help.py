"""Help pages: summaries, examples, and the same words for the same option."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainctl.cli.app import COMMANDS, CommandGroup, build
from trainctl.cli.help import command_help

WIDTH = 78


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
