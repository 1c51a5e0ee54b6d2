"""Options of the aws provider: reserved capacity, EFA, instance profile, jump host, local disks, start at each boot."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.machines.hosts import require_hosts
from tests.support.machines.sshd import SshUser, sshd
from tests.support.servers.ec2 import Ec2Server
from tests.support.tiers import one_day_in
from trainctl.errors import NodeError, NodeUnreachable
from trainctl.plugin_api.provider import ClusterSettings
from trainctl_aws import AwsProvider
from trainctl_aws.user_data import each_boot

pytestmark = pytest.mark.integration

_NAMESPACE = """
set -e
mkdir -p {place}/dev {place}/home/.cache; mount --bind /dev {place}/dev
mount -t tmpfs tmpfs /dev
for name in null urandom {disks}; do touch /dev/$name; mount --bind {place}/dev/$name /dev/$name; done
mkdir -p /dev/disk/by-id
number=0
for name in {disks}; do
    number=$((number + 1)) link=/dev/disk/by-id/nvme-Amazon_EC2_NVMe_Instance_Storage_AWS0$number
    ln -s /dev/$name $link; ln -s /dev/$name ${{link}}_1; ln -s /dev/$name $link-ns-1
done
PATH={place}/bin:$PATH sh {place}/each_boot
mountpoint -q {cache}
cat {cache}/kept 2>/dev/null || :
echo kept >{cache}/kept
stat -c %a {cache}
ls -A {cache}
umount {cache}
"""
"""A machine whose local disks are loop devices; boots it once."""
_GETENT = "#!/bin/sh\necho root:x:0:0::{place}/home:/bin/sh\n"
_MDADM = '#!/bin/sh\necho "$@" >>{place}/mdadm\ncase $1 in --create) mkdir -p /dev/md; ln -s /dev/{first} "$2";; esac\n'
"""Instead of md, which this kernel may lack: the array is its first disk."""


@pytest.fixture
def provider(
    ec2: Ec2Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[AwsProvider]:
    """A provider with the account of the server."""
    for name, value in {**ec2.environment, "XDG_DATA_HOME": str(tmp_path / "data")}.items():
        monkeypatch.setenv(name, value)
    with closing(AwsProvider()) as provider:
        yield provider


def cluster_of(ec2: Ec2Server, **own: Any) -> ClusterSettings:
    """A cluster with these settings."""
    usual = {"region": "us-east-1", "ssh_from": ["127.0.0.0/8"], "address": "private"}
    settings = {**usual, "instance_types": ["t3.micro"], "port": ec2.ssh_port, **own}
    return ClusterSettings("lab", settings, "lineage")


def reserve(ec2: Ec2Server, kind: str, zone: str) -> str:
    """The ID of a capacity reservation."""
    words = {"InstanceType": kind, "InstancePlatform": "Linux/UNIX", "InstanceCount": 1}
    made = ec2.client().create_capacity_reservation(AvailabilityZone=zone, **words)
    return str(made["CapacityReservation"]["CapacityReservationId"])


@one_day_in(3)
def test_a_capacity_block_with_efa(ec2: Ec2Server, provider: AwsProvider) -> None:
    """One offer, in the block's zone, paid in advance; a network card for each EFA; the block has its own placement."""
    block = reserve(ec2, "p4d.24xlarge", "us-east-1b")
    cluster = cluster_of(
        ec2, instance_types=["p4d.24xlarge"], capacity_block=block, efa=True, tags={"team": "nlp"}
    )

    [offer] = provider.offers(cluster)
    node = provider.create(cluster, "lab-0", "key")

    assert (offer.zone, offer.availability) == ("us-east-1b", "capacity block")
    assert (offer.price_per_hour, offer.price_source) == (None, "paid in advance")
    [launch] = ec2.calls("RunInstances")
    params = launch.params
    assert params["InstanceMarketOptions.MarketType"] == "capacity-block"
    target = "CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId"
    assert params[target] == block
    cards = [f"NetworkInterface.{number}." for number in range(1, 5)]
    fields = ("InterfaceType", "NetworkCardIndex", "DeviceIndex")
    assert [tuple(params[card + field] for field in fields) for card in cards] == [
        ("efa", "0", "0"), ("efa", "1", "1"), ("efa", "2", "1"), ("efa", "3", "1"),
    ]  # fmt: skip
    assert len({params[f"{card}SecurityGroupId.1"] for card in cards}) == 1
    assert "NetworkInterface.5.DeviceIndex" not in params
    assert not any("AssociatePublicIpAddress" in name for name in params)
    assert "Placement.GroupName" not in params
    assert (node.gpus, node.details["zone"]) == (8, "us-east-1b")
    [instance] = ec2.client().describe_instances()["Reservations"][0]["Instances"]
    assert {"Key": "team", "Value": "nlp"} in instance["Tags"]
    groups = ec2.client().describe_security_groups(
        GroupIds=[params[f"{cards[0]}SecurityGroupId.1"]]
    )
    [group] = groups["SecurityGroups"]
    for rules in (group["IpPermissions"], group["IpPermissionsEgress"]):
        pairs = [pair["GroupId"] for rule in rules for pair in rule["UserIdGroupPairs"]]
        assert pairs == [group["GroupId"]], "EFA needs all traffic among the machines"


