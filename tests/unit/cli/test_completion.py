"""Shell completion: what a shell's script gets for the words of a line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.core import TyperArgument

from tests.support.projects.program import trainctl
from trainctl.cli.app import LazyGroup, build
from trainctl.cli.completion import ADDRESS_COMMANDS

MANIFEST = """\
project: {name: demo}
jobs:
  fit:
    matrix: {lr: [1, 2]}
    runtime: {start_commands: ["true"]}
  sum: {runtime: {start_commands: ["true"]}}
"""


@pytest.fixture
def places(tmp_path: Path) -> dict[str, str]:
    """Variables of a user whose project is ``project``."""
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "trainctl.yaml").write_text(MANIFEST)
    return {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}


def completed(places: dict[str, str], line: str) -> list[str]:
    """What bash gets for a line, whose last word is the incomplete one."""
    asked = {
        "COMP_WORDS": f"trainctl {line}",
        "COMP_CWORD": str(len(line.split(" "))),
        "_TRAINCTL_COMPLETE": "complete_bash",
    }
    done = trainctl(cwd=Path(places["HOME"], "project"), environment=places | asked)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def first_arguments(group: LazyGroup, path: str = "") -> Iterator[tuple[str, str | None]]:
    """The first argument of every command."""
    for row in group.rows:
        command = group.get_command(None, row.name)
        name = f"{path}{row.name}"
        if isinstance(command, LazyGroup):
            yield from first_arguments(command, f"{name} ")
        elif command is not None:
            arguments = [item for item in command.params if isinstance(item, TyperArgument)]
            yield name, arguments[0].metavar if arguments else None


def test_commands_with_addresses_are_known() -> None:
    """Completion reads a list of them, because loading a command takes too long."""
    metavars = dict(first_arguments(build()))
    named = {name for name, metavar in metavars.items() if str(metavar).startswith("ADDRESS")}
    assert named | {"state mv"} == set(ADDRESS_COMMANDS)


def test_addresses_come_from_manifest_and_state(places: dict[str, str]) -> None:
    """With -C and --state too; jobs of a sweep after a bracket; a change of the manifest counts at once."""
    jobs = ["job.fit", "job.sum"]
    assert completed(places, "logs --tail 3 job.") == jobs
    assert completed(places, "plan --target job.f") == ["job.fit"]
    assert completed(places, "run job.fit[") == ['job.fit["lr=1"]', 'job.fit["lr=2"]']
    manifest = Path(places["HOME"], "project", "trainctl.yaml")
    manifest.write_text(MANIFEST.replace("sum:", "total:"))
    assert completed(places, "-C . status job.t") == ["job.total"]
    manifest.write_text("jobs: [")
    assert completed(places, "logs ") == []
    assert not manifest.with_name(".trainctl").exists()


def test_commands_and_options_are_completed(places: dict[str, str]) -> None:
    assert completed(places, "sta") == ["status", "state"]
    assert completed(places, "state m") == ["mv", "migrate"]
    assert completed(places, "logs --fo") == ["--follow", "--format"]
    assert completed(places, "--ins") == ["--install-completion"]
