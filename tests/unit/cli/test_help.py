"""Help pages: summaries, examples, and the same words for the same option."""

from __future__ import annotations

from trainctl.cli.app import COMMANDS, load, named_commands
from trainctl.cli.help import command_help

WIDTH = 78
PAGES = {
    name: command_help(load(row), f"trainctl {name}", WIDTH)
    for name, row in named_commands().items()
}


def test_summaries_are_short() -> None:
    rows = {row.name: row for row in COMMANDS} | named_commands()
    assert [
        name
        for name, summary in ((name, row.help) for name, row in rows.items())
        if not (len(summary) <= 60 and 3 <= len(summary.split()) <= 10 and summary[0].isupper())
        or summary.endswith(".")
    ] == []


def test_pages_have_no_python_types_and_fit_80_columns() -> None:
    for name, page in PAGES.items():
        head = page.partition("\nExit codes")[0].partition("\nExample")[0]
        assert "<" not in head, name
        assert max(map(len, head.splitlines())) <= WIDTH, name
        assert "Global options: " in page, name
