"""The aws provider against the suites and with its options, over EC2 on this machine with a real sshd per instance."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.machines.sshd import SshUser, sshd
from tests.support.node_program.nodes import wait_for
from tests.support.servers.ec2 import Ec2Server
from trainctl.errors import NodeError, NodeUnreachable, UserInterrupt
from trainctl.plugin_api.provider import ClusterSettings, Node, ResourceStatus
from trainctl.testing.machines import MachinesConformance, PlatformFaults
from trainctl.testing.provider import ProviderConformance
from trainctl_aws import AwsProvider
from trainctl_aws.account import AwsAccount, Instance
from trainctl_aws.launch import InstanceLauncher


@pytest.fixture(scope="module")
def provider(
    _ec2_server: Ec2Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AwsProvider]:
    """One provider for all tests, with the account of the server."""
    place = {"XDG_DATA_HOME": str(tmp_path_factory.mktemp("data"))}
    with pytest.MonkeyPatch.context() as monkeypatch, closing(AwsProvider()) as provider:
        for name, value in {**_ec2_server.environment, **place}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("trainctl_aws.offers._SECONDS", 60)
        yield provider


@pytest.fixture
def cluster(ec2: Ec2Server) -> ClusterSettings:
    return ClusterSettings("lab", {
        "region": "us-east-1", "instance_types": ["t3.micro"], "nodes": 2, "ssh_from": ["127.0.0.0/8"],
        "address": "private", "port": ec2.ssh_port,
    }, "lineage")  # fmt: skip


class Aws:
    """The fixtures of this module, for suites."""

    @pytest.fixture
    def provider(self, provider: AwsProvider) -> AwsProvider:
        return provider

    @pytest.fixture
    def cluster(self, cluster: ClusterSettings) -> ClusterSettings:
        return cluster


class TestAwsProvider(Aws, ProviderConformance):
    """The suite for providers."""


class TestAwsMachines(Aws, MachinesConformance):
    """The suite for machines that are created, with the faults of EC2."""

    @pytest.fixture
    def faults(self, ec2: Ec2Server) -> PlatformFaults:
        def terminate(node: Node) -> None:
            ec2.client().terminate_instances(InstanceIds=[node.details["instance"]])

        return PlatformFaults(
            terminate,
            lambda: ec2.lose_answer("RunInstances"),
            lambda: ec2.fail_next("DescribeImages", "RequestLimitExceeded"),
            lambda: ec2.lag_describe(2),
        )


def with_settings(cluster: ClusterSettings, **own: Any) -> ClusterSettings:
    return replace(cluster, settings={**cluster.settings, **own})


def own_groups(ec2: Ec2Server) -> list[str]:
    groups = ec2.client().describe_security_groups()["SecurityGroups"]
    return [group["GroupName"] for group in groups if group["GroupName"].startswith("trainctl")]


def volumes(ec2: Ec2Server) -> list[str]:
    return [volume["VolumeId"] for volume in ec2.client().describe_volumes()["Volumes"]]


def test_the_host_key_of_the_user_data_is_replaced_by_one_of_the_machine(
    ec2: Ec2Server, provider: AwsProvider, cluster: ClusterSettings
) -> None:
    """Also if the client is killed before or after the machine uses the new one."""
    node = provider.create(cluster, "lab-0", "key")
    [launch] = ec2.calls("RunInstances")
    number = next(key for key, value in launch.params.items() if value == "trainctl:host-key")
    first = launch.params[number.removesuffix("Key") + "Value"]
    assert node.details["host_key"] != first

    client, instance = ec2.client(), node.details["instance"]
    client.create_tags(Resources=[instance], Tags=[{"Key": "trainctl:host-key", "Value": first}])
    assert provider.create(cluster, "lab-0", "key") == node

    client.delete_tags(Resources=[instance], Tags=[{"Key": "trainctl:next-host-key"}])
    assert provider.create(cluster, "lab-0", "key") == node


def test_another_machine_at_the_same_address_has_its_own_host_key(
    ec2: Ec2Server, provider: AwsProvider, cluster: ClusterSettings
) -> None:
    """Keys are known before the first connection, by instance and not by address."""
    first = provider.create(cluster, "lab-0", "key")
    provider.delete(first)
    ec2.reuse_address(first.address)

    second = provider.create(cluster, "lab-0", "key/2")

    assert second.address == first.address
    assert second.details["host_key"] != first.details["host_key"]
    with pytest.raises(NodeUnreachable) as caught, closing(provider.transport(first)) as transport:
        transport.run(["true"])
    assert caught.value.code == "ssh-key-changed"


def test_an_idle_machine_ends_itself(
    ec2: Ec2Server, provider: AwsProvider, cluster: ClusterSettings
) -> None:
    """Its own command terminates it, which needs no permission in the account."""
    node = provider.create(cluster, "lab-0", "key")
    with closing(provider.transport(node)) as transport, suppress(NodeUnreachable):
        transport.run(node.shutdown, timeout=20)

    wait_for(lambda: provider.read(node) is ResourceStatus.MISSING, 60)
    assert list(provider.list_machines(cluster)) == []


def launch(provider: AwsProvider, cluster: ClusterSettings, data: Path) -> Instance:
    """Launch as a client that has no files yet."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("XDG_DATA_HOME", str(data))
        launcher = InstanceLauncher(AwsAccount("us-east-1"), cluster, "lab-0", "key")
        return launcher.launch(provider.offers(cluster))


