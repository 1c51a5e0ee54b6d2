"""Runs: when a job runs again, what a live run is safe from, how it ends, and what it leaves."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from pathlib import Path

from tests.support.node_program.nodes import wait_for
from tests.support.projects.manifest_files import WEIGHTS, job, sleep_command, write_manifest
from tests.support.projects.project import ProjectHarness, processes
from tests.support.tiers import one_day_in

APPLY = ("apply", "--auto-approve")
WAIT = (*APPLY, "--wait")


def state_of(made: ProjectHarness, name: str, *flags: str) -> str:
    """A job's state, without its prefix."""
    status: str = made.json("status", name, *flags)["status"]
    return status.removeprefix("TRAINING_JOB_")


def reasons(made: ProjectHarness, *flags: str) -> dict[str, str]:
    """Why a plan does what it does, by address, where it says so."""
    changes = made.json("plan", *flags)["resource_changes"]
    return {one["address"]: one["action_reason"] for one in changes if one.get("action_reason")}


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


@one_day_in(5)
def test_changed_code_runs_only_where_it_is_asked_to(fresh: ProjectHarness) -> None:
    """A no-op "changed since run 1" that names the command; with rerun_on: [code] it is a new run."""
    jobs = {
        "a": job("cat notes.txt"),
        "b": job("cat notes.txt", lifecycle={"rerun_on": ["config", "code"]}),
    }
    write_manifest(fresh, jobs)
    fresh.run(*WAIT)
    fresh.write({"src/notes.txt": "second"})
    plan = fresh.run("plan").stdout

    assert "job.a: code changed since run 1" in plan
    assert "trainctl run job.a" in plan
    assert reasons(fresh) == {"job.a": "code_changed", "job.b": "replace_by_triggers"}
    fresh.run(*WAIT)
    assert (fresh.run("logs", "a").stdout, fresh.run("logs", "b").stdout) == ("first\n", "second\n")


def test_a_failed_run(fresh: ProjectHarness) -> None:
    """Its exit code is shown, apply --wait exits 12; then a no-op with a warning; once something changed it runs again."""
    write_manifest(fresh, {"sft": job("echo begun", "exit 7", "echo never")})
    waited = fresh.run(*WAIT, code=12)
    status = fresh.json("status", "sft")
    plan = fresh.run("plan", "--detailed-exitcode", code=0)

    assert "failed" in waited.stdout
    assert "exited with 7" in waited.stdout
    assert "Apply incomplete. 3 added, 0 changed, 0 destroyed, 1 not completed." in waited.stdout
    assert "trainctl logs job.sft" in waited.stdout
    assert (status["status"], status["ranks"][0]["exit_code"]) == ("TRAINING_JOB_FAILED", 7)
    assert "command 2" in status["error"]
    assert fresh.run("logs", "sft").stdout == "begun\n"
    assert "run 1 of job.sft failed" in plan.stderr
    assert "trainctl logs job.sft" in plan.stderr.replace("'", "")

    fresh.write({"src/notes.txt": "second"})
    assert reasons(fresh) == {"job.sft": "replace_because_run_failed"}
    write_manifest(fresh, {"sft": job("true")})
    fresh.run(*WAIT)
    assert state_of(fresh, "sft") == "COMPLETED"


COMMANDS = {
    "kept": (
        ("export A=1; mkdir sub; cd sub; B=2", 'test "$A$B" = 12 && basename $PWD'),
        0,
        ["sub"],
    ),
    "list": (("false && echo no", "echo never"), 1, []),
    "middle": (("echo a && (exit 3) && echo b", "echo never"), 3, ["a"]),
    "syntax": (("echo 'open", "echo never"), 2, []),
    "pipe": (("set -o pipefail; exit 5 | cat", "echo never"), 5, []),
}


