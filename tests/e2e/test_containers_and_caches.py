"""What jobs in containers keep and find again: training caches, prepared once, and checkpoints."""

from __future__ import annotations

import json
from typing import Any

from tests.support.machines.containers import EngineHarness
from tests.support.projects.project import ProjectHarness
from tests.support.tiers import one_day_in

APPLY = ("apply", "--auto-approve", "--wait")


def job(engine: EngineHarness, *commands: str, **runtime: Any) -> dict[str, Any]:
    """A job in the small image."""
    return {
        "code": "./src",
        "image": {"base_image": engine.small},
        "runtime": {"engine": engine.name, "start_commands": list(commands), **runtime},
    }


def declare(work: ProjectHarness, engine: EngineHarness, jobs: dict[str, Any]) -> None:
    """The manifest, whose jobs find the engine."""
    work.variables |= engine.variables
    work.write(
        {
            "trainctl.yaml": json.dumps({"project": {"name": "demo"}, "jobs": jobs}),
            "src/data.txt": "from the code\n",
        }
    )


@one_day_in(10)
def test_a_cache_is_prepared_in_the_container(fresh: ProjectHarness, engine: EngineHarness) -> None:
    """Once for two jobs: in the job's image, with its code and at its places; what a library keeps below ~/.cache/huggingface stays, too."""
    fetch = [
        "echo prepared in $BT_WORKING_DIR; cat data.txt >>$BT_PROJECT_CACHE_DIR/data",
        "echo hub >~/.cache/huggingface/token",
    ]
    cached = {
        "enabled": True,
        "enable_legacy_hf_mount": True,
        "prepare_commands": fetch,
    }
    look = "cat $BT_PROJECT_CACHE_DIR/data ~/.cache/huggingface/token; echo $BT_PROJECT_CACHE_DIR"
    jobs = {name: job(engine, look, cache_config=cached) for name in ("first", "second")}
    declare(fresh, engine, jobs)
    fresh.run(*APPLY)
    said = [fresh.run("logs", name).stdout for name in jobs]
    prepared = [fresh.run("logs", name, "--prepare").stdout for name in jobs]
    held = fresh.json("cache", "summarize", "demo")
    fresh.run("destroy", "--auto-approve")

    assert said == ["from the code\nhub\n/root/.cache/user_artifacts\n"] * 2
    assert sorted(prepared) == ["", "prepared in /b10/workspace\n"]
    assert sorted(one["path"] for one in held["files"] if one["type"] == "file") == [
        "data",
        "huggingface/token",
    ]
    assert engine.containers() == []
    assert list(fresh.nodes.glob("*")) == []


@one_day_in(10)
def test_commands_that_fail_to_prepare_a_cache_in_a_container(
    fresh: ProjectHarness, own_podman: EngineHarness
) -> None:
    """The job is not begun, the command and its last words are told, and the next apply prepares again."""
    cached = {"enabled": True, "prepare_commands": ["echo no such place; exit 3"]}
    declare(fresh, own_podman, {"sft": job(own_podman, "echo trained", cache_config=cached)})
    failed = fresh.run(*APPLY, code=12).stderr
    status = fresh.json("status", "sft")
    cached["prepare_commands"] = ["true"]
    declare(fresh, own_podman, {"sft": job(own_podman, "echo trained", cache_config=cached)})
    fresh.run(*APPLY)

    assert "prepare command 1 of 1 exited with 3" in failed
    assert "no such place" in failed
    assert status["status"] == "TRAINING_JOB_DEPLOY_FAILED"
    assert fresh.run("logs", "sft").stdout == "trained\n"
    assert own_podman.containers() == []


@one_day_in(10)
def test_a_container_begins_with_a_checkpoint(fresh: ProjectHarness, engine: EngineHarness) -> None:
    """The job's own latest and one by its name lie, read-only, where the variable says; the first run finds none."""
    save = "mkdir -p $BT_CHECKPOINT_DIR/checkpoint-$N; echo step $N >$BT_CHECKPOINT_DIR/checkpoint-$N/model"
    look = [
        "echo in $BT_LOAD_CHECKPOINT_DIR",
        "cd $BT_LOAD_CHECKPOINT_DIR; for one in */*/*/*; do [ ! -f $one ] || echo $one: $(cat $one); done",
        "echo x >sft/rank-0/checkpoint-1/model || echo read-only",
    ]
    named = {"typ": "named", "job_id": "sft", "checkpoint_name": "checkpoint-1"}
    jobs = {
        "sft": job(
            engine,
            *look[:2],
            save,
            checkpointing_config={"enabled": True},
            load_checkpoint_config={"enabled": True},
            environment_variables={"N": "1"},
        ),
        "eval": job(
            engine, *look, load_checkpoint_config={"enabled": True, "checkpoints": [named]}
        ),
    }
    declare(fresh, engine, jobs)
    fresh.run(*APPLY)
    first, evaluated = (fresh.run("logs", name).stdout for name in ("sft", "eval"))
    fresh.run("run", "sft", "--auto-approve", "--follow")
    second = fresh.run("logs", "sft").stdout
    status = fresh.json("status", "sft")

    place, model = "in /tmp/loaded_checkpoints\n", "sft/rank-0/checkpoint-1/model: step 1\n"
    assert first == place
    assert second == place + model
    assert evaluated.startswith(place + model)
    assert evaluated.endswith("read-only\n")
    assert [one["name"] for one in status["loaded_checkpoints"]] == ["checkpoint-1"]
    assert engine.containers() == []