def test_a_machine_without_a_login_ends_itself_after_the_boot_timeout(
    ec2: Ec2Server, provider: AwsProvider, cluster: ClusterSettings, tmp_path: Path
) -> None:
    """A killed client never logged in. No machine is listed then, and none costs money."""
    launch(provider, with_settings(cluster, boot_timeout="1s"), tmp_path)

    wait_for(lambda: not provider.list_machines(cluster), 60)


def test_an_image_without_cloud_init_watches_for_idle_time_after_a_reboot(
    provider: AwsProvider, cluster: ClusterSettings
) -> None:
    """Set up at the first login of a command, for systemd."""
    node = provider.create(cluster, "lab-0", "key")
    without = "rm /var/lib/cloud/scripts/per-boot/trainctl; mkdir -p /run/systemd/system"
    with closing(provider.transport(node)) as transport, closing(AwsProvider()) as another:
        transport.run(["sh", "-c", without])
        assert another.find(cluster, "key") == node
        unit = transport.run(["cat", "/etc/systemd/system/trainctl.service"]).stdout
    assert b"User=root" in unit


def test_two_machines_of_one_key_are_reduced_to_the_older(
    provider: AwsProvider, cluster: ClusterSettings, tmp_path: Path
) -> None:
    """A client that lost its files may launch by another offer than the first one."""
    first = provider.create(cluster, "lab-0", "key")
    other = with_settings(cluster, instance_types=["t3.small"])

    kept = launch(provider, other, tmp_path)

    assert kept["InstanceId"] == first.details["instance"]
    assert [machine.id for machine in provider.list_machines(cluster)] == [kept["InstanceId"]]


def test_a_creation_repeated_with_other_settings_finds_its_machine(
    provider: AwsProvider, cluster: ClusterSettings, tmp_path: Path
) -> None:
    """The token of the request is known, with other parameters."""
    first = provider.create(cluster, "lab-0", "key")
    other = with_settings(cluster, volume=40)

    kept = launch(provider, other, tmp_path)

    assert kept["InstanceId"] == first.details["instance"]


def test_a_refused_creation_does_not_bind_the_next_one(
    ec2: Ec2Server, provider: AwsProvider, cluster: ClusterSettings
) -> None:
    """An unanswered one does: it may have made a machine."""
    ec2.fail_next("RunInstances", "UnauthorizedOperation")
    with pytest.raises(NodeError):
        provider.create(cluster, "lab-0", "key")

    node = provider.create(with_settings(cluster, instance_types=["t3.small"]), "lab-0", "key")

    assert node.details["type"] == "t3.small"


