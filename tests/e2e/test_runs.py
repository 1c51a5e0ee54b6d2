"""Runs: when a job runs again, how a run ends, what it leaves, and how it is repeated."""

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

APPLY = ("apply", "--auto-approve")
WAIT = (*APPLY, "--wait")
RUN = ("run", "sft", "--auto-approve", "--follow")
KEEPING = {"checkpointing_config": {"enabled": True}}
SAVE = "mkdir $BT_CHECKPOINT_DIR/checkpoint-{0}; echo {0} > $BT_CHECKPOINT_DIR/checkpoint-{0}/w"
FOUND = "cd $BT_LOAD_CHECKPOINT_DIR 2>/dev/null && find . -type f | sort; cd $BT_WORKING_DIR"


def state_of(project: ProjectHarness, name: str, *flags: str) -> str:
    """A job's state, without its prefix."""
    status: str = project.json("status", name, *flags)["status"]
    return status.removeprefix("TRAINING_JOB_")


def test_a_live_run_is_not_stopped_by_a_changed_manifest(fresh: ProjectHarness) -> None:
    """The plan says so; apply leaves it alone, does the rest and exits 12; --stop-running stops it, and so does a plan file that names the run."""
    write_manifest(fresh, {"sft": job(sleep_command(60))})
    fresh.run(*APPLY)
    first = fresh.json("status", "sft")
    write_manifest(fresh, {"sft": job(sleep_command(61)), "more": job("true")})
    plan = fresh.run("plan").stdout
    summary = fresh.events(*APPLY, code=12)[-1]["data"]
    after = fresh.json("status", "sft")

    assert "job.sft: stops live run 1 (" in plan
    assert summary["left_alone"] == [{"address": "job.sft", "reason": "live_run"}]
    assert (summary["added"], summary["exit_code"]) == (1, 12)
    assert (after["run"], after["status"]) == (first["run"], "TRAINING_JOB_RUNNING")
    text = fresh.run(*APPLY, code=12)
    assert "--stop-running" in text.stdout + text.stderr
    fresh.run("destroy", "--auto-approve", "--target", "job.sft", code=12)

    fresh.run("plan", "--out", "p.bin")
    fresh.run("apply", "p.bin")
    assert (state_of(fresh, "sft", "--run", "1"), state_of(fresh, "sft")) == ("STOPPED", "RUNNING")

    write_manifest(fresh, {"sft": job(sleep_command(62))})
    fresh.run("plan", "--out", "q.bin")
    fresh.run(*APPLY, "--stop-running")
    assert (state_of(fresh, "sft", "--run", "2"), fresh.json("status", "sft")["number"]) == (
        "STOPPED",
        3,
    )
    assert "already applied" in fresh.run("apply", "q.bin").stderr  # the same changes
    assert state_of(fresh, "sft") == "RUNNING"


def test_run_is_always_one_new_run(fresh: ProjectHarness) -> None:
    """Once for each command, with today's code; while one is live it is refused without --stop-running; nothing else changes."""
    write_manifest(fresh, {"sft": job("cat notes.txt", sleep_command(60)), "other": job("true")})
    fresh.run(*APPLY)
    wait_for(lambda: fresh.run("logs", "sft").stdout == "first\n")
    refused = fresh.run("run", "sft", "--auto-approve", code=12)
    fresh.write({"src/notes.txt": "second"})
    fresh.run("run", "job.sft", "--auto-approve", "--stop-running")
    wait_for(lambda: fresh.run("logs", "sft").stdout == "second\n")

    assert "run 1 (" in refused.stderr + refused.stdout
    assert "--stop-running" in refused.stderr + refused.stdout
    assert fresh.json("status", "sft")["number"] == 2
    assert fresh.run("logs", "sft", "--run", "1").stdout == "first\n"
    assert state_of(fresh, "sft", "--run", "1") == "STOPPED"
    assert fresh.json("status", "other")["number"] == 1
    fresh.run("run", "nothing", "--auto-approve", code=1)


def test_a_failed_run(fresh: ProjectHarness) -> None:
    """Its exit code is shown, apply --wait exits 12; then a no-op with a warning; once something changed it runs again."""
    commands = ("mkdir sub; cd sub; A=begun", "echo $A in $(basename $PWD); exit 7", "echo never")
    write_manifest(fresh, {"sft": job(*commands)})
    waited = fresh.run(*WAIT, code=12)
    status = fresh.json("status", "sft")
    plan = fresh.run("plan", "--detailed-exitcode", code=0)

    assert "exited with 7" in waited.stdout
    assert "Apply incomplete. 3 added, 0 changed, 0 destroyed, 1 not completed." in waited.stdout
    assert (status["status"], status["ranks"][0]["exit_code"]) == ("TRAINING_JOB_FAILED", 7)
    assert "command 2" in status["error"]
    assert fresh.run("logs", "sft").stdout == "begun in sub\n"
    assert "run 1 of job.sft failed" in plan.stderr

    fresh.write({"src/notes.txt": "second"})
    assert fresh.actions() == {"job.sft": ["delete", "create"]}
    write_manifest(fresh, {"sft": job("true")})
    fresh.run(*WAIT)
    assert state_of(fresh, "sft") == "COMPLETED"


