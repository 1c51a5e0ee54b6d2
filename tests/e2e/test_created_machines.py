"""Machines that a provider creates: the example of a third-party provider, installed from its wheel."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.node_program.nodes import wait_for
from tests.support.projects.project import ProjectHarness, end_processes
from tests.support.servers.buckets import BucketServer, rclone
from tests.support.servers.ec2_metadata import PORT, InstanceMetadata, serve_metadata
from tests.support.tiers import one_day_in

ROOT = Path(__file__).parents[2]
MANIFEST = """
project: {name: rented}
clusters: {lab: {provider: rented, base: %s, machine_type: %s}}
jobs:
  train:
    code: .
    runtime: {start_commands: ["echo trained"]}
"""
IDLE_MANIFEST = """
project: {name: rented}
clusters: {lab: {provider: rented, base: %s, idle_timeout: %s}}
jobs:
  train:
    code: .
    runtime: {start_commands: ["until [ -e %s ]; do sleep 0.1; done"]}
"""
IDLE_SECONDS = 5.0
ADDRESS = f"127.77.{os.getpid() // 250 % 250}.{os.getpid() % 250 + 1}"
SPOT_MANIFEST = """
project: {name: rented}
secrets: {bucket: {from: env, name: BUCKET}}
checkpoints: {url: s3://models/spot, endpoint_url: "%s", auth: {auth_secret_name: bucket}}
clusters: {lab: {provider: rented, base: %s, metadata_url: "%s"}}
jobs:
  train:
    code: .
    runtime:
      start_commands: ["sh train.sh"]
      checkpointing_config: {enabled: true}
"""
SAVES_ON_SIGTERM = """
save() { mkdir -p $BT_CHECKPOINT_DIR/checkpoint-7 && echo 7 > $BT_CHECKPOINT_DIR/checkpoint-7/step; exit 0; }
trap save TERM
echo found $(ls $BT_LOAD_CHECKPOINT_DIR/*/*)
echo training
while :; do sleep 0.1; done
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the example is installed."""
    place = tmp_path_factory.mktemp("site")
    source = shutil.copytree(ROOT / "examples" / "provider", place / "source")
    words = ("-m", "pip", "install", "-qq", "--no-build-isolation", "--no-deps", "--target")
    subprocess.run([sys.executable, *words, str(place / "site"), str(source)], check=True)
    return place / "site"


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BucketServer]:
    """A bucket of rclone."""
    with rclone(tmp_path_factory.mktemp("s3") / "root") as server:
        yield server


@pytest.fixture
def rented(fresh: ProjectHarness, site: Path) -> ProjectHarness:
    """A project with a job on a rented machine."""
    fresh.variables["PYTHONPATH"] = str(site)
    fresh.forks = False
    write(fresh, "small")
    return fresh


def write(project: ProjectHarness, machine_type: str) -> None:
    project.write({"trainctl.yaml": MANIFEST % (machines(project), machine_type)})


def machines(project: ProjectHarness) -> Path:
    return project.directory.parent / "machines"


@one_day_in(2)
def test_a_machine_is_created_used_replaced_and_deleted(rented: ProjectHarness) -> None:
    """Nothing is asked of it before; another type is another machine, which has another key."""
    assert rented.json("nodes")["nodes"][0]["status"] == "planned"
    done = rented.run("apply", "--auto-approve", "--wait")
    assert "3 added" in done.stdout
    assert "its machines cost money until they are destroyed" in done.stdout
    assert rented.run("logs", "train").stdout == "trained\n"
    first = list(machines(rented).iterdir())

    write(rented, "large")
    cluster = next(c for c in rented.json("plan")["resource_changes"] if c["type"] == "cluster")
    assert cluster["change"]["actions"] == ["delete", "create"]
    assert ["machine_type"] in cluster["change"]["replace_paths"]
    rented.run("apply", "--auto-approve", "--wait")
    second = list(machines(rented).iterdir())
    assert len(first) == len(second) == 1
    assert first != second

    rented.run("destroy", "--auto-approve")
    assert list(machines(rented).iterdir()) == []


def test_a_machine_that_does_not_respond_is_deleted(rented: ProjectHarness) -> None:
    """It would go on costing money; what ran there is gone with it."""
    rented.run("apply", "--auto-approve", "--wait")
    (machine,) = machines(rented).iterdir()
    (machine / "stopped").touch()

    rented.run("destroy", "--auto-approve")

    assert list(machines(rented).iterdir()) == []
    assert rented.run("state", "list").stdout == ""


def test_a_machine_that_vanished_is_created_again(rented: ProjectHarness) -> None:
    rented.run("apply", "--auto-approve", "--wait")
    (machine,) = machines(rented).iterdir()
    subprocess.run(["chmod", "-R", "u+w", machine], check=True)
    shutil.rmtree(machine)

    rented.run("apply", "--auto-approve", "--wait")

    (again,) = machines(rented).iterdir()
    assert again != machine


@one_day_in(2)
def test_an_idle_machine_ends_itself(rented: ProjectHarness) -> None:
    """A live run keeps it; queries don't. The next plan creates it again."""
    gate = rented.directory.parent / "gate"
    rented.write({"trainctl.yaml": IDLE_MANIFEST % (machines(rented), IDLE_SECONDS, gate)})
    rented.run("apply", "--auto-approve")
    (machine,) = machines(rented).iterdir()
    began = time.monotonic()
    while time.monotonic() < began + 1.2 * IDLE_SECONDS:
        assert rented.json("nodes")["nodes"][0]["status"] == "present"

    gate.touch()
    wait_for(lambda: not machine.exists(), 30)

    assert rented.json("nodes")["nodes"][0]["status"] == "missing"
    assert rented.actions()["cluster.lab"] == ["create"]
    assert "Provider rented can't list its machines." in rented.run("nodes", "--orphans").stderr


@one_day_in(2)
@pytest.mark.parametrize(
    ("by", "noticed"), [("reconcile --once", True), ("apply --auto-approve", False)]
)
def test_an_interrupted_run_resumes_on_another_machine(
    rented: ProjectHarness, bucket: BucketServer, by: str, noticed: bool
) -> None:
    """Its job gets SIGTERM and saves; the run is lost, and the next one has its checkpoint. Nobody needs to look."""
    metadata = InstanceMetadata({})
    close = serve_metadata(ADDRESS, metadata)
    values = (bucket.endpoint, machines(rented), f"http://{ADDRESS}:{PORT}")
    rented.variables["BUCKET"] = json.dumps(bucket.credential)
    rented.trust('secret = "bucket"\nhosts = ["127.0.0.1"]')
    rented.write({"trainctl.yaml": SPOT_MANIFEST % values, "train.sh": SAVES_ON_SIGTERM})
    try:
        rented.run("apply", "--auto-approve")
        (machine,) = machines(rented).iterdir()
        wait_for(lambda: "training" in rented.run("logs", "train").stdout, 30)
        metadata.notify_interruption(40)
        if noticed:
            look_at_the_interruption(rented)
        else:
            (record,) = machine.glob("root/runs/*/run.json")
            wait_for(lambda: "STOPPED" in record.read_text(), 60)
    finally:
        close()
    end_processes(str(machine))
    subprocess.run(["chmod", "-R", "u+w", machine], check=True)
    shutil.rmtree(machine)

    rented.run(*by.split())
    wait_for(lambda: "found checkpoint-7" in rented.run("logs", "train").stdout, 30)

    (other,) = machines(rented).iterdir()
    assert other != machine
    assert rented.json("status", "train")["number"] == 2
    end_processes(str(other))


def look_at_the_interruption(rented: ProjectHarness) -> None:
    """The run waits until its machine is gone."""
    run = wait_for(lambda: lost(rented.json("status", "train")), 60)
    assert run["error"].startswith("interrupted: the machine is taken back at ")
    assert [row["name"] for row in run["checkpoints"] if row["complete"]] == ["checkpoint-7"]
    waits = rented.run("reconcile", "--once")
    assert "waits: the platform takes back lab/lab-0" in waits.stdout
    assert "takes the machine back at" in rented.run("nodes").stdout


def lost(job: dict[str, Any]) -> dict[str, Any] | None:
    return job if job["status"] == "TRAINING_JOB_LOST" else None
