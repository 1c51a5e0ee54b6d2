"""Jobs on EC2 instances: whole commands against EC2 on this machine, with a real sshd per instance."""

from __future__ import annotations

import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.node_program.nodes import wait_for
from tests.support.projects.project import ProjectHarness
from tests.support.servers.ec2 import Ec2Server
from tests.support.tiers import one_day_in

pytestmark = pytest.mark.integration

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
jobs:
  train:
    code: .
    runtime: {{start_commands: ["echo trained"]}}
"""


@pytest.fixture
def rented(fresh: ProjectHarness, ec2: Ec2Server) -> ProjectHarness:
    """A project with a job on one machine."""
    fresh.write({"trainctl.yaml": MANIFEST.format(port=ec2.ssh_port)})
    fresh.variables |= ec2.environment
    return fresh


def instances(ec2: Ec2Server, *states: str) -> list[dict[str, Any]]:
    """Instances in these states; by default those that exist."""
    wanted = states or ("pending", "running", "stopping", "stopped")
    pages = ec2.client().describe_instances()["Reservations"]
    found = [instance for page in pages for instance in page["Instances"]]
    return [instance for instance in found if instance["State"]["Name"] in wanted]


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


def test_a_machine_is_created_used_and_deleted_with_everything(
    rented: ProjectHarness, ec2: Ec2Server
) -> None:
    """The job runs there; a second apply uses the same machine; destroy leaves nothing in the account."""
    rented.run("apply", "--auto-approve", "--wait")

    assert rented.run("logs", "train").stdout == "trained\n"
    [instance] = instances(ec2)
    [launch] = ec2.calls("RunInstances")
    tags = {tag["Key"]: tag["Value"] for tag in instance["Tags"]}
    assert (tags["trainctl:cluster"], tags["trainctl:node"]) == ("gpu", "gpu-0")
    assert tags["trainctl:lineage"] in rented.run("state", "pull").stdout
    assert launch.params["MetadataOptions.HttpTokens"] == "required"
    assert launch.params["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert rented.json("nodes")["nodes"][0]["status"] == "present"
    [key] = (rented.directory.parent / "data/trainctl/aws").glob("*.key")
    assert key.stat().st_mode & 0o077 == 0
    assert key.read_text().splitlines()[1] not in rented.run("state", "pull").stdout

    plan = rented.run("plan", "--replace", "job.train").stdout
    assert re.search(r"\n  job\.train: .*took .* in 1 run", plan)
    rented.run("run", "train", "--auto-approve", "--follow")
    assert len(instances(ec2)) == 1

    rented.run("destroy", "--auto-approve")
    assert not any(leftovers(ec2).values()), leftovers(ec2)


def test_without_capacity_the_next_offer_is_taken(rented: ProjectHarness, ec2: Ec2Server) -> None:
    """The output names the first offer and the reason."""
    where = {"InstanceType": "g6.xlarge"}
    ec2.fail_next("RunInstances", "InsufficientInstanceCapacity", where=where)

    done = rented.run("apply", "--auto-approve")

    [instance] = instances(ec2)
    assert instance["InstanceType"] == "g5.xlarge"
    assert "g6.xlarge in us-east-1a, on-demand: InsufficientInstanceCapacity" in done.stderr


@one_day_in(2)
@pytest.mark.parametrize("with_answer", [True, False])
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
    rented.run("destroy", "--auto-approve")
    assert leftovers(ec2)["instances"] == []


def test_a_reached_quota_is_named_with_its_page(rented: ProjectHarness, ec2: Ec2Server) -> None:
    """The message has the quota's name and code, and where to request more. Nothing is left."""
    ec2.fail_next("RunInstances", "VcpuLimitExceeded", count=2)

    done = rented.run("apply", "--auto-approve", code=12)

    assert "Running On-Demand G and VT instances (L-DB2E81BA)" in done.stderr
    assert "console.aws.amazon.com/servicequotas/home/services/ec2/quotas/L-DB2E81BA" in done.stderr
    assert not any(leftovers(ec2).values()), leftovers(ec2)


def test_the_example_runs(fresh: ProjectHarness, ec2: Ec2Server) -> None:
    """The manifest of examples/aws, as it is."""
    if ec2.ssh_port != 22:
        pytest.skip("needs port 22 of loopback addresses")
    shutil.copytree(EXAMPLE, fresh.directory, dirs_exist_ok=True)
    fresh.variables |= ec2.environment

    fresh.run("apply", "--auto-approve", "--wait")

    assert "GPU" in fresh.run("logs", "gpus").stdout
    [instance] = instances(ec2)
    assert (instance["InstanceType"], instance["InstanceLifecycle"]) == ("g6.xlarge", "spot")


@one_day_in(2)
def test_several_machines_are_created_and_scaled_down(
    rented: ProjectHarness, ec2: Ec2Server
) -> None:
    """The plan shows the offers, and existing machines when there are some."""
    text = MANIFEST.format(port=ec2.ssh_port)
    assert "g6.xlarge  1 L4    us-east-1a  on-demand  0.8048     16" in rented.run("plan").stdout
    rented.run("apply", "--auto-approve")
    rented.write({"trainctl.yaml": text.replace("region:", "nodes: 3\n    region:")})
    plan = rented.run("plan").stdout
    assert "Existing machines are used again: gpu/gpu-0." in plan
    assert len(rented.json("plan")["offers"]) == 2

    rented.run("apply", "--auto-approve")
    assert {tag["Value"] for one in instances(ec2) for tag in one["Tags"] if tag["Key"] == "Name"} == {
        "gpu/gpu-0", "gpu/gpu-1", "gpu/gpu-2",
    }  # fmt: skip

    rented.write({"trainctl.yaml": text})
    rented.run("apply", "--auto-approve")
    assert len(instances(ec2)) == 1


def test_machines_of_a_lost_state_are_listed_and_ended(
    rented: ProjectHarness, ec2: Ec2Server
) -> None:
    """Their lineage is in their tags."""
    rented.run("apply", "--auto-approve")
    [instance] = instances(ec2)
    lineage = next(t["Value"] for t in instance["Tags"] if t["Key"] == "trainctl:lineage")
    shutil.rmtree(rented.directory / ".trainctl")

    assert instance["InstanceId"] in rented.run("nodes", "--orphans").stdout
    rented.run("nodes", "reap", "--lineage", lineage, "--auto-approve")

    assert not any(leftovers(ec2).values()), leftovers(ec2)
