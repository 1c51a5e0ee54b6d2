"""Runs after they were started: resumed, repeated, looked at, stopped; their code and their logs."""

from __future__ import annotations

import os
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.node_program.nodes import wait_for
from tests.support.projects.manifest_files import WEIGHTS, job, sleep_command, write_manifest
from tests.support.projects.project import ProjectHarness, processes, project

RUN = ("run", "sft", "--auto-approve", "--follow")
KEEPING = {"checkpointing_config": {"enabled": True}}
SAVE = "mkdir $BT_CHECKPOINT_DIR/checkpoint-{0}; echo {0} > $BT_CHECKPOINT_DIR/checkpoint-{0}/w"
FOUND = "cd $BT_LOAD_CHECKPOINT_DIR 2>/dev/null && find . -type f | sort; cd $BT_WORKING_DIR"


def said(made: ProjectHarness, *more: str) -> list[str]:
    """What one followed run printed itself."""
    return made.run(*RUN, *more).stdout.partition("destroyed.\n")[2].splitlines()


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProjectHarness]:
    """Three runs: one; with other code, weights and commands one more, resumed; and the first once more."""
    with project(tmp_path_factory.mktemp("lived")) as made:
        _declare(made, "one", 100)
        made.write({"src/run.sh": "echo first\n", "src/sub/data": b"\x00\xff"})
        (made.directory / "src" / "run.sh").chmod(0o755)
        assert said(made) == ["one", "first"]
        _declare(made, "two", 200)
        made.write({"src/run.sh": "echo second\n", "weights/model.bin": b"other"})
        assert said(made, "--resume") == ["./sft/rank-0/checkpoint-100/w", "two", "second"]
        yield made


def _declare(made: ProjectHarness, word: str, step: int) -> None:
    commands = (
        FOUND,
        f"echo {word}; sh run.sh",
        SAVE.format(step),
        "wc -c < models/tiny/model.bin > size",
    )
    write_manifest(
        made, {"sft": job(*commands, runtime=KEEPING, weights=["tiny"])}, weights=WEIGHTS
    )


def test_a_run_is_repeated_exactly(lived: ProjectHarness) -> None:
    """With the code, weights and commands of then, whatever the manifest says today; what is wanted stays as it was."""
    assert said(lived, "--run", "1") == ["one", "first"]
    status = lived.json("status", "sft")
    first = lived.json("status", "sft", "--run", "1")["run"]

    assert status["rerun_of"] == first
    assert _sizes(lived) == ["25600", "5", "25600"]
    assert lived.actions() == {}
    assert said(lived, "--run", "2") == ["./sft/rank-0/checkpoint-100/w", "two", "second"]
    (loaded,) = lived.json("status", "sft")["loaded_checkpoints"]
    assert (loaded["run"], loaded["name"]) == (f"demo/sft/1-{first}", "checkpoint-100")
    assert lived.actions() == {}


def _sizes(made: ProjectHarness) -> list[str]:
    """Which weights each run found, in the order of the runs."""
    found = sorted(made.nodes.glob("*/runs/*/*/size"), key=lambda path: path.stat().st_mtime)
    return [path.read_text().strip() for path in found]


def test_the_code_of_a_run_comes_back(lived: ProjectHarness) -> None:
    """Byte for byte with what may be executed; nothing is overwritten, and what was changed on the node is found out."""
    place = (
        lived.directory
        / lived.run("download", "sft", "--run", "1", "--output-dir", "dl-1").stdout.strip()
    )
    packed = lived.run("download", "sft", "--run", "1", "--no-unzip").stdout.strip()
    with tarfile.open(lived.directory / packed) as archive:
        assert {name for name in archive.getnames() if not (place / name).exists()} == set()
    files = {
        str(path.relative_to(place)): path.read_bytes()
        for path in place.rglob("*")
        if path.is_file()
    }

    assert files == {"run.sh": b"echo first\n", "sub/data": b"\x00\xff", "notes.txt": b"first"}
    assert [os.access(place / name, os.X_OK) for name in ("run.sh", "notes.txt")] == [True, False]
    assert (
        "already exists"
        in lived.run("download", "sft", "--run", "1", "--output-dir", "dl-1", code=64).stderr
    )
    for path in lived.nodes.glob("*/code/*.tar"):
        path.write_bytes(path.read_bytes().replace(b"echo first", b"echo fIrst"))
    changed = lived.run("download", "sft", "--run", "1", "--output-dir", "dl-2", code=1).stderr
    for path in lived.nodes.glob("*/code/*.tar"):
        path.write_bytes(path.read_bytes().replace(b"echo fIrst", b"echo first"))
    assert "differs from the code of the run" in changed
    assert list((lived.directory / "dl-2").iterdir()) == []


STUBBORN = """\
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
os.environ.clear()
os.execv(sys.executable, [sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); print('deep', flush=True); time.sleep(600)", sys.argv[1]])
"""


def test_stop_ends_everything(fresh: ProjectHarness) -> None:
    """All runs at once; also what forked twice, left the session, cleared its environment and ignores TERM."""
    mark = str(fresh.nodes)
    deep = job(f"python3 deep.py {mark}", "exec sleep 600")
    write_manifest(fresh, {"deep": deep, "other": job(sleep_command(600))})
    fresh.write({"src/deep.py": STUBBORN})
    fresh.run("apply", "--auto-approve")
    wait_for(lambda: "deep" in fresh.run("logs", "deep").stdout, 60)
    lines = fresh.run("stop", "--all", "--grace", "0.5s").stdout.splitlines()

    assert [re.sub(r" \(\w+\)", "", line) for line in lines] == [
        "job.deep: run 1 is stopped", "job.other: run 1 is stopped",
    ]  # fmt: skip
    assert processes(mark) == []
    assert "no live runs" in fresh.run("stop", "--all").stdout


def test_secrets_of_commands_are_masked_in_logs(fresh: ProjectHarness, tmp_path: Path) -> None:
    """``logs`` reads them for that; if it can't, it says so and shows the log all the same."""
    token = tmp_path / "token"
    token.write_text("open-sesame-1234")
    write_manifest(
        fresh,
        {
            "a": job(
                "echo key $TOKEN", runtime={"environment_variables": {"TOKEN": {"secret": "t"}}}
            )
        },
        secrets={"t": {"from": "command", "command": ["cat", str(token)]}},
    )
    fresh.trust(f'secret = "t"\ncommands = [["cat", "{token}"]]')
    fresh.run("apply", "--auto-approve", "--wait")
    masked = fresh.run("logs", "a")
    token.unlink()
    warned = fresh.run("logs", "a")

    assert (masked.stdout, masked.stderr) == ("key (redacted)\n", "")
    assert warned.stdout == "key open-sesame-1234\n"
    assert "Warning: secret t can't be masked" in warned.stderr
