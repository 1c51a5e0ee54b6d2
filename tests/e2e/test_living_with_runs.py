"""Runs after they were started: resumed, repeated, looked at, stopped; their code and their logs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.node_program.nodes import wait_for
from tests.support.projects.manifest_files import WEIGHTS, job, sleep_command, write_manifest
from tests.support.projects.project import ProjectHarness, processes, project
from tests.support.tiers import one_day_in

RUN = ("run", "sft", "--auto-approve", "--follow")
KEEPING = {"checkpointing_config": {"enabled": True}}
SAVE = "mkdir $BT_CHECKPOINT_DIR/checkpoint-{0}; echo {0} > $BT_CHECKPOINT_DIR/checkpoint-{0}/w"
FOUND = "cd $BT_LOAD_CHECKPOINT_DIR 2>/dev/null && find . -type f | sort; cd $BT_WORKING_DIR"


def said(made: ProjectHarness, *more: str) -> list[str]:
    """What one followed run printed itself."""
    return made.run(*RUN, *more).stdout.partition("destroyed.\n")[2].splitlines()


def stop_all(made: ProjectHarness) -> None:
    made.run("stop", "--all", "--grace", "0", code=None)


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


@one_day_in(5)
def test_resuming_takes_the_newest(lived: ProjectHarness) -> None:
    """Of the newest run that has one, and says which; a run without --resume finds none."""
    plan = lived.run(*RUN, "--resume").stdout
    newest = lived.json("status", "sft")
    before = lived.json("status", "sft", "--run", str(newest["number"] - 1))
    (loaded,) = newest["loaded_checkpoints"]

    assert re.search(r"resumes from checkpoint-\d+ of run [a-z2-7]{7}", plan)
    assert loaded["run"].endswith(before["run"])
    assert said(lived)[0] == "two"


@one_day_in(5)
def test_what_is_gone_is_named(lived: ProjectHarness) -> None:
    """The code, the weights, the run; nothing is begun then."""
    number = lived.json("status", "sft")["number"]
    first = lived.run("download", "sft", "--run", "1", "--output-dir", "dl-0").stdout.strip()
    code = {path.name: path for path in lived.nodes.glob("*/code/*.tar")}
    listings = lived.mirror / "listings"
    hidden = listings.with_name("hidden")
    listings.rename(hidden)
    weights = lived.run("run", "sft", "--run", "1", "--auto-approve", code=1).stderr
    hidden.rename(listings)
    for path in code.values():
        path.rename(path.with_suffix(".gone"))
    lost = lived.run("run", "sft", "--run", "1", "--auto-approve", code=1).stderr
    not_there = lived.run("download", "sft", "--run", "1", code=1).stderr
    for path in code.values():
        path.with_suffix(".gone").rename(path)

    assert "weights.tiny of that run was deleted from the mirror" in weights
    assert "its code was deleted from local/local-0" in lost
    assert "not found on local/local-0" in not_there
    assert lived.json("status", "sft")["number"] == number
    assert (
        "has no run 99" in lived.run("run", "sft", "--run", "99", "--auto-approve", code=64).stderr
    )
    lived.run("run", "sft", "--run", "1", "--resume", "--auto-approve", code=64)
    assert (lived.directory / first).is_dir()


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


@one_day_in(5)
def test_nothing_to_resume_from(fresh: ProjectHarness) -> None:
    """The runs that were looked at are named, and no run is started."""
    write_manifest(fresh, {"sft": job("true", runtime=KEEPING)})
    fresh.run(*RUN)
    fresh.run(*RUN)
    error = fresh.run(*RUN, "--resume", code=1).stderr

    assert "no complete checkpoint" in error
    assert re.search(r"Checked runs: 1 \(\w{7}\), 2 \(\w{7}\)\.", error)
    assert fresh.json("status", "sft")["number"] == 2


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
    fresh.run("stop", code=64)
    fresh.run("stop", "deep", "--all", code=64)
    assert "--grace" in fresh.run("stop", "deep", "--grace", "soon", code=64).stderr


def test_leaving_a_followed_run(fresh: ProjectHarness) -> None:
    """Ctrl-C in run --follow only leaves: it says how to go on, and the run goes on."""
    write_manifest(fresh, {"sft": job("echo ready", sleep_command(600))})
    with fresh.start(*RUN) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        while process.stdout.readline() != "ready\n":
            pass
        process.send_signal(signal.SIGINT)
        process.wait(60)
        told = process.stderr.read()

    assert process.returncode == 130
    assert "trainctl logs -f sft" in told
    assert fresh.json("status", "sft")["status"] == "TRAINING_JOB_RUNNING"
    stop_all(fresh)


@one_day_in(4)
def test_metrics_of_a_run(fresh: ProjectHarness) -> None:
    """As a table, as CSV, as they come, and as JSON of a run that is over."""
    write_manifest(fresh, {"sft": job("python3 -c 'sum(range(10**7))'", sleep_command(3))})
    fresh.run("apply", "--auto-approve")
    lines = fresh.run("metrics", "sft", "--follow", "--format", "json").stdout.splitlines()
    history = fresh.json("metrics", "sft")
    table = fresh.run("metrics", "sft").stdout
    rows = fresh.run("metrics", "sft", "--format", "csv").stdout.splitlines()

    assert len(lines) >= 2
    assert [json.loads(line) for line in lines] == history["samples"]
    assert history["status"] == "TRAINING_JOB_COMPLETED"
    assert len(rows) == len(lines) + 1
    assert "peak usage" in table
    fresh.run("metrics", "sft", "--follow", "--format", "csv", code=64)


@one_day_in(5)
def test_status_tells_what_is_left(fresh: ProjectHarness) -> None:
    """The deadline of a live run, how long its phases took in the run before, and how often it was tried."""
    short = job(
        "test $BT_RETRY_COUNT = 1", retry={"max_attempts": 2, "delay": "0s"}, max_duration="1h"
    )
    write_manifest(fresh, {"sft": short})
    fresh.run(*RUN)
    done = fresh.json("status", "sft")
    assert (done["retries"], done["deadline_at"], done["forecast"]) == (1, None, None)
    write_manifest(fresh, {"sft": {**short, "runtime": {"start_commands": [sleep_command(600)]}}})
    fresh.run("apply", "--auto-approve")
    live, text = fresh.json("status", "sft"), fresh.run("status", "sft").stdout

    assert live["deadline_at"] > live["started_at"]
    assert live["forecast"]["running"] == done["phases"]["running"]
    assert re.search(r"deadline +in (1h|59m)", text)
    assert re.search(r"running +\S+ s, in run 1", text)
    long = {**short, "max_duration": "9h", "runtime": {"start_commands": [sleep_command(600)]}}
    write_manifest(fresh, {"sft": long})
    fresh.run("apply", "--auto-approve")
    assert fresh.json("status", "sft")["deadline_at"] == live["deadline_at"]
    stop_all(fresh)


COUNT = "python3 -c \"import sys; [sys.stdout.write('%08d %s\\n' % (n, 'x' * 71)) for n in range({0})]\""
LINES = 800_000


def follow_memory(made: ProjectHarness, name: str, take: Callable[[str], None]) -> int:
    """Follow a log, line by line; the most memory that took, in bytes."""
    program = (
        "import resource, sys; from trainctl.cli.main import main\n"
        "try: main(sys.argv[1:])\n"
        "finally: print('peak', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, "logs", "-f", name],
        cwd=made.directory, env=made.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            take(line)
        return int(process.stderr.read().split()[-1]) * 1024


@one_day_in(10)
def test_a_burst_is_followed_without_a_loss(fresh: ProjectHarness) -> None:
    """64 MB as fast as they can be written: every line comes in its turn, and memory is that of a small log."""
    write_manifest(fresh, {"small": job(COUNT.format(10)), "burst": job(COUNT.format(LINES))})
    fresh.run("apply", "--auto-approve")
    seen: list[int] = []
    number = -1

    def take(line: str) -> None:
        nonlocal number
        assert line.startswith(f"{number + 1:08d} ")
        number += 1

    small = follow_memory(fresh, "small", lambda line: seen.append(1))
    large = follow_memory(fresh, "burst", take)

    assert (len(seen), number + 1) == (10, LINES)
    assert large - small < 32_000_000
    found: list[dict[str, Any]] = fresh.events("logs", "burst", "--grep", "^0*(1|799999) ")
    assert [one["message"][:8] for one in found[:-1]] == ["00000001", "00799999"]
    assert found[-1]["type"] == "summary"


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
