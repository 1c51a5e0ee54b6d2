"""Shell completion: what a shell's script gets for the words of a line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.projects.program import trainctl
from trainctl.cli.app import load, named_commands
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


def test_commands_with_addresses_are_known() -> None:
    """Completion reads a list of them, because loading a command takes too long."""
    first = {name: load(row).arguments[:1] for name, row in named_commands().items()}
    named = {
        name for name, items in first.items() if [1 for i in items if i.usage.metavar == "ADDRESS"]
    }
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


def test_a_script_is_installed_once_and_asks_the_program(places: dict[str, str]) -> None:
    """The line that loads it is appended to what the user has; addresses with brackets arrive as they are."""
    settings = Path(places["HOME"], ".bashrc")
    settings.write_text("alias a=b")
    for shell, place in (("bash", ".bash_completions/trainctl.sh"), ("zsh", ".zfunc/_trainctl")):
        for _ in range(2):
            done = trainctl("--install-completion", environment=places | {"SHELL": f"/bin/{shell}"})
            script = Path(places["HOME"], place)
            assert done.stdout == f"Wrote {script}. Start a new {shell} to use it.\n"
    assert settings.read_text() == "alias a=b\nsource ~/.bash_completions/trainctl.sh\n"
    line = 'COMP_WORDS=(trainctl run "job.fit["); COMP_CWORD=2; _trainctl_completion trainctl'
    shown = f'source ~/.bash_completions/trainctl.sh; {line}; echo "${{COMPREPLY[*]}}"'
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    asked = subprocess.run(
        ["bash", "-c", shown], cwd=Path(places["HOME"], "project"), env=places | {"PATH": path}, capture_output=True, text=True, check=True
    )  # fmt: skip
    assert asked.stdout == 'job.fit["lr=1"] job.fit["lr=2"]\n'
    refused = trainctl("--install-completion", environment=places | {"SHELL": "/bin/tcsh"})
    assert refused.returncode == 64
