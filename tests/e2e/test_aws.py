"""Jobs on EC2 instances: whole commands against EC2 on this machine, with a real sshd per instance."""

from __future__ import annotations

import json
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.node_program.nodes import wait_for
from tests.support.projects.project import ProjectHarness
from tests.support.servers.ec2 import Ec2Server

EXAMPLE = Path(__file__).parents[2] / "examples" / "aws"

MANIFEST = """
project: {{name: rented}}
clusters:
  gpu:
    provider: aws
    region: us-east-1
    instance_types: [g6.xlarge, g5.xlarge]
    zones: [us-east-1a]
    ssh_from: [127.0.0.0/8]
    address: private
    port: {port}
    idle_timeout: {idle_timeout}
jobs:
  train:
    code: .
    runtime: {{start_commands: ["{command}"]{more}}}
"""
CHECKPOINTS = """
secrets: {{bucket: {{from: env, name: BUCKET}}}}
checkpoints: {{url: s3://spot/runs, endpoint_url: "{url}", auth: {{auth_secret_name: bucket}}}}
"""
SAVES_ON_SIGTERM = """
save() { mkdir -p $BT_CHECKPOINT_DIR/checkpoint-7 && echo 7 > $BT_CHECKPOINT_DIR/checkpoint-7/step; exit 0; }
trap save TERM
echo found $(ls $BT_LOAD_CHECKPOINT_DIR/*/*)
while :; do sleep 0.1; done
"""


def manifest(
    ec2: Ec2Server, idle_timeout: str = "10m", command: str = "echo trained", more: str = ""
) -> str:
    return MANIFEST.format(port=ec2.ssh_port, idle_timeout=idle_timeout, command=command, more=more)


@pytest.fixture
def rented(fresh: ProjectHarness, ec2: Ec2Server) -> ProjectHarness:
    fresh.write({"trainctl.yaml": manifest(ec2)})
    fresh.variables |= ec2.environment
    return fresh


def instances(ec2: Ec2Server, *states: str) -> list[dict[str, Any]]:
    """Instances in these states; by default those that exist."""
    wanted = states or ("pending", "running", "stopping", "stopped")
    pages = ec2.client().describe_instances()["Reservations"]
    instances = [instance for page in pages for instance in page["Instances"]]
    return [instance for instance in instances if instance["State"]["Name"] in wanted]


def leftovers(ec2: Ec2Server) -> dict[str, list[str]]:
    """Resources of trainctl in the account besides terminated instances."""
    client = ec2.client()
    groups = client.describe_security_groups()["SecurityGroups"]
    return {
        "instances": [instance["InstanceId"] for instance in instances(ec2)],
        "groups": [g["GroupName"] for g in groups if g["GroupName"].startswith("trainctl")],
        "volumes": [volume["VolumeId"] for volume in client.describe_volumes()["Volumes"]],
        "placement": list(ec2.data.placement_groups),
        "keys": [pair["KeyName"] for pair in client.describe_key_pairs()["KeyPairs"]],
    }


