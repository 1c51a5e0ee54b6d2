"""Jobs in containers as a user meets them: plan, apply, errors, destroy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.machines.apptainer import Apptainer
from tests.support.machines.containers import BUSYBOX, LOGIN, ContainerRegistry, EngineHarness
from tests.support.projects.project import ProjectHarness
from tests.support.tiers import one_day_in

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
    """A job with weights, a secret, a cache and checkpoints in an image."""
    text = MANIFEST.replace("IMAGE", image).replace("AUTH", auth)
    work.trust('secret = "login"\nhosts = ["127.0.0.1"]')
    work.write(
        {
            "trainctl.yaml": text.replace("ENGINE", f"engine: {engine}" if engine else ""),
            "src/hello.txt": "hello\n",
            "weights/model.bin": "weights\n",
        }
    )


def equip(work: ProjectHarness, engine: EngineHarness) -> None:
    """Let the project find the engine."""
    work.variables |= {**engine.variables, "TOKEN_VALUE": "hush hush hush", "LOGIN_VALUE": LOGIN}


@one_day_in(4)
def test_an_image_is_pulled_and_run_by_digest(
    fresh: ProjectHarness,
    engine: EngineHarness,
    own_podman: EngineHarness,
    own_registry: ContainerRegistry,
) -> None:
    """The plan says what will be pulled; the run records the digest; a second plan has nothing to do; destroy takes the image along."""
    equip(fresh, engine)
    name = f"e2e/{engine.name}:1"
    digest = own_registry.push(own_podman, BUSYBOX, name)
    image = f"{own_registry.address}/{name}"
    own_podman("image", "rm", "--force", image, check=False)
    declare(fresh, image, engine.name)
    planned = fresh.json("plan")
    text = fresh.run("plan").stdout
    fresh.run(*APPLY)
    state = json.loads(fresh.run("state", "pull").stdout)
    (job,) = (one for one in state["resources"] if one["address"] == "job.sft")
    (run,) = job["outputs"]["runs"]

    assert planned["images"] == [
        {
            "job": "job.sft",
            "rank": 0,
            "node": "local/local-0",
            "image": image,
            "engine": engine.name,
            "present": False,
            "digest": digest,
            "unresolved_reason": "",
        }
    ]
    assert {one["mount"] for one in planned["deliveries"]} == {"container"}
    assert "pulled at start" in text
    assert "Mounted read-only in the container of the job." in text
    assert run["status"] == "TRAINING_JOB_COMPLETED"
    assert run["image_digest"].startswith("sha256:")
    assert run["image_digest"] == fresh.json("status", "sft")["image_digest"]
    assert f"image         {run['image_digest']}" in fresh.run("status", "sft").stdout
    if engine.name != "apptainer":  # whose images are files
        assert own_podman("image", "inspect", "--format", "{{.RepoDigests}}", image).count(digest)
    assert fresh.run("logs", "sft").stdout.splitlines() == [
        "hello",
        "weights",
        "in /b10/workspace with (redacted), cache /root/.cache/user_artifacts",
    ]
    assert fresh.actions() == {}
    assert fresh.json("checkpoints", "list", "sft")["checkpoints"][0]["run"] == run["id"]
    assert "present" in fresh.run("plan", "--replace", "job.sft").stdout
    fresh.run("destroy", "--auto-approve", "--delete-checkpoints")
    assert engine.containers() == []
    assert list(fresh.nodes.glob("*")) == []


@one_day_in(7)
def test_what_a_registry_refuses_fails_the_deployment(
    fresh: ProjectHarness, own_podman: EngineHarness, private_registry: ContainerRegistry
) -> None:
    """DEPLOY_FAILED with what is wrong; a corrected login is all that it takes."""
    equip(fresh, own_podman)
    private_registry.push(own_podman, BUSYBOX, "team/x:1", "--creds", LOGIN)
    image = f"{private_registry.address}/team/x"
    own_podman("image", "rm", "--force", f"{image}:1", check=False)
    auth = AUTH.replace("REGISTRY,", f'"{private_registry.address}",')
    declare(fresh, f"{image}:1")
    refused = fresh.run(*APPLY, code=12)
    status = fresh.json("status", "sft")
    declare(fresh, f"{image}:2", auth=auth)
    unknown = fresh.run(*APPLY, code=1)  # nothing but the job was left to do
    declare(fresh, f"{image}:1", auth=auth)
    fresh.run(*APPLY)

    assert f"image {image}:1: the registry denied access" in refused.stderr
    assert "image.docker_auth" in refused.stderr
    assert status["status"] == "TRAINING_JOB_DEPLOY_FAILED"
    assert f"image {image}:2: not found in the registry" in unknown.stderr
    assert LOGIN.partition(":")[2] not in refused.stderr + unknown.stderr
    assert fresh.json("status", "sft")["status"] == "TRAINING_JOB_COMPLETED"


@one_day_in(4)
def test_a_node_without_an_engine_is_told_in_the_plan(
    fresh: ProjectHarness, tmp_path: Path
) -> None:
    """Nothing is begun; with ``engine: host`` the same job is planned on the host."""
    fresh.variables |= {"TOKEN_VALUE": "hush hush hush", "LOGIN_VALUE": LOGIN}
    (tmp_path / "bin").mkdir()
    for program in ("git", "sh", "bash", "cat"):
        (tmp_path / "bin" / program).symlink_to(f"/usr/bin/{program}")
    fresh.variables["PATH"] = str(tmp_path / "bin")
    declare(fresh, "busybox:1")
    plan = fresh.run("plan", code=1)
    declare(fresh, "busybox:1", "host")
    fresh.run("plan")

    assert (
        "job.sft needs a container engine, but on local/local-0 no container engine works:"
        in plan.stderr
    )
    assert "podman is not installed; docker is not installed; apptainer is not" in plan.stderr
    assert "runtime.engine: host" in plan.stderr


@one_day_in(14)
def test_a_size_that_an_engine_does_not_know_is_told_in_the_plan(
    fresh: ProjectHarness, own_apptainer: Apptainer
) -> None:
    """Apptainer has no size of shared memory: a warning, and the job runs."""
    equip(fresh, own_apptainer)
    declare(fresh, own_apptainer.small, "apptainer\n      shm_size: 64Gi")
    told = fresh.json("plan")["diagnostics"]
    fresh.run(*APPLY)

    assert [(one["severity"], one["code"], one["address"]) for one in told] == [
        ("warning", "no-shm-size", "job.sft")
    ]
    assert fresh.json("status", "sft")["status"] == "TRAINING_JOB_COMPLETED"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "venv: /opt/venv",
            "runtime.venv and runtime.requirements are only supported without a container",
        ),
        ("engine: rkt", "engine"),
    ],
)
def test_what_goes_with_no_container_is_refused(
    fresh: ProjectHarness, line: str, said: str
) -> None:
    """At the job, before anything is looked at."""
    fresh.variables |= {"TOKEN_VALUE": "hush hush hush", "LOGIN_VALUE": LOGIN}
    declare(fresh, "busybox:1")
    manifest = (fresh.directory / "trainctl.yaml").read_text()
    fresh.write(
        {"trainctl.yaml": manifest.replace("start_commands:", f"{line}\n      start_commands:")}
    )

    assert said in fresh.run("plan", code=1).stderr