def test_a_machine_that_ends_for_lack_of_capacity_is_followed_by_the_next_offer(
    ec2: Ec2Server, provider: AwsProvider, cluster: ClusterSettings
) -> None:
    """EC2 accepts some requests before it finds out."""
    ec2.end_next("Server.InsufficientInstanceCapacity")
    shown: list[str] = []
    zones = with_settings(cluster, zones=["us-east-1b", "us-east-1a"])

    node = provider.create(replace(zones, notify=shown.append), "lab-0", "key")

    assert node.details["zone"] == "us-east-1a"
    lack = "t3.micro in us-east-1b, on-demand: InsufficientInstanceCapacity"
    assert shown == [f"lab/lab-0: no capacity: {lack}"]


def test_waiting_for_capacity_ends_when_the_user_stops(
    ec2: Ec2Server, provider: AwsProvider, cluster: ClusterSettings
) -> None:
    """Each failure of the first round is shown; nothing is left when the command has ended."""
    ec2.fail_next("RunInstances", "InsufficientInstanceCapacity", count=float("inf"))
    shown: list[str] = []
    waiting = with_settings(cluster, capacity_timeout="1h", zones=["us-east-1b"])
    waiting = replace(waiting, notify=shown.append)
    threading.Timer(2, waiting.cancelled.set).start()

    with pytest.raises(UserInterrupt):
        provider.create(waiting, "lab-0", "key")

    assert shown == [
        "lab/lab-0: no capacity: t3.micro in us-east-1b, on-demand: InsufficientInstanceCapacity"
    ]
    provider.close()
    assert own_groups(ec2) == []


def test_a_node_is_not_missing_when_requests_are_denied(
    ec2: Ec2Server, provider: AwsProvider, cluster: ClusterSettings
) -> None:
    node = provider.create(cluster, "lab-0", "key")
    ec2.fail_next("DescribeInstances", "UnauthorizedOperation", count=2)

    assert provider.read(node) is ResourceStatus.FORBIDDEN
    with pytest.raises(NodeError, match="AWS denied describe_instances") as caught:
        provider.find(cluster, "key")
    assert caught.value.code == "cloud-credentials"