@pytest.mark.long
def test_a_machine_is_created_used_and_deleted_with_everything(
    rented: ProjectHarness, ec2: Ec2Server
) -> None:
    """Without capacity, the next offer is used. A second apply uses the same machine; destroy leaves nothing in the account."""
    where = {"InstanceType": "g6.xlarge"}
    ec2.fail_next("RunInstances", "InsufficientInstanceCapacity", where=where)
    applied = rented.run("apply", "--auto-approve", "--wait")

    assert "g6.xlarge in us-east-1a, on-demand: InsufficientInstanceCapacity" in applied.stderr
    assert rented.run("logs", "train").stdout == "trained\n"
    [instance] = instances(ec2)
    assert instance["InstanceType"] == "g5.xlarge"
    launch = ec2.calls("RunInstances")[-1]
    tags = {tag["Key"]: tag["Value"] for tag in instance["Tags"]}
    assert (tags["trainctl:cluster"], tags["trainctl:node"]) == ("gpu", "gpu-0")
    state = rented.run("state", "pull").stdout
    assert tags["trainctl:lineage"] in state
    assert launch.params["MetadataOptions.HttpTokens"] == "required"
    assert launch.params["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert rented.json("nodes")["nodes"][0]["status"] == "present"
    [key] = (rented.directory.parent / "data/trainctl/aws").glob("*.key")
    assert key.stat().st_mode & 0o077 == 0
    assert key.read_text().splitlines()[1] not in state

    plan = rented.run("plan", "--replace", "job.train").stdout
    assert re.search(r"\n  job\.train: .*took .* in 1 run", plan)
    rented.run("run", "train", "--auto-approve", "--follow")
    assert len(instances(ec2)) == 1

    rented.run("destroy", "--auto-approve")
    assert not any(leftovers(ec2).values()), leftovers(ec2)


@pytest.mark.long
@pytest.mark.parametrize("with_answer", [False, True])
def test_a_killed_creation_is_finished_and_leaves_one_machine(
    rented: ProjectHarness, ec2: Ec2Server, with_answer: bool
) -> None:
    """Whether the kill comes after the launch or before its response: the next apply finds the machine."""
    ec2.lag_describe(2)
    if not with_answer:
        ec2.delay("RunInstances", 1)
    with rented.start("apply", "--auto-approve") as process:
        wait_for(lambda: ec2.calls("RunInstances"), 60)
        if with_answer:
            wait_for(lambda: ec2.calls("RunInstances")[0].status, 60)
        process.send_signal(signal.SIGKILL)

    rented.run("apply", "--auto-approve", "--wait")

    assert len(instances(ec2)) == 1
    assert instances(ec2, "terminated", "shutting-down") == []


def test_a_reached_quota_is_named_with_its_page(rented: ProjectHarness, ec2: Ec2Server) -> None:
    """The message has the quota's name and code, and where to request more. Nothing is left."""
    ec2.fail_next("RunInstances", "VcpuLimitExceeded", count=2)

    done = rented.run("apply", "--auto-approve", code=12)

    assert "Running On-Demand G and VT instances (L-DB2E81BA)" in done.stderr
    assert "console.aws.amazon.com/servicequotas/home/services/ec2/quotas/L-DB2E81BA" in done.stderr
    assert not any(leftovers(ec2).values()), leftovers(ec2)


@pytest.mark.long
def test_the_example_runs(fresh: ProjectHarness, ec2: Ec2Server) -> None:
    if ec2.ssh_port != 22:
        pytest.skip("needs port 22 of loopback addresses")
    shutil.copytree(EXAMPLE, fresh.directory, dirs_exist_ok=True)
    fresh.variables |= ec2.environment

    fresh.run("apply", "--auto-approve", "--wait")

    assert "GPU" in fresh.run("logs", "gpus").stdout
    [instance] = instances(ec2)
    assert (instance["InstanceType"], instance["InstanceLifecycle"]) == ("g6.xlarge", "spot")


def test_orphaned_machines_are_listed_and_ended(rented: ProjectHarness, ec2: Ec2Server) -> None:
    """Not the machines of the state, and those of other states only on request."""
    rented.run("apply", "--auto-approve")
    assert rented.json("nodes", "--orphans") == {"machines": []}
    rented.run("nodes", "forget", "gpu/gpu-0", "--auto-approve")
    [row] = rented.json("nodes", "--orphans")["machines"]
    assert (row["of_this_state"], row["ended"]) == (True, False)
    rented.run("nodes", "reap", code=64)  # no terminal
    [row] = rented.json("nodes", "reap", "--auto-approve")["machines"]
    assert row["ended"] is True

    rented.run("apply", "--auto-approve")
    [instance] = instances(ec2)
    shutil.rmtree(rented.directory / ".trainctl")
    assert instance["InstanceId"] in rented.run("nodes", "--orphans").stdout
    assert rented.json("nodes", "reap", "--auto-approve")["machines"] == []
    assert len(instances(ec2)) == 1
    rented.run("nodes", "reap", "--lineage", row["lineage"], "--auto-approve")
    assert not any(leftovers(ec2).values()), leftovers(ec2)


@pytest.mark.long
def test_a_rebooted_instance_ends_when_it_is_idle(rented: ProjectHarness, ec2: Ec2Server) -> None:
    """No login follows the boot, whose scripts start the watch again. The next plan finds the instance missing."""
    rented.write({"trainctl.yaml": manifest(ec2, idle_timeout="20s")})
    rented.run("apply", "--auto-approve", "--wait")
    (instance,) = instances(ec2)

    ec2.client().reboot_instances(InstanceIds=[instance["InstanceId"]])

    wait_for(lambda: not instances(ec2), 120)
    (instance,) = instances(ec2, "terminated")
    assert instance["StateReason"]["Code"] == "Client.InstanceInitiatedShutdown"
    assert rented.json("nodes")["nodes"][0]["status"] == "missing"


@pytest.mark.long
def test_a_run_on_an_interrupted_instance_resumes_on_another(
    rented: ProjectHarness, ec2: Ec2Server
) -> None:
    """Its checkpoint is in the bucket before the instance is gone; no command ran meanwhile."""
    ec2.client("s3").create_bucket(Bucket="spot")
    key = {"aws_access_key_id": "AKIAEXAMPLE", "aws_secret_access_key": "not-a-real-key"}
    rented.variables["BUCKET"] = json.dumps(key)
    rented.trust('secret = "bucket"\nhosts = ["127.0.0.1"]')
    text = manifest(ec2, command="sh train.sh", more=", checkpointing_config: {enabled: true}")
    checkpoints = CHECKPOINTS.format(url=ec2.url)
    rented.write({"trainctl.yaml": text + checkpoints, "train.sh": SAVES_ON_SIGTERM})
    rented.run("apply", "--auto-approve")
    (instance,) = instances(ec2)
    wait_for(lambda: "found" in rented.run("logs", "train").stdout, 60)

    ec2.interrupt(instance["InstanceId"], 25)
    wait_for(lambda: not instances(ec2), 120)
    rented.run("reconcile", "--once")

    (other,) = instances(ec2)
    assert other["InstanceId"] != instance["InstanceId"]
    wait_for(lambda: "found checkpoint-7" in rented.run("logs", "train").stdout, 60)
    assert rented.json("status", "train")["number"] == 2
    rented.run("destroy", "--auto-approve", "--stop-running")
