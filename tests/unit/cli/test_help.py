"""Help pages: summaries, examples, and the same words for the same option."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from typer.core import TyperOption

from trainctl.cli.app import COMMANDS, CommandGroup, build
from trainctl.cli.help import command_help, option_row, root_help

WIDTH = 78
DAILY = {
    "plan", "apply", "destroy", "run", "reconcile", "status", "logs", "metrics", "stop",
    "checkpoints list", "checkpoints download", "checkpoints url", "checkpoints upload", "mirror list",
    "mirror verify", "mirror gc", "cache summarize", "cache clear", "cache verify", "cache evict",
    "nodes list", "nodes forget", "secrets check", "secrets push", "history", "show",
}  # fmt: skip
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


def test_daily_commands_have_examples() -> None:
    assert PAGES.keys() >= DAILY
    for name in DAILY:
        examples = PAGES[name].partition("\nExample")[2]
        assert f"\n  trainctl {name}" in examples


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


def test_durations_are_durations() -> None:
    """Every length of time has the metavar DURATION; TIME is a point in time."""
    found = {
        option_row(option)[0].partition(" ")[2]
        for _, command in commands()
        for option in command.params
        if isinstance(option, TyperOption)
        and option.name in ("lock_timeout", "interval", "grace", "drop_unused", "older_than", "expires")
    }  # fmt: skip
    assert found == {"DURATION"}


def test_the_text_of_destroy_names_dependents() -> None:
    """``--target`` of a destroying command removes what depends on the resource, and its help says so."""
    page = " ".join(PAGES["destroy"].split())
    assert "Destroy only this resource and its dependents" in page
    assert "Keep this resource and its dependencies" in page
    for name in ("plan", "apply"):
        assert "with --destroy, this resource and its dependents" in " ".join(PAGES[name].split())


def test_the_program_lists_global_options_and_examples() -> None:
    root = build()
    page = root_help(root, [("Core commands", [("plan", "Preview")])], WIDTH)
    for word in ("Core commands:", "--chdir DIR", "--state URL", "--log-level LEVEL", "Examples:"):
        assert word in page