@one_day_in(5)
def test_how_commands_follow_one_another(fresh: ProjectHarness) -> None:
    """One shell keeps exports and directory; whatever fails in any form ends the job with its exit code."""
    write_manifest(fresh, {name: job(*commands) for name, (commands, _, _) in COMMANDS.items()})
    fresh.run(*WAIT, code=12)
    jobs = {one["address"]: one for one in fresh.json("status")["jobs"]}
    lines = {name: fresh.run("logs", name).stdout.splitlines() for name in COMMANDS}

    words = ("a", "b", "no", "sub", "never")
    assert {name: jobs[f"job.{name}"]["ranks"][0]["exit_code"] for name in COMMANDS} == {
        name: code for name, (_, code, _) in COMMANDS.items()
    }
    assert {name: [line for line in found if line in words] for name, found in lines.items()} == {
        name: printed for name, (_, _, printed) in COMMANDS.items()
    }


@one_day_in(4)
def test_a_run_that_could_not_be_deployed_is_planned_again(fresh: ProjectHarness) -> None:
    """The mirror lost its content: DEPLOY_FAILED, with the reason in status; once it is there again apply runs the job."""
    write_manifest(fresh, {"prep": job("true", weights=["tiny"])}, weights=WEIGHTS)
    fresh.run(*APPLY, "--target", "weights.tiny")
    packs, hidden = fresh.mirror / "packs", fresh.mirror / "hidden"
    packs.rename(hidden)
    failed = fresh.run(*WAIT, code=None)
    status = fresh.json("status", "prep")
    logs = fresh.run("logs", "prep")
    hidden.rename(packs)

    assert failed.returncode in (1, 12)
    assert "job.prep" in failed.stderr
    assert status["status"] == "TRAINING_JOB_DEPLOY_FAILED"
    assert status["error"]
    assert "never started" in logs.stderr
    assert reasons(fresh) == {"job.prep": "replace_because_deploy_failed"}
    fresh.run(*WAIT)
    assert state_of(fresh, "prep") == "COMPLETED"


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

    assert reasons(fresh) == {"job.sft": "replace_because_run_lost"}
    assert state_of(fresh, "sft") == "LOST"
    assert "lost" in fresh.run("plan").stdout
    fresh.run(*APPLY)
    assert fresh.json("status", "sft")["number"] == 2


@one_day_in(5)
def test_a_run_that_was_lost_before_it_began_is_a_failure_of_its_apply(
    fresh: ProjectHarness, tmp_path: Path
) -> None:
    """Nothing of the job has run: apply says so and ends as for any step that failed; the next one begins anew."""
    gate = tmp_path / "gate"
    preparing = {
        "enabled": True,
        "prepare_commands": [f"while ! test -e {gate}; do sleep 0.1; done"],
    }
    write_manifest(fresh, {"sft": job("echo done", runtime={"cache_config": preparing})})
    with fresh.start(*APPLY) as apply:
        wait_for(lambda: list(fresh.nodes.glob("*/runs/*/log/prepare-*")))
        (claim,) = fresh.nodes.glob("*/runs/*/claim.1")
        os.kill(json.loads(claim.read_text())["pid"], signal.SIGKILL)
        out, said = apply.communicate(timeout=60)

    assert apply.returncode == 12, out + said
    assert "job.sft: run 1 (" in said
    assert "was lost before it started" in said
    assert "Apply complete" not in out
    assert state_of(fresh, "sft") == "LOST"
    assert reasons(fresh) == {"job.sft": "replace_because_run_lost"}
    assert "the supervisor or node of its last run was lost" in fresh.run("plan").stdout
    gate.touch()
    fresh.run(*WAIT)
    assert fresh.run("logs", "sft").stdout == "done\n"


