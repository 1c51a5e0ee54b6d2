"""What starting costs: which modules are loaded, and by whom."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.support.projects.program import ROOT
from tests.support.projects.project import project
from trainctl.cli.app import named_commands

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
_STARTED = """
import sys
started = []
sys.addaudithook(lambda event, what: started.append(what[0]) if event == "subprocess.Popen" else None)
from trainctl.cli.main import main
main()
print(started, file=sys.stderr)
"""


@cache
def loaded(*words: str) -> frozenset[str]:
    """The modules that one command line loads."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", _PROGRAM.format(words=list(words))],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    code, modules = json.loads(done.stderr)
    assert code == 0
    return frozenset(modules)


@pytest.mark.parametrize(
    "words",
    [
        ["version"],
        ["--no-color", "-C", "/", "version", "--format", "json"],
        ["--help"],
        ["version", "--help"],
    ],
    ids=" ".join,
)
def test_version_and_help_load_nothing_heavy(words: list[str]) -> None:
    """Only the standard library, and our own few modules."""
    modules = loaded(*words)
    assert not modules & HEAVY
    foreign = {name.partition(".")[0] for name in modules} - set(sys.stdlib_module_names)
    own = {"__main__", "trainctl", "sitecustomize"}  # the last is Debian's
    assert {name for name in foreign if not name.startswith(("_", "a1_"))} <= own


def test_the_plain_question_for_the_version_loads_no_parser() -> None:
    """``trainctl version`` is asked by scripts and prompts all day."""
    modules = loaded("version")
    assert {name for name in modules if name.startswith("trainctl")} == {
        "trainctl", "trainctl.cli", "trainctl.cli.main",
    }  # fmt: skip


def test_every_row_of_the_table_has_its_module() -> None:
    folder = ROOT / "trainctl" / "cli" / "commands"
    there = {
        ".".join(path.relative_to(folder).with_suffix("").parts)
        for path in folder.rglob("*.py")
        if path.stem != "__init__"
    }
    assert {row.module for row in named_commands().values()} == there


def test_help_imports_no_command() -> None:
    assert not [name for name in loaded("--help") if name.startswith("trainctl.cli.commands.")]


def test_a_command_imports_no_other_command() -> None:
    names = {
        name for name in loaded("version", "--help") if name.startswith("trainctl.cli.commands.")
    }
    assert names == {"trainctl.cli.commands.version"}


def test_listing_plugins_imports_none_of_them() -> None:
    program = (
        "import sys\n"
        "from trainctl.plugin_api.discovery import PROVIDERS, STATE, plugin_names\n"
        "print(plugin_names(PROVIDERS) + plugin_names(STATE))\n"
        "print([name for name in sys.modules if name.startswith('trainctl_')])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    listed, imported = done.stdout.splitlines()
    assert "local" in listed
    assert imported == "[]"


def test_validating_loads_neither_state_nor_nodes_nor_mirror(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What opens them is loaded by who asks for them; the manifest alone needs none."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "trainctl.yaml").write_text("jobs: {fit: {runtime: {start_commands: [a]}}}\n")
    rooms = (
        "trainctl.ledger.ledger",
        "trainctl.remote.session",
        "trainctl.resources",
        "trainctl.weights",
    )
    modules = loaded("-C", str(tmp_path), "validate")
    assert "trainctl.operations.workspace" in modules
    assert [name for name in modules if name.startswith(rooms)] == []


@pytest.mark.integration
def test_a_plan_of_which_nothing_is_on_a_node_starts_no_program(tmp_path: Path) -> None:
    """Where only projects are declared, the nodes of this machine have nothing to tell, and no process is begun there."""
    with project(tmp_path) as created:
        created.write(
            {"trainctl.yaml": "projects: {a: {}, b: {}}\nclusters: {box: {provider: local}}\n"}
        )
        created.run("apply", "--auto-approve")
        done = created.run("plan", program=("-c", _STARTED))
    assert "No changes" in done.stdout
    assert done.stderr.splitlines()[-1] == "[]"


EVERYDAY = {"plan": 212, "status": 192, "logs job.fit": 166, "nodes list": 143}
"""Modules of trainctl that a command loads, at most: a new one needs a reason, and the number with it."""
RARE = (HEAVY - {"logging"}) | {
    "pathspec",
    "http.client",
    "csv",
    "html",
    "email.message",
    "obstore",
}


@pytest.mark.integration
def test_everyday_commands_load_what_they_use(tmp_path: Path) -> None:
    """In a project of one job on this machine, of which nothing has changed."""
    with project(tmp_path) as created:
        created.write(
            {"trainctl.yaml": "jobs: {fit: {runtime: {start_commands: ['true']}}}\n", "a.py": ""}
        )
        created.run("apply", "--auto-approve", "--wait")
        created.run("plan")  # keeps what is kept
        modules = {}
        for command in EVERYDAY:
            done = created.run(
                *command.split(), program=("-c", _PROGRAM.format(words=command.split()))
            )
            modules[command] = json.loads(done.stderr.splitlines()[-1])[1]
    assert {command: RARE.intersection(names) for command, names in modules.items()} == {
        command: set() for command in EVERYDAY
    }
    count = {c: sum(n.startswith("trainctl") for n in names) for c, names in modules.items()}
    assert {
        command: count[command] for command in EVERYDAY if count[command] > EVERYDAY[command]
    } == {}


def test_modules_compile_nothing_when_they_are_imported() -> None:
    """Dataclasses, patterns and typed dictionaries are made complete when they are used."""
    eager = re.compile(
        r"^from dataclasses import .*\bdataclass\b|^\w+ = re\.compile|^from typing import .*\bTypedDict\b",
        re.MULTILINE,
    )
    files = [
        path for root in ("trainctl", "providers", "state") for path in (ROOT / root).rglob("*.py")
    ]
    assert [str(path) for path in files if eager.search(path.read_text())] == []
