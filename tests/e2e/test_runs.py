"""Runs: when a job runs again, what a live run is safe from, how it ends, and what it leaves."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from tests.support.node_program.nodes import wait_for
from tests.support.projects.manifest_files import WEIGHTS, job, sleep_command, write_manifest
from tests.support.projects.project import ProjectHarness, processes

APPLY = ("apply", "--auto-approve")
WAIT = (*APPLY, "--wait")


def state_of(made: ProjectHarness, name: str, *flags: str) -> str:
    """A job's state, without its prefix."""
    status: str = made.json("status", name, *flags)["status"]
    return status.removeprefix("TRAINING_JOB_")


def reason(made: ProjectHarness, address: str) -> str:
    """Why a plan changes a resource, or doesn't."""
    changes = made.json("plan")["resource_changes"]
    return next(one["action_reason"] for one in changes if one["address"] == address)


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
    assert reason(fresh, "job.sft") == "replace_because_run_failed"
    write_manifest(fresh, {"sft": job("true")})
    fresh.run(*WAIT)
    assert state_of(fresh, "sft") == "COMPLETED"


def test_a_lost_run_is_planned_again(fresh: ProjectHarness) -> None:
    """Its supervisor and all its processes killed: LOST in status, nothing of it goes on, and apply runs it again."""
    write_manifest(fresh, {"sft": job(sleep_command(60))})
    fresh.run(*APPLY)
    mark = str(fresh.nodes)
    wait_for(lambda: any("sleep" in command(pid) for pid in processes(mark)))
    for pid in processes(mark):
        if "sleep" not in command(pid):
            with suppress(ProcessLookupError):  # what has ended with the one before
                os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not processes(mark))

    assert reason(fresh, "job.sft") == "replace_because_run_lost"
    assert state_of(fresh, "sft") == "LOST"
    fresh.run(*APPLY)
    assert fresh.json("status", "sft")["number"] == 2


def command(pid: int) -> str:
    """What a process was started with."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def test_removing_a_job(fresh: ProjectHarness) -> None:
    """An ended one is forgotten and its checkpoints are kept; a live one is left alone unless it may be stopped."""
    keeping = {"checkpointing_config": {"enabled": True}}
    write_manifest(
        fresh,
        {
            "done": job("echo x > $BT_CHECKPOINT_DIR/x", runtime=keeping),
            "live": job(sleep_command(60)),
        },
    )
    fresh.run(*APPLY)
    wait_for(lambda: state_of(fresh, "done") == "COMPLETED")
    write_manifest(fresh, {})
    plan = fresh.run("plan").stdout

    assert "removed from the state" in plan
    assert "stops live run 1" in plan
    fresh.run(*APPLY, code=12)
    assert "job.done" not in fresh.json("state", "list")["addresses"]
    assert state_of(fresh, "live") == "RUNNING"
    fresh.run(*APPLY, "--stop-running")
    assert "job.live" not in fresh.json("state", "list")["addresses"]
    assert processes(str(fresh.nodes)) == []
    assert len(list((fresh.directory.parent / "data").rglob("x"))) == 1


def test_logs_can_be_followed_and_chosen(fresh: ProjectHarness) -> None:
    """--follow ends with the run, a pipe gets its lines as they are; --rank, --run by number and id choose; a wrong one is told."""
    write_manifest(
        fresh, {"sft": job("echo one", "sleep 1", "printf 'two\\r\n\\033[31mred\\033[0m'")}
    )
    fresh.run(*APPLY)
    followed = fresh.run("logs", "sft", "-f").stdout.splitlines()
    run = fresh.json("status", "sft")["run"]
    *events, summary = fresh.events("logs", "sft", "--rank", "0", "--run", run)

    assert followed == ["one", "two", "\x1b[31mred\x1b[0m"]
    assert [one["message"] for one in events][:2] == ["one", "two"]
    assert {(one["type"], one["address"], one["data"]["rank"]) for one in events} == {
        ("log", "job.sft", 0)
    }
    assert (summary["type"], summary["data"]["status"]) == ("summary", "TRAINING_JOB_COMPLETED")
    assert fresh.run("logs", "job.sft", "--run", "1").stdout.splitlines() == followed
    assert "has no rank 3" in fresh.run("logs", "sft", "--rank", "3", code=64).stderr


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
    found = {name: value for name, _, value in pairs}

    assert first["ranks"][0]["exit_code"] == 1
    assert (
        found.items()
        >= {**VARIABLES, "BT_TRAINING_JOB_ID": first["run"], "MINE": "my value"}.items()
    )
    assert found["BT_TRAINING_PROJECT_ID"]
    assert found["BT_TRAINING_JOB_NAME"] == f"sft-{first['run']}"
    assert all(found[name].startswith("/") for name in DIRECTORIES)
    assert found["TRAINCTL_WEIGHTS_TINY"].endswith("/models/tiny")
    assert list(fresh.nodes.glob("*/runs/*/scratch/*")) == []
    cache = Path(found["BT_PROJECT_CACHE_DIR"])
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