def test_offers_come_from_the_price_list_or_the_table(
    provider: AwsProvider, cluster: ClusterSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a connection, they have the reason."""
    offer = provider.offers(cluster)[0]
    assert (offer.zone, offer.price_per_hour, offer.price_source) == ("us-east-1a", 0.0104, "price list")  # fmt: skip
    assert offer.quota_left == 640 / 2

    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with closing(AwsProvider()) as unconnected:
        [offer] = unconnected.offers(cluster)
        assert unconnected.offers(cluster, online=False) == [replace(offer, note="")]

    assert (offer.price_per_hour, offer.price_source) == (0.0104, "built-in table")
    assert (offer.zone, offer.quota_left) == ("", None)
    assert offer.note.startswith("AWS is unreachable")


def test_spot_machines_share_groups_that_go_with_the_last(
    ec2: Ec2Server, provider: AwsProvider, cluster: ClusterSettings
) -> None:
    """So does a volume that outlived its machine. AWS still counts the terminated machine as their user for a while."""
    own = with_settings(
        cluster, availability_model="spot", placement_group=True, max_price_per_hour=0.5
    )
    assert provider.offers(own)[0].price_source == "spot history"
    nodes = [provider.create(own, f"lab-{number}", f"key/{number}") for number in range(2)]
    [launch, _] = ec2.calls("RunInstances")
    assert launch.params["InstanceMarketOptions.MarketType"] == "spot"
    assert launch.params["InstanceMarketOptions.SpotOptions.MaxPrice"] == "0.5"
    assert [launch.params["Placement.GroupName"]] == list(ec2.data.placement_groups)
    marks = {"trainctl:cluster": cluster.name, "trainctl:lineage": cluster.lineage}
    tags = [{"Key": key, "Value": value} for key, value in marks.items()]
    volume = ec2.client().create_volume(
        AvailabilityZone="us-east-1a",
        Size=8,
        TagSpecifications=[{"ResourceType": "volume", "Tags": tags}],
    )["VolumeId"]

    provider.delete(nodes[0])
    assert len(own_groups(ec2)) == len(ec2.data.placement_groups) == 1
    assert volume in volumes(ec2)
    ec2.fail_next("DeleteVolume", "VolumeInUse")
    ec2.fail_next("DeleteSecurityGroup", "DependencyViolation", count=2)
    ec2.fail_next("DeletePlacementGroup", "InvalidPlacementGroup.InUse")
    provider.delete(nodes[1])
    assert own_groups(ec2) == []
    assert volume not in volumes(ec2)
    assert not ec2.data.placement_groups


def test_a_capacity_block_with_efa(
    ec2: Ec2Server, provider: AwsProvider, cluster: ClusterSettings
) -> None:
    """One offer, in the block's zone, paid in advance; a network card for each EFA; the block has its own placement."""
    block = "cr-0123456789abcdef0"
    ec2.data.reservations[block] = "us-east-1b"
    own = with_settings(
        cluster, instance_types=["p4d.24xlarge"], capacity_block=block, efa=True, tags={"team": "x"}
    )

    [offer] = provider.offers(own)
    node = provider.create(own, "lab-0", "key")

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
    assert not any("AssociatePublicIpAddress" in name for name in params)
    assert "Placement.GroupName" not in params
    assert (node.gpus, node.details["zone"]) == (8, "us-east-1b")
    [instance] = ec2.client().describe_instances()["Reservations"][0]["Instances"]
    assert {"Key": "team", "Value": "x"} in instance["Tags"]
    [security] = {params[f"{card}SecurityGroupId.1"] for card in cards}
    [group] = ec2.client().describe_security_groups(GroupIds=[security])["SecurityGroups"]
    for rules in (group["IpPermissions"], group["IpPermissionsEgress"]):
        pairs = [pair["GroupId"] for rule in rules for pair in rule["UserIdGroupPairs"]]
        assert pairs == [security], "EFA needs all traffic among the machines"


def test_a_reservation_a_profile_and_a_named_placement_group(
    ec2: Ec2Server, provider: AwsProvider, cluster: ClusterSettings
) -> None:
    """EFA on one card allows a public address. A full reservation is an error that names it; the group stays."""
    ec2.client("iam").create_instance_profile(InstanceProfileName="trainer")
    ec2.data.placement_groups["ours"] = {}
    ec2.data.reservations["cr-0123456789abcdef0"] = "us-east-1c"
    own = with_settings(
        cluster, instance_types=["g5.48xlarge"], efa=True, address="public", placement_group="ours",
        capacity_reservation="cr-0123456789abcdef0", instance_profile="trainer",
    )  # fmt: skip
    ec2.fail_next("RunInstances", "ReservationCapacityExceeded")

    with pytest.raises(NodeError) as caught:
        provider.create(own, "lab-0", "key")
    node = provider.create(own, "lab-0", "key")

    assert caught.value.code == "machine-capacity"
    full = "g5.48xlarge in us-east-1c, on-demand: ReservationCapacityExceeded"
    assert full in caught.value.detail
    params = ec2.calls("RunInstances")[-1].params
    assert params["IamInstanceProfile.Name"] == "trainer"
    assert params["NetworkInterface.1.InterfaceType"] == "efa"
    assert params["NetworkInterface.1.AssociatePublicIpAddress"] == "true"
    assert params["Placement.GroupName"] == "ours"
    assert "InstanceMarketOptions.MarketType" not in params
    provider.delete(node)
    assert list(ec2.data.placement_groups) == ["ours"]


def test_connections_use_a_jump_host(
    ec2: Ec2Server,
    provider: AwsProvider,
    cluster: ClusterSettings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the user's own configuration for it. An unknown one is an error, and the machine is used by the next attempt."""
    user = SshUser(tmp_path / "user")
    user.become(monkeypatch)
    with sshd(tmp_path / "jump", user) as jump:
        own = with_settings(cluster, jump=f"{jump.address}:{jump.port}")
        unverified = "host key verification of the jump host"
        with pytest.raises(NodeUnreachable, match=unverified) as caught:
            provider.create(own, "lab-0", "key")
        assert caught.value.code == "ssh-unknown-key"
        user.known_hosts.write_text(jump.known)

        node = provider.create(own, "lab-0", "key")

        assert len(ec2.calls("RunInstances")) == 1
        with closing(provider.transport(node)) as transport:
            output = transport.run(["sh", "-c", "echo $SSH_CONNECTION"])
            assert jump.connections()
        assert output.stdout.decode().split()[2] == node.address