VARIABLES = {
    "BT_TRAINING_PROJECT_NAME": "demo",
    "BT_NUM_GPUS": "0",
    "BT_RETRY_COUNT": "0",
    "BT_GROUP_SIZE": "1",
    "BT_NODE_RANK": "0",
    "BT_LEADER_ADDR": "127.0.0.1",
}
DIRECTORIES = (
    "BT_WORKING_DIR", "BT_SCRATCH_DIR", "BT_CHECKPOINT_DIR", "BT_LOAD_CHECKPOINT_DIR",
    "BT_PROJECT_CACHE_DIR", "BT_TEAM_CACHE_DIR", "BT_RW_CACHE_DIR",
)  # fmt: skip


def test_the_environment_of_a_job_and_what_stays_of_it(fresh: ProjectHarness) -> None:
    """All BT_ variables and writable directories; the training cache stays until destroy, scratch not at all."""
    runtime = {
        "checkpointing_config": {"enabled": True},
        "cache_config": {"enabled": True},
        "environment_variables": {"MINE": "my value"},
    }
    commands = [
        "env | grep -E '^(BT_|MINE|TRAINCTL_)' | sort",
        f"for one in {' '.join(DIRECTORIES)}; do touch ${{!one}}/probe; done",
        "mkdir -p $BT_CHECKPOINT_DIR/checkpoint-$(ls $BT_RW_CACHE_DIR | wc -l); echo x > $(ls -d $BT_CHECKPOINT_DIR/checkpoint-*)/w",
        "touch $BT_RW_CACHE_DIR/$BT_TRAINING_JOB_ID; exit 1",
    ]
    write_manifest(
        fresh, {"sft": job(*commands, runtime=runtime, weights=["tiny"])}, weights=WEIGHTS
    )
    fresh.run(*WAIT, code=12)
    first = fresh.json("status", "sft")
    pairs = (line.partition("=") for line in fresh.run("logs", "sft").stdout.splitlines())
    values = {name: value for name, _, value in pairs}

    assert first["ranks"][0]["exit_code"] == 1
    assert (
        values.items()
        >= {**VARIABLES, "BT_TRAINING_JOB_ID": first["run"], "MINE": "my value"}.items()
    )
    assert values["BT_TRAINING_PROJECT_ID"]
    assert values["BT_TRAINING_JOB_NAME"] == f"sft-{first['run']}"
    assert all(values[name].startswith("/") for name in DIRECTORIES)
    assert values["TRAINCTL_WEIGHTS_TINY"].endswith("/models/tiny")
    assert list(fresh.nodes.glob("*/runs/*/scratch/*")) == []
    cache = Path(values["BT_PROJECT_CACHE_DIR"])
    kept = {path.name for path in cache.iterdir()}
    assert first["run"] in kept

    fresh.run("run", "sft", "--auto-approve", "--follow", code=12)
    second = fresh.json("status", "sft")
    assert {path.name for path in cache.iterdir()} == kept | {second["run"]}

    for run, name in ((first["run"], "checkpoint-1"), ("2", "checkpoint-2")):
        rows = fresh.json("checkpoints", "list", "sft", "--run", run)["checkpoints"]
        assert [row["name"] for row in rows if row["name"].startswith("checkpoint")] == [name]
    download = ("checkpoints", "download", "sft", "--run", "1", "--name", "checkpoint-1")
    place = fresh.run(*download).stdout.strip()
    assert (fresh.directory / place / "w").read_text() == "x\n"
    fresh.run(*download, code=64)

    fresh.run("destroy", "--auto-approve")
    assert not cache.exists()


