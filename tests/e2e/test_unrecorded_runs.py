"""Runs that an apply has begun and not recorded, as it is still at work or was interrupted: looked at, stopped, kept."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.node_program.nodes import wait_for
from tests.support.projects.manifest_files import job, write_manifest
from tests.support.projects.project import ProjectHarness, processes
from tests.support.storage.ledgers import alive_here, dead_here, ledger_on
from tests.support.tiers import one_day_in
from trainctl.ledger.ledger import IntentRequest
from trainctl.ledger.state import LeaseHolder
from trainctl.model.address import Address
from trainctl_state import open_directory

APPLY = ("apply", "--auto-approve")
SAVE = "mkdir $BT_CHECKPOINT_DIR/checkpoint-500; echo hours > $BT_CHECKPOINT_DIR/checkpoint-500/model.bin"
WAITS = "echo {word}; until [ -e {gate} ]; do sleep 0.05; done"
RUNNING = "TRAINING_JOB_RUNNING"


def written(made: ProjectHarness, seconds: int = 1000, word: str = "preparing") -> Path:
    """A job that saves a checkpoint and goes on, once a file is there until which its preparation waits; that file."""
    gate = made.directory.parent / "gate"
    runtime = {
        "checkpointing_config": {"enabled": True},
        "cache_config": {"enabled": True, "prepare_commands": [WAITS.format(gate=gate, word=word)]},
    }
    store = {"url": (made.directory.parent / "store").as_uri()}
    commands = (SAVE, f"exec sleep {seconds}")
    write_manifest(made, {"j": job(*commands, runtime=runtime)}, checkpoints=store)
    return gate


def preparing(made: ProjectHarness) -> subprocess.Popen[str]:
    """An apply that is at work: its run prepares, until the gate is there."""
    process = made.start(*APPLY)

    def logs() -> str:
        return made.run("logs", "j", "--prepare", code=None).stdout

    wait_for(lambda: "preparing" in logs() or process.poll() is not None)
    assert process.poll() is None, process.communicate()
    return process


def interrupted(made: ProjectHarness, seconds: int = 1000) -> None:
    """A run that has begun by itself, and whose apply was killed before."""
    gate = written(made, seconds)
    process = preparing(made)
    process.kill()
    process.communicate()
    gate.touch()
    wait_for(lambda: sleeping(made))


def sleeping(made: ProjectHarness) -> set[int]:
    """The jobs' processes."""
    found = set()
    for pid in processes(str(made.nodes)):
        line = Path(f"/proc/{pid}/cmdline")
        if line.exists() and line.read_bytes().startswith(b"sleep\0"):
            found.add(pid)
    return {pid for pid in found if b"\x000.05" not in Path(f"/proc/{pid}/cmdline").read_bytes()}


def saved(made: ProjectHarness, *more: str) -> list[str]:
    """The checkpoints that are listed."""
    rows = made.json("checkpoints", "list", "j", *more)["checkpoints"]
    return [one["name"] for one in rows]


def runs(made: ProjectHarness) -> list[str]:
    """How the recorded runs stand."""
    found = [one for one in made.json("show")["resources"] if one["address"] == "job.j"]
    return [run["status"] for one in found for run in one["outputs"]["runs"]]


@one_day_in(3)
def test_a_run_whose_apply_was_killed_is_seen_and_not_stopped_by_the_next(
    fresh: ProjectHarness,
) -> None:
    """It is told in the plan as any live run; apply and destroy leave it alone, and end it where that is allowed; what it saved stays."""
    interrupted(fresh)
    before = sleeping(fresh)
    (row,) = fresh.json("status")["jobs"]
    fresh.write({"src/notes.txt": "second"})
    (change,) = [one for one in fresh.json("plan")["resource_changes"] if one["address"] == "job.j"]
    told = fresh.run("plan").stdout
    left = fresh.run(*APPLY, code=12).stdout
    kept = fresh.run("destroy", "--auto-approve", code=12).stdout

    assert (row["status"], row["number"], row["apply"]["interrupted"]) == (RUNNING, 1, True)
    assert change["stops"]["run"] == row["run"]
    assert "Stops live runs" in told
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


@one_day_in(7)
def test_a_run_that_was_stopped_is_recorded_though_something_else_is_wanted(
    fresh: ProjectHarness,
) -> None:
    """Nothing is live any more, so nothing has to be allowed; the new run is its next, and may resume from it."""
    interrupted(fresh)
    fresh.run("stop", "j")
    fresh.write({"src/notes.txt": "second"})
    plan = fresh.run("run", "j", "--resume", "--auto-approve").stdout

    assert "resumes from checkpoint-500 of run" in plan
    assert runs(fresh) == ["TRAINING_JOB_STOPPED", RUNNING]
    (loaded,) = fresh.json("status", "j")["loaded_checkpoints"]
    assert loaded["name"] == "checkpoint-500"


