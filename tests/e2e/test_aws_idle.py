"""EC2 instances that turn themselves off, and that are taken back."""

from __future__ import annotations

import json

import pytest

from tests.e2e.test_aws import instances
from tests.support.node_program.nodes import wait_for
from tests.support.projects.project import ProjectHarness
from tests.support.servers.ec2 import Ec2Server
from tests.support.tiers import one_day_in

pytestmark = pytest.mark.integration

MANIFEST = """
project: {{name: rented}}
secrets: {{bucket: {{from: env, name: BUCKET}}}}
checkpoints: {{url: s3://spot/runs, endpoint_url: "{url}", auth: {{auth_secret_name: bucket}}}}
clusters:
  gpu:
    provider: aws
    region: us-east-1
    instance_types: [g5.xlarge]
    zones: [us-east-1a]
    ssh_from: [127.0.0.0/8]
    address: private
    port: {port}
    idle_timeout: {idle_timeout}
jobs:
  train:
    code: .
    runtime:
      start_commands: ["sh train.sh"]
      checkpointing_config: {{enabled: {saves}}}
"""
SAVES_ON_SIGTERM = """
save() { mkdir -p $BT_CHECKPOINT_DIR/checkpoint-7 && echo 7 > $BT_CHECKPOINT_DIR/checkpoint-7/step; exit 0; }
trap save TERM
echo found $(ls $BT_LOAD_CHECKPOINT_DIR/*/*)
while :; do sleep 0.1; done
"""


def write(project: ProjectHarness, ec2: Ec2Server, idle_timeout: str, script: str) -> None:
    """Write a project whose checkpoints are in a bucket of the same server."""
    key = {"access_key_id": "AKIAEXAMPLE", "secret_access_key": "not-a-real-key"}
    project.variables |= ec2.environment
    project.variables["BUCKET"] = json.dumps({f"aws_{name}": text for name, text in key.items()})
    project.trust('secret = "bucket"\nhosts = ["127.0.0.1"]')
    saves = str("save" in script).lower()
    values = {"url": ec2.url, "port": ec2.ssh_port, "idle_timeout": idle_timeout, "saves": saves}
    project.write({"trainctl.yaml": MANIFEST.format(**values), "train.sh": script})


@one_day_in(3)
def test_an_idle_instance_turns_itself_off(fresh: ProjectHarness, ec2: Ec2Server) -> None:
    """It is terminated, as it was launched so, and the next plan finds it missing."""
    write(fresh, ec2, "10s", "echo trained")
    fresh.run("apply", "--auto-approve", "--wait")

    wait_for(lambda: not instances(ec2), 60)

    (instance,) = instances(ec2, "terminated")
    assert instance["StateReason"]["Code"] == "Client.InstanceInitiatedShutdown"
    assert fresh.json("nodes")["nodes"][0]["status"] == "missing"


@one_day_in(7)
def test_a_rebooted_instance_turns_itself_off(fresh: ProjectHarness, ec2: Ec2Server) -> None:
    """Nobody logs in after the boot, whose scripts start the watch again."""
    write(fresh, ec2, "20s", "echo trained")
    fresh.run("apply", "--auto-approve", "--wait")
    (instance,) = instances(ec2)

    ec2.client().reboot_instances(InstanceIds=[instance["InstanceId"]])

    wait_for(lambda: not instances(ec2), 60)
    (instance,) = instances(ec2, "terminated")
    assert instance["StateReason"]["Code"] == "Client.InstanceInitiatedShutdown"


@one_day_in(3)
def test_a_run_on_an_interrupted_instance_resumes_on_another(
    fresh: ProjectHarness, ec2: Ec2Server
) -> None:
    """Its checkpoint is in the bucket before the instance is gone; no command ran meanwhile."""
    ec2.client("s3").create_bucket(Bucket="spot")
    write(fresh, ec2, "10m", SAVES_ON_SIGTERM)
    fresh.run("apply", "--auto-approve")
    (instance,) = instances(ec2)
    wait_for(lambda: "found" in fresh.run("logs", "train").stdout, 30)

    ec2.interrupt(instance["InstanceId"], 12)
    wait_for(lambda: not instances(ec2), 60)
    fresh.run("reconcile", "--once")

    (other,) = instances(ec2)
    assert other["InstanceId"] != instance["InstanceId"]
    wait_for(lambda: "found checkpoint-7" in fresh.run("logs", "train").stdout, 30)
    fresh.run("destroy", "--auto-approve", "--stop-running")
