"""The aws provider against the suite, over EC2 on this machine with a real sshd per instance."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.node_program.nodes import wait_for
from tests.support.servers.ec2 import Ec2Server
from tests.support.tiers import one_day_in
from trainctl.errors import NodeError, NodeUnreachable, UserInterrupt
from trainctl.plugin_api.provider import ClusterSettings, Node, ResourceStatus
from trainctl.testing.machines import MachinesConformance, PlatformFaults
from trainctl.testing.provider import ProviderConformance
from trainctl_aws import AwsProvider
from trainctl_aws.account import AwsAccount
from trainctl_aws.launch import InstanceLauncher
from trainctl_aws.settings import read_settings

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def provider(
    _ec2_server: Ec2Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AwsProvider]:
    """One provider for all tests, with the account of the server."""
    place = {"XDG_DATA_HOME": str(tmp_path_factory.mktemp("data"))}
    with pytest.MonkeyPatch.context() as monkeypatch, closing(AwsProvider()) as provider:
        for name, value in {**_ec2_server.environment, **place}.items():
            monkeypatch.setenv(name, value)
        yield provider


@pytest.fixture
def cluster(ec2: Ec2Server) -> ClusterSettings:
    """Two small machines."""
    return ClusterSettings(
        "lab",
        {
            "region": "us-east-1",
            "instance_types": ["t3.micro"],
            "nodes": 2,
            "ssh_from": ["127.0.0.0/8"],
            "address": "private",
            "port": ec2.ssh_port,
        },
        "lineage",
    )


class TestAwsProvider(ProviderConformance):
    """The suite for providers."""

    @pytest.fixture
    def provider(self, provider: AwsProvider) -> AwsProvider:
        """The provider."""
        return provider

    @pytest.fixture
    def cluster(self, cluster: ClusterSettings) -> ClusterSettings:
        """Two small machines."""
        return cluster


class TestAwsMachines(MachinesConformance):
    """The suite for machines that are created, with the faults of EC2."""

    @pytest.fixture
    def provider(self, provider: AwsProvider) -> AwsProvider:
        """The provider."""
        return provider

    @pytest.fixture
    def cluster(self, cluster: ClusterSettings) -> ClusterSettings:
        """Two small machines."""
        return cluster

    @pytest.fixture
    def faults(self, ec2: Ec2Server) -> PlatformFaults:
        """Faults of the server."""

        def terminate(node: Node) -> None:
            ec2.client().terminate_instances(InstanceIds=[node.details["instance"]])

        return PlatformFaults(
            terminate,
            lambda: ec2.lose_answer("RunInstances"),
            lambda: ec2.fail_next("DescribeImages", "RequestLimitExceeded"),
            lambda: ec2.lag_describe(2),
        )


def settings_of(cluster: ClusterSettings, **own: Any) -> ClusterSettings:
    """The cluster with other settings."""
    return replace(cluster, settings={**cluster.settings, **own})


def test_machines_are_listed_without_a_state_and_ended(
    ec2: Ec2Server, provider: AwsProvider, cluster: ClusterSettings
) -> None:
    """Also those of other lineages; the last one of a cluster takes its security group along."""
    node = provider.create(cluster, "lab-0", "key")

    [machine] = provider.machines(replace(cluster, name="other", lineage=""))

    assert (machine.cluster, machine.node, machine.lineage) == ("lab", "lab-0", "lineage")
    assert (machine.key, machine.type, machine.state) == ("key", "t3.micro", "running")
    assert machine.price_per_hour == 0.0104
    assert time.time() - 600 < (machine.launched_at or 0) < time.time() + 60
    provider.end(machine)
    provider.end(machine)
    assert list(provider.machines(cluster)) == []
    assert provider.read(node) is ResourceStatus.MISSING
    assert own_groups(ec2) == []


def own_groups(ec2: Ec2Server) -> list[str]:
    """Names of trainctl's security groups."""
    groups = ec2.client().describe_security_groups()["SecurityGroups"]
    return [group["GroupName"] for group in groups if group["GroupName"].startswith("trainctl")]


def test_the_host_key_of_the_user_data_is_replaced_by_one_of_the_machine(
    ec2: Ec2Server, provider: AwsProvider, cluster: ClusterSettings
) -> None:
    """Also if the client is killed before or after the machine uses the new one."""
    node = provider.create(cluster, "lab-0", "key")
    [launch] = ec2.calls("RunInstances")
    first = tag_of(launch.params, "trainctl:host-key")
    assert node.details["host_key"] != first

    client, instance = ec2.client(), node.details["instance"]
    client.create_tags(Resources=[instance], Tags=[{"Key": "trainctl:host-key", "Value": first}])
    assert provider.create(cluster, "lab-0", "key") == node

    client.delete_tags(Resources=[instance], Tags=[{"Key": "trainctl:next-host-key"}])
    assert provider.create(cluster, "lab-0", "key") == node


def tag_of(params: Mapping[str, str], name: str) -> str:
    """A tag of a launch."""
    number = next(key for key, value in params.items() if value == name)
    return params[number.removesuffix("Key") + "Value"]


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