@pytest.mark.long
def test_a_run_whose_replacement_fails_continues(fresh: ProjectHarness) -> None:
    """The error says so; once it is repaired, the next apply stops the run for the new one."""
    fresh.write({"src/reqs.txt": "--no-index\nno-such-package==1\n"})
    write_manifest(fresh, {"sft": job("echo first", sleep_command(300))})
    fresh.run(*APPLY)
    wait_for(lambda: state_of(fresh, "sft") == "RUNNING")

    second = job("echo second", sleep_command(300), runtime={"requirements": "reqs.txt"})
    write_manifest(fresh, {"sft": second})
    failed = fresh.run(*APPLY, "--stop-running", code=1).stderr

    assert "cannot install the requirements" in failed
    assert "Run 1 (" in failed
    assert "continues." in failed
    assert (fresh.json("status", "sft")["number"], state_of(fresh, "sft")) == (1, "RUNNING")
    status = fresh.run("status").stdout
    assert "Approved to replace a live run (1): job.sft" in status
    assert "trainctl apply --stop-running" in status
    assert "trainctl reconcile" not in status
    assert fresh.json("status")["pending_jobs"] == ["job.sft"]

    write_manifest(fresh, {"sft": job("echo second", sleep_command(300))})
    done = fresh.run(*APPLY, "--stop-running")
    assert "stops run 1 (" in done.stdout + done.stderr
    assert (fresh.json("status", "sft")["number"], state_of(fresh, "sft")) == (2, "RUNNING")


def printed(project: ProjectHarness, *more: str) -> list[str]:
    """What one followed run printed itself."""
    return project.run(*RUN, *more).stdout.partition("destroyed.\n")[2].splitlines()


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProjectHarness]:
    """Three runs: one; with other code, weights and commands one more, resumed; and the first once more."""
    with project(tmp_path_factory.mktemp("lived")) as created:
        _declare(created, "one", 100)
        created.write({"src/run.sh": "echo first\n", "src/sub/data": b"\x00\xff"})
        (created.directory / "src" / "run.sh").chmod(0o755)
        assert printed(created) == ["one", "first"]
        _declare(created, "two", 200)
        created.write({"src/run.sh": "echo second\n", "weights/model.bin": b"other"})
        assert printed(created, "--resume") == ["./sft/rank-0/checkpoint-100/w", "two", "second"]
        yield created


def _declare(project: ProjectHarness, word: str, step: int) -> None:
    commands = (
        FOUND,
        f"echo {word}; sh run.sh",
        SAVE.format(step),
        "wc -c < models/tiny/model.bin > size",
    )
    write_manifest(
        project, {"sft": job(*commands, runtime=KEEPING, weights=["tiny"])}, weights=WEIGHTS
    )


def test_a_run_is_repeated_exactly(lived: ProjectHarness) -> None:
    """With the code, weights and commands of then, whatever the manifest says today; what is wanted stays as it was."""
    assert printed(lived, "--run", "1") == ["one", "first"]
    status = lived.json("status", "sft")
    first = lived.json("status", "sft", "--run", "1")["run"]

    assert status["rerun_of"] == first
    assert _sizes(lived) == ["25600", "5", "25600"]
    assert lived.actions() == {}
    assert printed(lived, "--run", "2") == ["./sft/rank-0/checkpoint-100/w", "two", "second"]
    (loaded,) = lived.json("status", "sft")["loaded_checkpoints"]
    assert (loaded["run"], loaded["name"]) == (f"demo/sft/1-{first}", "checkpoint-100")
    assert lived.actions() == {}


def _sizes(project: ProjectHarness) -> list[str]:
    """Which weights each run found, in the order of the runs."""
    paths = sorted(project.nodes.glob("*/runs/*/*/size"), key=lambda path: path.stat().st_mtime)
    return [path.read_text().strip() for path in paths]


def test_the_code_of_a_run_comes_back(lived: ProjectHarness) -> None:
    """Byte for byte, with what may be executed; code that was changed on the node is refused."""
    download = ("download", "sft", "--run", "1")
    place = lived.directory / lived.run(*download, "--output-dir", "dl-1").stdout.strip()
    files = {path.relative_to(place): path for path in place.rglob("*") if path.is_file()}
    content = {str(name): path.read_bytes() for name, path in files.items()}

    assert content == {"run.sh": b"echo first\n", "sub/data": b"\x00\xff", "notes.txt": b"first"}
    assert [os.access(place / name, os.X_OK) for name in ("run.sh", "notes.txt")] == [True, False]
    packed = lived.run(*download, "--no-unzip").stdout.strip()
    with tarfile.open(lived.directory / packed) as archive:
        assert all((place / name).exists() for name in archive.getnames())
    assert "already exists" in lived.run(*download, "--output-dir", "dl-1", code=64).stderr
    for path in lived.nodes.glob("*/code/*.tar"):
        path.write_bytes(path.read_bytes().replace(b"echo first", b"echo fIrst"))
    changed = lived.run(*download, "--output-dir", "dl-2", code=1).stderr
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