def command(pid: int) -> str:
    """What a process was started with."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


@one_day_in(5)
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
    assert fresh.actions() == {
        "job.done": ["forget"], "job.live": ["delete"], "cluster.local": ["delete"],
    } or fresh.actions() == {"job.done": ["forget"], "job.live": ["delete"]}  # fmt: skip
    fresh.run(*APPLY, code=12)
    assert "job.done" not in fresh.json("state", "list")["addresses"]
    assert state_of(fresh, "live") == "RUNNING"
    fresh.run(*APPLY, "--stop-running")
    assert "job.live" not in fresh.json("state", "list")["addresses"]
    assert processes(str(fresh.nodes)) == []
    assert len(list((fresh.directory.parent / "data").rglob("x"))) == 1


def test_stop(fresh: ProjectHarness) -> None:
    """TERM first, KILL after the grace; STOPPED, its scratch is empty; stopping twice says so; apply leaves it stopped."""
    stubborn = "trap 'echo asked' TERM; touch $BT_SCRATCH_DIR/junk; echo ready; while :; do sleep 0.1; done"
    polite = "trap 'echo saved; exit 0' TERM; touch $BT_SCRATCH_DIR/junk; echo ready; while :; do sleep 0.1; done"
    write_manifest(fresh, {"stubborn": job(stubborn), "polite": job(polite)})
    fresh.run(*APPLY)
    for name in ("stubborn", "polite"):
        wait_for(lambda name=name: "ready" in fresh.run("logs", name).stdout)  # type: ignore[misc]
    fresh.run("stop", "polite")
    said = fresh.run("stop", "stubborn", "--grace", "0.5").stdout
    again = fresh.run("stop", "stubborn").stdout

    assert "job.stubborn: run 1 (" in said
    assert "is already stopped" in again
    assert "saved" in fresh.run("logs", "polite").stdout
    assert "asked" in fresh.run("logs", "stubborn").stdout
    assert [state_of(fresh, name) for name in ("stubborn", "polite")] == ["STOPPED", "STOPPED"]
    assert list(fresh.nodes.glob("*/runs/*/scratch/*")) == []
    assert processes(str(fresh.nodes)) == []
    fresh.run("plan", "--detailed-exitcode", code=0)


@one_day_in(4)
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
    assert "has no run 9" in fresh.run("logs", "sft", "--run", "9", code=64).stderr
    assert "job.sft" in fresh.run("logs", "none", code=64).stderr


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


def test_what_a_job_finds_and_leaves(fresh: ProjectHarness) -> None:
    """Every BT_ variable, writable directories; the training cache lasts from run to run and goes with destroy; scratch never does, failed runs' neither."""
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

    listed = {
        run: fresh.json("checkpoints", "list", "sft", "--run", run)["checkpoints"]
        for run in ("1", "2")
    }
    names = {
        run: [one["name"] for one in rows if one["name"].startswith("checkpoint")]
        for run, rows in listed.items()
    }
    assert names == {"1": ["checkpoint-1"], "2": ["checkpoint-2"]}
    flags = ("--run", first["run"], "--output-dir", "out")
    place = fresh.run(
        "checkpoints", "download", "sft", "--name", "checkpoint-1", *flags
    ).stdout.strip()
    assert (fresh.directory / place / "w").read_text() == "x\n"
    fresh.run("checkpoints", "download", "sft", "--name", "checkpoint-1", *flags, code=64)

    fresh.run("destroy", "--auto-approve")
    assert not cache.exists()


def test_looking_at_what_is_there(fresh: ProjectHarness) -> None:
    """status as a table and in full, history of one address and of all, and the phases of a run."""
    write_manifest(
        fresh, {"a": job("true", weights=["tiny"]), "b": job(sleep_command(60))}, weights=WEIGHTS
    )
    assert "No jobs have run yet." in fresh.run("status").stdout
    fresh.run(*APPLY)
    wait_for(lambda: state_of(fresh, "a") == "COMPLETED")
    table = fresh.run("status").stdout.splitlines()
    everything = fresh.json("status")["jobs"]
    one = fresh.json("status", "job.a")
    history = fresh.json("history", "job.a")["entries"]
    in_full = fresh.run("status", "a").stdout

    assert [line.split()[0] for line in table] == ["JOB", "job.a", "job.b"]
    assert ["completed" in table[1], "running" in table[2]] == [True, True]
    assert [job["address"] for job in everything] == ["job.a", "job.b"]
    assert everything[0] == one
    assert one["phases"].keys() == {"mirroring", "provisioning", "delivering", "running"}
    assert one["phases"]["running"] > 0
    assert one["created_at"] < one["started_at"] < one["ended_at"]
    assert [(row["action"], row["run"]) for row in history] == [
        ("create", one["run"]),
        ("observe", one["run"]),
    ]
    assert one["run"] in in_full
    assert {row["address"] for row in fresh.json("history")["entries"]} >= {
        "job.a",
        "job.b",
        "weights.tiny",
    }
    fresh.run("status", "c", code=64)