@one_day_in(3)
def test_spot_machines_of_a_placement_group(
    ec2: Ec2Server, provider: AwsProvider, cluster: ClusterSettings
) -> None:
    """The group and the security group go with the last machine; rules follow the manifest."""
    own = settings_of(
        cluster, availability_model="spot", placement_group=True, max_price_per_hour=0.5
    )
    nodes = [provider.create(own, f"lab-{number}", f"key/{number}") for number in range(2)]
    [launch, _] = ec2.calls("RunInstances")
    assert launch.params["InstanceMarketOptions.MarketType"] == "spot"
    assert launch.params["InstanceMarketOptions.SpotOptions.MaxPrice"] == "0.5"
    assert [launch.params["Placement.GroupName"]] == list(ec2.data.placement_groups)

    provider.delete(nodes[0])
    assert len(own_groups(ec2)) == len(ec2.data.placement_groups) == 1
    provider.delete(nodes[1])
    assert own_groups(ec2) == []
    assert not ec2.data.placement_groups


def test_an_idle_machine_ends_itself(
    ec2: Ec2Server, provider: AwsProvider, cluster: ClusterSettings
) -> None:
    """Its own command terminates it, which needs no permission in the account."""
    node = provider.create(cluster, "lab-0", "key")
    with closing(provider.transport(node)) as transport, suppress(NodeUnreachable):
        transport.run(node.shutdown, timeout=20)

    wait_for(lambda: provider.read(node) is ResourceStatus.MISSING)
    again = provider.create(cluster, "lab-0", "key")
    assert again.details["instance"] != node.details["instance"]


def test_a_machine_without_a_login_ends_itself_after_the_boot_timeout(
    ec2: Ec2Server, provider: AwsProvider, cluster: ClusterSettings, tmp_path: Path
) -> None:
    """A killed client never logged in."""
    settings = read_settings(settings_of(cluster, boot_timeout="1s"))
    launcher = InstanceLauncher(AwsAccount("us-east-1"), cluster, settings, {"XDG_DATA_HOME": str(tmp_path)}, "lab-0", "key")  # fmt: skip
    launcher.launch(provider.offers(cluster))

    wait_for(lambda: not provider.machines(cluster), 30)
    assert list(provider.list(cluster)) == []


def test_two_machines_of_one_key_are_reduced_to_the_older(
    ec2: Ec2Server, provider: AwsProvider, cluster: ClusterSettings, tmp_path: Path
) -> None:
    """A client that lost its files may launch by another offer than the first one."""
    first = provider.create(cluster, "lab-0", "key")
    settings = settings_of(cluster, instance_types=["t3.small"])
    launcher = InstanceLauncher(AwsAccount("us-east-1"), settings, read_settings(settings), {"XDG_DATA_HOME": str(tmp_path / "lost")}, "lab-0", "key")  # fmt: skip

    kept = launcher.launch(provider.offers(settings))

    assert kept["InstanceId"] == first.details["instance"]
    assert [node.details["instance"] for node in provider.list(cluster)] == [kept["InstanceId"]]


def test_another_computer_without_the_login_key_says_so(
    provider: AwsProvider, cluster: ClusterSettings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    node = provider.create(cluster, "lab-0", "key")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "elsewhere"))
    with pytest.raises(NodeUnreachable, match="no login key for lab/lab-0"):
        provider.transport(node)


def test_waiting_for_capacity_ends_when_the_user_stops(
    ec2: Ec2Server, provider: AwsProvider, cluster: ClusterSettings
) -> None:
    """Each failure of the first round is shown; nothing is left."""
    ec2.fail_next("RunInstances", "InsufficientInstanceCapacity", count=float("inf"))
    shown: list[str] = []
    waiting = replace(
        settings_of(cluster, capacity_timeout="1h", zones=["us-east-1b"]), notify=shown.append
    )
    threading.Timer(2, waiting.cancelled.set).start()

    with pytest.raises(UserInterrupt):
        provider.create(waiting, "lab-0", "key")

    assert shown == [
        "lab/lab-0: no capacity: t3.micro in us-east-1b, on-demand: InsufficientInstanceCapacity"
    ]
    assert own_groups(ec2) == []


def test_denied_requests_name_the_credentials(
    ec2: Ec2Server, provider: AwsProvider, cluster: ClusterSettings
) -> None:
    """A node is not taken for gone then."""
    node = provider.create(cluster, "lab-0", "key")
    ec2.fail_next("DescribeInstances", "UnauthorizedOperation", count=2)

    assert provider.read(node) is ResourceStatus.FORBIDDEN
    with pytest.raises(NodeError, match="AWS denied describe_instances") as caught:
        provider.find(cluster, "key")
    assert caught.value.code == "cloud-credentials"


def test_offers_without_a_connection_come_from_the_table(
    cluster: ClusterSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are there within seconds, and say why."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with closing(AwsProvider()) as unconnected:
        [offer] = unconnected.offers(cluster)
        assert unconnected.offers(cluster, online=False) == [replace(offer, note="")]

    assert (offer.price_per_hour, offer.price_source) == (0.0104, "built-in table")
    assert (offer.zone, offer.quota_left) == ("", None)
    assert offer.note.startswith("AWS is unreachable")
