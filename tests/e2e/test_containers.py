"""Jobs in containers: plan, apply, errors, caches, checkpoints, destroy."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.machines.containers import BUSYBOX, LOGIN, ContainerRegistry, EngineHarness
from tests.support.projects.project import ProjectHarness

APPLY = ("apply", "--auto-approve", "--wait")
MANIFEST = """\
project: {name: demo}
secrets: {token: {from: env, name: TOKEN_VALUE}, login: {from: env, name: LOGIN_VALUE}}
weights:
  tiny: {source: "file:./weights", mount_location: /app/models/tiny}
jobs:
  sft:
    code: ./src
    weights: [tiny]
    image: {base_image: "IMAGE"AUTH}
    runtime:
      ENGINE
      start_commands:
        - cat hello.txt /app/models/tiny/model.bin
        - echo "in $BT_WORKING_DIR with $TOKEN, cache $BT_RW_CACHE_DIR"
        - echo saved >$BT_CHECKPOINT_DIR/checkpoint-1
      environment_variables: {TOKEN: {secret: token}}
      checkpointing_config: {enabled: true}
      cache_config: {enabled: true}
"""
AUTH = (
    ", docker_auth: {auth_method: REGISTRY_SECRET, registry: REGISTRY, "
    "registry_secret_docker_auth: {secret_ref: {secret: login}}}"
)


def declare(work: ProjectHarness, image: str, engine: str = "", auth: str = "") -> None:
    text = MANIFEST.replace("IMAGE", image).replace("AUTH", auth)
    text = text.replace("ENGINE", f"engine: {engine}" if engine else "")
    work.variables |= {"TOKEN_VALUE": "hush hush hush", "LOGIN_VALUE": LOGIN}
    work.trust('secret = "login"\nhosts = ["127.0.0.1"]')
    work.write(
        {"trainctl.yaml": text, "src/hello.txt": "hello\n", "weights/model.bin": "weights\n"}
    )


def test_an_image_is_pulled_and_run_by_digest(
    fresh: ProjectHarness,
    engine: EngineHarness,
    own_podman: EngineHarness,
    own_registry: ContainerRegistry,
) -> None:
    """The plan shows the image; the run records the digest; a second plan has no changes; destroy removes the image."""
    fresh.variables |= engine.variables
    name = f"e2e/{engine.name}:1"
    digest = own_registry.push(own_podman, BUSYBOX, name)
    image = f"{own_registry.address}/{name}"
    own_podman("image", "rm", "--force", image, check=False)
    declare(fresh, image, engine.name)
    planned = fresh.json("plan")
    text = fresh.run("plan").stdout
    fresh.run(*APPLY)
    state = json.loads(fresh.run("state", "pull").stdout)
    (job,) = (entry for entry in state["resources"] if entry["address"] == "job.sft")
    (run,) = job["outputs"]["runs"]

    (row,) = planned["images"]
    expected = {"job": "job.sft", "node": "local/local-0", "image": image, "engine": engine.name, "present": False}  # fmt: skip
    assert expected.items() <= row.items()
    assert (row["digest"], row["unresolved_reason"]) == (digest, "")
    assert {entry["mount"] for entry in planned["deliveries"]} == {"container"}
    assert "pulled at start" in text
    assert "Mounted read-only in the container of the job." in text
    assert run["status"] == "TRAINING_JOB_COMPLETED"
    assert run["image_digest"].startswith("sha256:")
    assert run["image_digest"] == fresh.json("status", "sft")["image_digest"]
    if engine.name != "apptainer":  # whose images are files
        assert own_podman("image", "inspect", "--format", "{{.RepoDigests}}", image).count(digest)
    assert fresh.run("logs", "sft").stdout.splitlines() == [
        "hello",
        "weights",
        "in /b10/workspace with (redacted), cache /root/.cache/user_artifacts",
    ]
    assert fresh.actions() == {}
    assert fresh.json("checkpoints", "list", "sft")["checkpoints"][0]["run"] == run["id"]
    fresh.run("destroy", "--auto-approve", "--delete-checkpoints")
    assert engine.containers() == []
    assert list(fresh.nodes.glob("*")) == []


def test_an_image_that_the_registry_refuses_fails_the_deployment(
    fresh: ProjectHarness, own_podman: EngineHarness, private_registry: ContainerRegistry
) -> None:
    """DEPLOY_FAILED with the reason; an apply with a login succeeds."""
    fresh.variables |= own_podman.variables
    private_registry.push(own_podman, BUSYBOX, "team/x:1", "--creds", LOGIN)
    image = f"{private_registry.address}/team/x"
    own_podman("image", "rm", "--force", f"{image}:1", check=False)
    auth = AUTH.replace("REGISTRY,", f'"{private_registry.address}",')
    declare(fresh, f"{image}:1")
    refused = fresh.run(*APPLY, code=12)
    status = fresh.json("status", "sft")
    declare(fresh, f"{image}:1", auth=auth)
    applied = fresh.run(*APPLY)

    assert f"image {image}:1: the registry denied access" in refused.stderr
    assert "image.docker_auth" in refused.stderr
    assert status["status"] == "TRAINING_JOB_DEPLOY_FAILED"
    assert LOGIN.partition(":")[2] not in refused.stderr + applied.stderr
    assert fresh.json("status", "sft")["status"] == "TRAINING_JOB_COMPLETED"


def declare_jobs(work: ProjectHarness, engine: EngineHarness, **jobs: dict[str, Any]) -> None:
    """Jobs in the small image, each by its ``runtime``."""
    image = {"base_image": engine.small}
    declared = {
        name: {"code": "./src", "image": image, "runtime": {"engine": engine.name, **runtime}}
        for name, runtime in jobs.items()
    }
    text = json.dumps({"project": {"name": "demo"}, "jobs": declared})
    work.variables |= engine.variables
    work.write({"trainctl.yaml": text, "src/data.txt": "from the code\n"})


@pytest.mark.long
def test_a_cache_is_prepared_in_the_container(fresh: ProjectHarness, engine: EngineHarness) -> None:
    """Once for two jobs: in the job's image, with its code and at its paths, also below ~/.cache/huggingface."""
    prepare = [
        "echo prepared in $BT_WORKING_DIR; cat data.txt >>$BT_PROJECT_CACHE_DIR/data",
        "echo hub >~/.cache/huggingface/token",
    ]
    cache = {"enabled": True, "enable_legacy_hf_mount": True, "prepare_commands": prepare}
    show = "cat $BT_PROJECT_CACHE_DIR/data ~/.cache/huggingface/token; echo $BT_PROJECT_CACHE_DIR"
    runtime = {"start_commands": [show], "cache_config": cache}
    declare_jobs(fresh, engine, first=runtime, second=runtime)
    fresh.run(*APPLY)
    logs = [fresh.run("logs", name).stdout for name in ("first", "second")]
    prepared = [fresh.run("logs", name, "--prepare").stdout for name in ("first", "second")]
    files = fresh.json("cache", "summarize", "demo")["files"]
    fresh.run("destroy", "--auto-approve")

    assert logs == ["from the code\nhub\n/root/.cache/user_artifacts\n"] * 2
    assert sorted(prepared) == ["", "prepared in /b10/workspace\n"]
    stored = sorted(entry["path"] for entry in files if entry["type"] == "file")
    assert stored == ["data", "huggingface/token"]
    assert engine.containers() == []
    assert list(fresh.nodes.glob("*")) == []