@one_day_in(5)
def test_destroying_takes_what_a_killed_apply_left(fresh: ProjectHarness) -> None:
    """With its checkpoints, where these are to go, although no record knew of it."""
    interrupted(fresh)
    fresh.run("destroy", "--auto-approve", "--stop-running", "--delete-checkpoints")
    store = fresh.directory.parent / "store"

    assert [path for path in store.rglob("*") if path.is_file()] == []
    assert processes(str(fresh.nodes)) == []
    assert fresh.run("state", "list").stdout == ""


@one_day_in(5)
def test_an_apply_with_nothing_changed_goes_on_with_it(fresh: ProjectHarness) -> None:
    """The very same processes: nothing is stopped, and nothing has to be allowed."""
    interrupted(fresh)
    before = sleeping(fresh)
    fresh.run(*APPLY)

    assert sleeping(fresh) == before
    assert runs(fresh) == [RUNNING]
    assert fresh.json("status", "j")["apply"] is None


@one_day_in(6)
@pytest.mark.parametrize("earlier", [0, 1], ids=["first", "second"])
def test_what_an_apply_at_work_starts_is_seen_and_can_be_stopped(
    fresh: ProjectHarness, earlier: int
) -> None:
    """And not the run before it. The apply ends then, with a run that was stopped."""
    if earlier:
        gate = written(fresh, 0, "something else")
        gate.touch()
        fresh.run(*APPLY, "--wait")
        gate.unlink()
    written(fresh)
    process = preparing(fresh)
    shown = fresh.json("status", "j")
    (row,) = fresh.json("status")["jobs"]
    stopped = fresh.run("stop", "j").stdout
    out, err = process.communicate(timeout=60)

    assert (shown["status"], shown["number"]) == ("TRAINING_JOB_DEPLOYING", earlier + 1)
    assert (shown["apply"]["interrupted"], row["run"]) == (False, shown["run"])
    assert f"run {earlier + 1} ({shown['run']}) is stopped" in stopped
    assert runs(fresh)[earlier:] == ["TRAINING_JOB_STOPPED"], out + err
    assert sleeping(fresh) == set()


def begin(made: ProjectHarness, holder: LeaseHolder) -> None:
    """An attempt at a second run, of which no node knows anything."""
    ledger = ledger_on(
        open_directory((made.directory / ".trainctl" / "state").as_uri()), holder=holder
    )
    recorded = ledger.state().resources[Address.parse("job.j")]
    inputs = {
        "cluster": recorded.attributes["cluster"],
        "attributes": {**recorded.attributes, "labels": {"a": "b"}},
    }
    ledger.begin(
        IntentRequest(recorded.address, "replace", recorded.provider, "key-of-the-second", inputs)
    )


@one_day_in(5)
def test_a_run_that_no_node_knows_yet(fresh: ProjectHarness) -> None:
    """As long as somebody is at it: it is shown, and whose apply it is; nobody says that its predecessor was stopped already."""
    write_manifest(fresh, {"j": job("true")})
    fresh.run(*APPLY, "--wait")
    begin(fresh, alive_here())
    shown = fresh.run("status", "j").stdout
    table = fresh.run("status").stdout
    log = fresh.run("logs", "j")
    one, every = fresh.run("stop", "j", code=10), fresh.run("stop", "--all", code=12)

    assert "run 2" in shown
    assert "of alive@here, since" in shown
    assert "deploying" in table
    assert "has not reached a node yet" in log.stderr
    assert "an apply is starting run 2" in one.stderr
    assert "an apply is starting run 2" in every.stdout


@one_day_in(5)
def test_a_run_that_is_about_to_be_replaced_can_be_stopped_by_its_number(
    fresh: ProjectHarness,
) -> None:
    """It goes on until its successor is there, and that one is the newest meanwhile."""
    write_manifest(fresh, {"j": job("exec sleep 1000")})
    fresh.run(*APPLY)
    begin(fresh, alive_here())
    refused = fresh.run("stop", "j", code=10).stderr

    assert "trainctl stop job.j --run 1" in " ".join(refused.split())
    assert "is stopped" in fresh.run("stop", "j", "--run", "1").stdout


@one_day_in(5)
def test_an_attempt_that_began_nothing_is_no_run(fresh: ProjectHarness) -> None:
    """Its holder is dead and no node knows it: the run before it is the newest, and the other is one that was not begun."""
    write_manifest(fresh, {"j": job("true")})
    fresh.run(*APPLY, "--wait")
    begin(fresh, dead_here())
    shown = fresh.json("status", "j")

    assert (shown["number"], shown["status"], shown["apply"]) == (
        1,
        "TRAINING_JOB_COMPLETED",
        None,
    )
    assert "is already completed" in fresh.run("stop", "j").stdout


@one_day_in(5)
def test_two_interrupts_leave_a_run_that_is_seen(fresh: ProjectHarness) -> None:
    """Whatever ended the apply."""
    gate = written(fresh)
    process = preparing(fresh)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert any("Ctrl-C" in line for line in process.stderr)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    gate.touch()
    wait_for(lambda: sleeping(fresh))

    assert fresh.json("status", "j")["status"] == RUNNING
