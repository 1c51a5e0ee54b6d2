"""Runs that an apply has begun and not recorded, as it is still at work or was interrupted: looked at, stopped, kept."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path

from tests.support.node_program.nodes import wait_for
from tests.support.projects.manifest_files import job, write_manifest
from tests.support.projects.project import ProjectHarness, processes

APPLY = ("apply", "--auto-approve")
SAVE = "mkdir $BT_CHECKPOINT_DIR/checkpoint-500; echo hours > $BT_CHECKPOINT_DIR/checkpoint-500/model.bin"
WAITS = "echo {word}; until [ -e {gate} ]; do sleep 0.05; done"
RUNNING = "TRAINING_JOB_RUNNING"


def written(project: ProjectHarness, seconds: int = 1000, word: str = "preparing") -> Path:
    """A job that saves a checkpoint and goes on, once a file is there until which its preparation waits; that file."""
    gate = project.directory.parent / "gate"
    runtime = {
        "checkpointing_config": {"enabled": True},
        "cache_config": {"enabled": True, "prepare_commands": [WAITS.format(gate=gate, word=word)]},
    }
    store = {"url": (project.directory.parent / "store").as_uri()}
    commands = (SAVE, f"exec sleep {seconds}")
    write_manifest(project, {"j": job(*commands, runtime=runtime)}, checkpoints=store)
    return gate


def preparing(project: ProjectHarness) -> subprocess.Popen[str]:
    """An apply that is at work: its run prepares, until the gate is there."""
    process = project.start(*APPLY)

    def logs() -> str:
        return project.run("logs", "j", "--prepare", code=None).stdout

    wait_for(lambda: "preparing" in logs() or process.poll() is not None)
    assert process.poll() is None, process.communicate()
    return process


def interrupted(project: ProjectHarness) -> None:
    """A run that has begun by itself, and whose apply was killed before."""
    gate = written(project)
    process = preparing(project)
    process.kill()
    process.communicate()
    gate.touch()
    wait_for(lambda: sleeping(project))


def sleeping(project: ProjectHarness) -> set[int]:
    """The processes of the job's command, not those of its preparation."""
    pids = set()
    for pid in processes(str(project.nodes)):
        with suppress(FileNotFoundError, ProcessLookupError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if words[0] == b"sleep" and words[1] != b"0.05":
                pids.add(pid)
    return pids


def saved(project: ProjectHarness, *more: str) -> list[str]:
    rows = project.json("checkpoints", "list", "j", *more)["checkpoints"]
    return [row["name"] for row in rows]


def runs(project: ProjectHarness) -> list[str]:
    """How the recorded runs stand."""
    resources = [row for row in project.json("show")["resources"] if row["address"] == "job.j"]
    return [run["status"] for resource in resources for run in resource["outputs"]["runs"]]


def test_a_run_whose_apply_was_killed_is_seen_and_not_stopped_by_the_next(
    fresh: ProjectHarness,
) -> None:
    """It is told in the plan as any live run; apply and destroy leave it alone, and end it where that is allowed; what it saved stays."""
    interrupted(fresh)
    before = sleeping(fresh)
    (row,) = fresh.json("status")["jobs"]
    fresh.write({"src/notes.txt": "second"})
    (change,) = [row for row in fresh.json("plan")["resource_changes"] if row["address"] == "job.j"]
    output = fresh.run("plan").stdout
    left = fresh.run(*APPLY, code=12).stdout
    kept = fresh.run("destroy", "--auto-approve", code=12).stdout

    assert (row["status"], row["number"], row["apply"]["interrupted"]) == (RUNNING, 1, True)
    assert change["stops"]["run"] == row["run"]
    assert "Stops live runs" in output
    assert f"run 1 ({row['run']}) is live. Use --stop-running" in left
    assert f"run 1 ({row['run']}) is live. Use --stop-running" in kept
    assert sleeping(fresh) == before != set()
    assert "cluster.local" in fresh.json("state", "list")["addresses"]

    fresh.run(*APPLY, "--stop-running")
    assert sleeping(fresh).isdisjoint(before)
    assert runs(fresh) == ["TRAINING_JOB_STOPPED", RUNNING]
    assert saved(fresh, "--run", "1") == ["checkpoint-500"]
    fresh.run("destroy", "--auto-approve", "--stop-running", "--delete-checkpoints")
    store = fresh.directory.parent / "store"
    assert [path for path in store.rglob("*") if path.is_file()] == []


def test_a_run_whose_apply_was_killed_can_be_looked_at_and_stopped(fresh: ProjectHarness) -> None:
    """And the next apply records it as it is then, as the very same is wanted."""
    interrupted(fresh)
    log = fresh.run("logs", "j", "--prepare").stdout
    wait_for(lambda: saved(fresh) == ["checkpoint-500"])
    shown = fresh.run("status", "j").stdout
    stopped = fresh.run("stop", "--all").stdout
    again = fresh.run("stop", "j").stdout
    fresh.run(*APPLY)

    assert log == "preparing\n"
    assert "run 1" in shown
    assert "interrupted; the next apply resumes it" in shown
    assert "is stopped" in stopped
    assert "is already stopped" in again
    assert sleeping(fresh) == set()
    assert runs(fresh) == ["TRAINING_JOB_STOPPED"]
    assert fresh.json("show")["open_intents"] == []


def test_an_apply_with_nothing_changed_goes_on_with_it(fresh: ProjectHarness) -> None:
    """The very same processes: nothing is stopped, and nothing has to be allowed."""
    interrupted(fresh)
    before = sleeping(fresh)
    fresh.run(*APPLY)

    assert sleeping(fresh) == before
    assert runs(fresh) == [RUNNING]
    assert fresh.json("status", "j")["apply"] is None
