"""What starting costs: which modules are loaded, and by whom."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.program import ROOT
from trainctl.cli.app import COMMANDS, Group

HEAVY = {
    "pydantic", "pydantic_core", "yaml", "jsonschema", "deepdiff", "huggingface_hub", "boto3", "paramiko", "rich",
    "httpx", "requests", "tomli", "logging", "asyncio", "importlib.metadata", "ssl",
}  # fmt: skip
_PROGRAM = """
import json, sys
from trainctl.cli.main import main
code = main({words!r})
print(json.dumps([code, sorted(sys.modules)]), file=sys.stderr)
"""


def loaded(*words: str) -> set[str]:
    """The modules that one command line loads."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", _PROGRAM.format(words=list(words))],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    code, modules = json.loads(done.stderr)
    assert code == 0
    return set(modules)


@pytest.mark.parametrize(
    "words",
    [
        ["version"],
        ["version", "--format", "json"],
        ["--no-color", "-C", "/", "version"],
        ["--help"],
        ["version", "--help"],
    ],
    ids=" ".join,
)
def test_version_and_help_load_nothing_heavier_than_typer(words: list[str]) -> None:
    """Only the standard library, typer with its two small companions, and our own few modules."""
    modules = loaded(*words)
    assert not modules & HEAVY
    foreign = {name.partition(".")[0] for name in modules} - set(sys.stdlib_module_names)
    allowed = {"__main__", "trainctl", "typer", "shellingham", "annotated_doc"}
    assert {name for name in foreign if not name.startswith(("_", "a1_"))} <= allowed


def test_the_plain_question_for_the_version_loads_no_parser() -> None:
    """``trainctl version`` is asked by scripts and prompts all day: it does without typer."""
    modules = loaded("version")
    assert "typer" not in modules
    assert {name for name in modules if name.startswith("trainctl")} == {
        "trainctl", "trainctl.cli", "trainctl.cli.main",
    }  # fmt: skip


def test_every_row_of_the_table_has_its_module() -> None:
    """The table names exactly the modules that are there."""
    rows = [one for row in COMMANDS for one in (row.commands if isinstance(row, Group) else (row,))]
    folder = ROOT / "trainctl" / "cli" / "commands"
    there = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert {row.module for row in rows} == there


def test_help_imports_no_command() -> None:
    """The list of commands comes from the table."""
    assert not [name for name in loaded("--help") if name.startswith("trainctl.cli.commands.")]


def test_a_command_imports_no_other_command() -> None:
    """Only the module of the invoked command is loaded."""
    names = {
        name for name in loaded("version", "--help") if name.startswith("trainctl.cli.commands.")
    }
    assert names == {"trainctl.cli.commands.version"}


def test_listing_plugins_imports_none_of_them() -> None:
    """A plugin is loaded when it is asked for by name, not when the names are listed."""
    program = (
        "import sys\n"
        "from trainctl.spi.discovery import PROVIDERS, STATE, names\n"
        "print(names(PROVIDERS) + names(STATE))\n"
        "print([name for name in sys.modules if name.startswith('trainctl_')])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    listed, imported = done.stdout.splitlines()
    assert "local" in listed
    assert imported == "[]"