@pytest.mark.long
def test_a_container_loads_a_checkpoint(fresh: ProjectHarness, engine: EngineHarness) -> None:
    """The job's own latest, and one by its name, read-only; the first run has none."""
    show = [
        "cd $BT_LOAD_CHECKPOINT_DIR; pwd; for file in */*/*/*; do [ ! -f $file ] || echo $file: $(cat $file); done",
        "echo x >sft/rank-0/checkpoint-1/model || echo read-only",
    ]
    save = "mkdir -p $BT_CHECKPOINT_DIR/checkpoint-1; echo step 1 >$BT_CHECKPOINT_DIR/checkpoint-1/model"
    named = {"typ": "named", "job_id": "sft", "checkpoint_name": "checkpoint-1"}
    declare_jobs(
        fresh,
        engine,
        sft={
            "start_commands": [show[0], save],
            "checkpointing_config": {"enabled": True},
            "load_checkpoint_config": {"enabled": True},
        },
        eval={
            "start_commands": show,
            "load_checkpoint_config": {"enabled": True, "checkpoints": [named]},
        },
    )
    fresh.run(*APPLY)
    first, evaluated = (fresh.run("logs", name).stdout for name in ("sft", "eval"))
    fresh.run("run", "sft", "--auto-approve", "--follow")
    second = fresh.run("logs", "sft").stdout
    loaded = fresh.json("status", "sft")["loaded_checkpoints"]

    place, model = "/tmp/loaded_checkpoints\n", "sft/rank-0/checkpoint-1/model: step 1\n"
    assert (first, second) == (place, place + model)
    assert evaluated.startswith(place + model)
    assert evaluated.endswith("read-only\n")
    assert [entry["name"] for entry in loaded] == ["checkpoint-1"]
    assert engine.containers() == []
