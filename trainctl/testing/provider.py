"""Conformance suite of providers, with a cluster of at least two nodes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import pytest

from trainctl.base.protocol.runs import STATUS, STOP, StatusRequest, StopRequest
from trainctl.plugin_api.machines import ListsMachines
from trainctl.plugin_api.provider import ClusterSettings, Node, Provider, ResourceStatus
from trainctl.remote.agent import NodeAgent

KEY = "lineage/cluster.lab/1"


def listed_keys(provider: Provider, cluster: ClusterSettings) -> list[str]:
    """Return the keys of the cluster's machines; none if the provider lists no machines."""
    machines = provider.list_machines(cluster) if isinstance(provider, ListsMachines) else ()
    return [machine.node.key for machine in machines if machine.node.cluster == cluster.name]


class ProviderFixtures:
    """Fixtures that every suite of providers needs."""

    @pytest.fixture
    def provider(self) -> Provider:
        """The provider."""
        raise NotImplementedError

    @pytest.fixture
    def cluster(self) -> ClusterSettings:
        """A cluster, none of whose nodes exists."""
        raise NotImplementedError


class ProviderConformance(ProviderFixtures):
    """Fixtures to override: ``provider`` and ``cluster``, of at least two nodes."""

    @pytest.fixture
    def node(self, provider: Provider, cluster: ClusterSettings) -> Iterator[Node]:
        """One node of the cluster."""
        node = provider.create(cluster, provider.plan(cluster)[0].name, KEY)
        yield node
        provider.delete(node)

    def test_the_schema_is_one_and_allows_the_settings(
        self, provider: Provider, cluster: ClusterSettings
    ) -> None:
        """It is valid JSON Schema and rejects unknown settings."""
        schema = provider.schema()
        jsonschema.Draft202012Validator.check_schema(schema)

        jsonschema.validate(dict(cluster.settings), schema)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**cluster.settings, "no_such_setting": 1}, schema)

    def test_planning_names_each_node_once_and_always_the_same(
        self, provider: Provider, cluster: ClusterSettings
    ) -> None:
        """Names are distinct and stable; planned nodes have no key."""
        planned = provider.plan(cluster)
        names = [node.name for node in planned]

        assert len(set(names)) == len(names) >= 2
        assert list(provider.plan(cluster)) == list(planned)
        assert {node.key for node in planned} == {""}

    def test_a_planned_node_is_located_without_being_made(
        self, provider: Provider, cluster: ClusterSettings
    ) -> None:
        """Paths on its machine are found; a machine yet to be created has no address."""
        planned = provider.plan(cluster)[0]
        if provider.capabilities.creates_machines:
            assert planned.address == ""
            return

        located = provider.locate(cluster, planned)

        assert (located.id, located.address, located.key) == (planned.id, planned.address, "")
        assert all(path.startswith("/") for path in (located.root, located.data, located.python))
        assert list(provider.check(cluster)) == []
        assert provider.read(located) is not ResourceStatus.PRESENT

    def test_a_provider_that_was_closed_opens_again(
        self, provider: Provider, cluster: ClusterSettings, node: Node
    ) -> None:
        """Resources may be closed at any time, also twice."""
        provider.close()
        provider.close()

        assert provider.read(node) is ResourceStatus.PRESENT

    def test_what_was_never_made_is_not_found(
        self, provider: Provider, cluster: ClusterSettings
    ) -> None:
        """Neither by key nor among the machines."""
        assert provider.find(cluster, KEY) is None
        assert listed_keys(provider, cluster) == []

    def test_create_twice_with_one_key_gives_one_node(
        self, provider: Provider, cluster: ClusterSettings, node: Node
    ) -> None:
        """The second call returns the first one's node."""
        repeated = provider.create(cluster, node.name, KEY)

        assert repeated == node
        assert len(listed_keys(provider, cluster)) <= 1

    def test_a_node_is_found_by_its_key(
        self, provider: Provider, cluster: ClusterSettings, node: Node
    ) -> None:
        """After a crash while creating, the key finds the node."""
        assert provider.find(cluster, KEY) == node
        assert provider.find(cluster, KEY + "0") is None

    def test_a_creation_that_was_killed_or_repeated_at_once_leaves_one_node(
        self, provider: Provider, cluster: ClusterSettings
    ) -> None:
        """Its caller knows the key only; further calls may come at the same time."""
        if not provider.capabilities.creates_machines:
            pytest.skip("the provider creates no machines")
        name = provider.plan(cluster)[0].name
        with ThreadPoolExecutor(4) as pool:
            created = list(pool.map(lambda _: provider.create(cluster, name, KEY), range(4)))

        found = provider.find(cluster, KEY)

        assert found is not None
        assert created == [found] * 4
        assert len(listed_keys(provider, cluster)) <= 1
        provider.delete(found)
        assert listed_keys(provider, cluster) == []

    def test_a_created_machine_is_another_for_another_key(
        self, provider: Provider, cluster: ClusterSettings, node: Node
    ) -> None:
        """A replacement is created under a new key, and outlives the old machine."""
        if not provider.capabilities.creates_machines:
            pytest.skip("the provider creates no machines: keys share them")
        other = provider.create(cluster, node.name, KEY + "/2")

        provider.delete(node)

        assert provider.read(other) is ResourceStatus.PRESENT
        assert provider.find(cluster, KEY) is None
        provider.delete(other)

    def test_a_node_survives_being_recorded(self, node: Node) -> None:
        """Serialization preserves the node; its paths are absolute."""
        assert Node.from_json(node.to_json()) == node
        assert node.root.startswith("/")
        assert node.data.startswith("/")

    def test_a_made_node_is_present_and_a_deleted_one_gone(
        self, provider: Provider, cluster: ClusterSettings, node: Node
    ) -> None:
        """Deleting is final, and safe to repeat."""
        before = provider.read(node)

        provider.delete(node)
        provider.delete(node)

        assert (before, provider.read(node)) == (ResourceStatus.PRESENT, ResourceStatus.MISSING)
        assert provider.find(cluster, KEY) is None

    def test_deleting_one_leaves_the_others(
        self, provider: Provider, cluster: ClusterSettings, node: Node
    ) -> None:
        """The second node is not affected."""
        other = provider.create(cluster, provider.plan(cluster)[1].name, KEY + "/other")

        provider.delete(node)

        assert provider.read(other) is ResourceStatus.PRESENT
        assert provider.find(cluster, other.key) == other
        provider.delete(other)

    def test_the_node_program_runs_there(self, provider: Provider, node: Node) -> None:
        """The transport and the node's Python run the node program."""
        transport = provider.transport(node)
        try:
            agent = NodeAgent(node, transport)
            response = agent.call(STATUS, StatusRequest(root=node.root, keys=["never-came"]))
        finally:
            transport.close()

        assert response == {"runs": {"never-came": None}}

    def test_a_run_that_never_came_keeps_no_node(self, provider: Provider, node: Node) -> None:
        """The tombstone of a run that never started doesn't keep the node."""
        transport = provider.transport(node)
        try:
            agent = NodeAgent(node, transport)
            agent.call(STOP, StopRequest(root=node.root, key="never-came", grace_seconds=0))
        finally:
            transport.close()

        provider.delete(node)

        assert provider.read(node) is ResourceStatus.MISSING