@one_day_in(6)
def test_a_reservation_and_a_profile(ec2: Ec2Server, provider: AwsProvider) -> None:
    """The machine gets the role's credentials; a full reservation is an error that names it."""
    iam, document = ec2.client("iam"), '{"Version": "2012-10-17", "Statement": []}'
    iam.create_instance_profile(InstanceProfileName="trainer")
    iam.create_role(RoleName="trainer", AssumeRolePolicyDocument=document)
    iam.add_role_to_instance_profile(InstanceProfileName="trainer", RoleName="trainer")
    reserved = reserve(ec2, "t3.micro", "us-east-1c")
    cluster = cluster_of(ec2, capacity_reservation=reserved, instance_profile="trainer")
    ec2.fail_next("RunInstances", "ReservationCapacityExceeded")

    with pytest.raises(NodeError) as caught:
        provider.create(cluster, "lab-0", "key")
    node = provider.create(cluster, "lab-0", "key")

    assert caught.value.code == "machine-capacity"
    assert "t3.micro in us-east-1c, on-demand: ReservationCapacityExceeded" in caught.value.detail
    params = ec2.calls("RunInstances")[-1].params
    assert params["IamInstanceProfile.Name"] == "trainer"
    assert "InstanceMarketOptions.MarketType" not in params
    assert node.details["zone"] == "us-east-1c"
    metadata = ec2.machine(node.details["instance"]).metadata
    assert "meta-data/iam/security-credentials/trainer" in metadata.values


@one_day_in(3)
def test_one_card_and_the_placement_group_of_somebody_else(
    ec2: Ec2Server, provider: AwsProvider
) -> None:
    """EFA on one card allows a public address. A named group is used and stays."""
    ec2.client().create_placement_group(GroupName="ours", Strategy="cluster")
    own = {"instance_types": ["g5.48xlarge"], "efa": True, "address": "public"}
    cluster = cluster_of(ec2, placement_group="ours", **own)

    node = provider.create(cluster, "lab-0", "key")

    [launch] = ec2.calls("RunInstances")
    assert launch.params["NetworkInterface.1.InterfaceType"] == "efa"
    assert launch.params["NetworkInterface.1.AssociatePublicIpAddress"] == "true"
    assert launch.params["Placement.GroupName"] == "ours"
    assert node.address
    provider.delete(node)
    assert list(ec2.data.placement_groups) == ["ours"]


@one_day_in(3)
def test_a_jump_host_is_gone_through(
    ec2: Ec2Server, provider: AwsProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For all connections, with the user's own configuration for it; an unknown one is named within seconds."""
    user = SshUser(tmp_path / "user")
    user.become(monkeypatch)
    with sshd(tmp_path / "jump", user) as jump:
        cluster = cluster_of(ec2, jump=f"{jump.address}:{jump.port}")
        with pytest.raises(
            NodeUnreachable, match="host key verification of the jump host"
        ) as caught:
            provider.create(cluster, "lab-0", "key")
        assert caught.value.code == "ssh-unknown-key"
        user.known_hosts.write_text(jump.known)

        node = provider.create(cluster, "lab-0", "key")

        assert len(ec2.calls("RunInstances")) == 1
        with closing(provider.transport(node)) as transport:
            output = transport.run(["sh", "-c", "echo $SSH_CONNECTION"])
            assert jump.connections()
        assert output.stdout.decode().split()[2] == node.address


@pytest.mark.parametrize("count", [1, 2])
def test_local_disks_hold_the_node_cache_also_after_a_reboot(tmp_path: Path, count: int) -> None:
    """Two are striped. The file system is made once."""
    require_hosts()
    with ExitStack() as stack:
        disks = [loop_device(stack, tmp_path / f"disk-{number}") for number in range(count)]
        values = {"place": tmp_path, "disks": " ".join(disks), "first": disks[0]}
        values["cache"] = tmp_path / "home/.cache/trainctl/cache"
        (tmp_path / "bin").mkdir()
        for name, text in {"getent": _GETENT, "mdadm": _MDADM, "systemctl": "#!/bin/sh\n"}.items():
            (tmp_path / "bin" / name).write_text(text.format(**values))
            (tmp_path / "bin" / name).chmod(0o755)
        (tmp_path / "each_boot").write_text(each_boot("root"))

        def boot() -> list[str]:
            words = ["unshare", "--mount", "sh", "-c", _NAMESPACE.format(**values)]
            done = subprocess.run(words, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            return done.stdout.split()

        assert boot() == ["700", "kept"]
        assert boot() == ["kept", "700", "kept"]
    if count > 1:
        paths = " ".join(
            f"/dev/disk/by-id/nvme-Amazon_EC2_NVMe_Instance_Storage_AWS0{n}" for n in (1, 2)
        )
        assert (tmp_path / "mdadm").read_text().splitlines() == [
            "--assemble --scan",
            f"--create /dev/md/trainctl --run --level=0 --raid-devices=2 {paths}",
            "--assemble --scan",
        ]


def loop_device(stack: ExitStack, path: Path) -> str:
    """The name of a block device of 64 MiB; skip without any."""
    with path.open("wb") as stream:
        stream.truncate(64 * 2**20)
    made = subprocess.run(["losetup", "-f", "--show", path], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"no loop devices: {made.stderr}")
    stack.callback(subprocess.run, ["losetup", "-d", made.stdout.strip()], check=True)
    return made.stdout.strip().removeprefix("/dev/")
