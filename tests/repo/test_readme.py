"""The README says what the program does: commands, exit codes, the two commands for newcomers."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tests.support.projects.program import ROOT
from trainctl import errors
from trainctl.cli.app import COMMANDS, CommandGroup, CommandRow

README = (ROOT / "README.md").read_text()


def section(title: str) -> str:
    found = re.search(
        rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", README, re.MULTILINE | re.DOTALL
    )
    assert found, f"README.md has no section {title!r}"
    return found[1]


def first_column(text: str) -> list[str]:
    """The code in the first cell of each row of the tables in a section."""
    cells = re.findall(r"^\|([^|]*)\|", text, re.MULTILINE)
    return [code for cell in cells for code in re.findall(r"`([^`]+)`", cell)]


def names(rows: Iterable[CommandRow | CommandGroup], before: str = "") -> set[str]:
    found: set[str] = set()
    for row in rows:
        found |= (
            names(row.commands, f"{row.name} ")
            if isinstance(row, CommandGroup)
            else {before + row.name}
        )
    return found


def test_every_command_is_in_the_table_and_no_other() -> None:
    """The README's table of commands and the program's are the same."""
    # A row may show arguments: `logs ADDRESS` is the command `logs`.
    shown = {re.sub(r"( [A-Z\[].*)$", "", code) for code in first_column(section("Commands"))}
    assert shown == names(COMMANDS)


def test_every_exit_code_is_explained() -> None:
    """The README explains the exit code of every error class, success, and the code for changes."""
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    codes = {one.exit_code for one in classes if issubclass(one, errors.TrainctlError)} | {0, 2}
    shown = {int(code) for code in first_column(section("Exit codes"))}
    assert shown == codes


def test_the_two_commands_of_a_newcomer_exist() -> None:
    """The README names the command that runs the quickstart and the one that runs the tests, and both are there."""
    for name in ("examples/quickstart/run", "tests/run"):
        assert re.search(rf"^ +{name}$", README, re.MULTILINE), name
        assert (ROOT / name).exists()


def test_the_links_lead_somewhere() -> None:
    """Each relative link of the README is a file or folder of the project."""
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", README)
    assert links
    assert not [link for link in links if not (ROOT / link).exists()]
