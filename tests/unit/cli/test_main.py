"""The frame of the program: version, help, exit codes, closed streams."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.projects.program import ROOT, trainctl
from tests.unit.cli.conftest import Declare
from trainctl import __version__
from trainctl.cli.app import COMMANDS
from trainctl.cli.invoke import invoke
from trainctl.cli.session import CliSession


def test_version() -> None:
    for words in (["version"], ["--version"], ["-version"], ["--no-color", "--version"]):
        done = trainctl(*words)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"trainctl {__version__}\n", "")
    form = json.loads(trainctl("version", "--format", "json").stdout)
    assert form["trainctl_version"] == __version__


def test_help_lists_every_command() -> None:
    bare, asked = trainctl(), trainctl("--help")
    assert bare.stdout == asked.stdout
    assert (bare.returncode, asked.returncode) == (0, 0)
    assert all(f"\n  {row.name} " in asked.stdout for row in COMMANDS)


@pytest.mark.parametrize(
    "words",
    [
        ["nonsense"],
        ["version", "--nonsense"],
        ["version", "--format", "xml"],
        ["-C", "/no/such/directory", "version", "--format", "json"],
        ["--log-level", "loud", "version"],
    ],
)
def test_wrong_usage_is_64_in_two_lines(words: list[str]) -> None:
    done = trainctl(*words)
    assert done.returncode == 64
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert 1 <= len(done.stderr.splitlines()) <= 2


def test_full_disk_is_an_error() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "trainctl", "version", "--format", "json"],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "error: No space left on device [failed]\n"


@pytest.mark.parametrize("words", [["version"], ["--help"]])
def test_a_reader_who_left_is_no_traceback(words: list[str]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read(); from trainctl.cli.main import main; sys.exit(main(sys.argv[1:]))", *words],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout
    assert process.stdin
    assert process.stderr
    process.stdout.close()
    process.stdin.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(30) == 1


@pytest.mark.parametrize("before", [True, False])
def test_global_options_reach_the_command(
    tmp_path: Path,
    declare: Declare,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    before: bool,
) -> None:
    """Before and after its name; -C ends with the command, and ``--state`` wins over ``TRAINCTL_STATE``."""

    def command(session: CliSession) -> int:
        places = [str(session.directory), str(Path.cwd())]
        session.output.json([*places, session.state_url, session.log_level])
        return 0

    declare("where", command)
    monkeypatch.setenv("TRAINCTL_STATE", "file:///e")
    monkeypatch.chdir(ROOT)
    flags = ["-C", str(tmp_path), "--log-level", "error"]
    assert invoke(["--state=file:///s", *flags, "where"] if before else ["where", *flags]) == 0
    url = "file:///s" if before else "file:///e"
    shown = json.loads(capsys.readouterr().out)
    assert shown == [str(tmp_path), str(tmp_path), url, "error"]
    assert Path.cwd() == ROOT
