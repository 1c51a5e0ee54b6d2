"""Conformance suite of providers: provide one, and a cluster of at least two nodes."""

from __future__ import annotations

from collections.abc import Iterator

import jsonschema
import pytest

from trainctl.base.protocol.runs import STATUS, STOP, StatusRequest, StopRequest
from trainctl.plugin_api.provider import ClusterSettings, Node, Provider, ResourceStatus
from trainctl.remote.agent import NodeAgent

KEY = "lineage/cluster.lab/1"


class ProviderConformance:
    """Fixtures to override: ``provider`` and ``cluster``, whose nodes the suite creates and deletes."""

    @pytest.fixture
    def provider(self) -> Provider:
        """The provider."""
        raise NotImplementedError

    @pytest.fixture
    def cluster(self) -> ClusterSettings:
        """A cluster of at least two nodes, none of which exists."""
        raise NotImplementedError

    @pytest.fixture
    def node(self, provider: Provider, cluster: ClusterSettings) -> Iterator[Node]:
        """One node of the cluster."""
        node = provider.create(cluster, provider.plan(cluster)[0].name, KEY)
        yield node
        provider.delete(node)

    def test_the_schema_is_one_and_allows_the_settings(
        self, provider: Provider, cluster: ClusterSettings
    ) -> None:
        """It is valid JSON Schema, closed against unknown settings, and accepts what the suite uses."""
        schema = provider.schema()
        jsonschema.Draft202012Validator.check_schema(schema)

        jsonschema.validate(dict(cluster.settings), schema)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**cluster.settings, "no_such_setting": 1}, schema)

    def test_planning_names_each_node_once_and_always_the_same(
        self, provider: Provider, cluster: ClusterSettings
    ) -> None:
        """Names are distinct, stable, and need no node; planned nodes have no key yet."""
        planned = provider.plan(cluster)
        names = [node.name for node in planned]

        assert len(set(names)) == len(names) >= 2
        assert list(provider.plan(cluster)) == list(planned)
        assert {node.key for node in planned} == {""}
        assert list(provider.list(cluster)) == []

    def test_a_planned_node_is_located_without_being_made(
        self, provider: Provider, cluster: ClusterSettings
    ) -> None:
        """What only its machine can tell is found out, and nobody finds a node there afterwards."""
        planned = provider.plan(cluster)[0]

        found = provider.locate(cluster, planned)

        assert (found.id, found.address, found.key) == (planned.id, planned.address, "")
        assert all(path.startswith("/") for path in (found.root, found.data, found.python))
        assert list(provider.check(cluster)) == []
        assert list(provider.list(cluster)) == []

    def test_a_provider_that_was_closed_opens_again(
        self, provider: Provider, cluster: ClusterSettings, node: Node
    ) -> None:
        """What is held between calls may be given back at any time, and twice."""
        provider.close()
        provider.close()

        assert provider.read(node) is ResourceStatus.PRESENT

    def test_what_was_never_made_is_not_found(
        self, provider: Provider, cluster: ClusterSettings
    ) -> None:
        """Neither by key nor in the list."""
        assert provider.find(cluster, KEY) is None
        assert list(provider.list(cluster)) == []

    def test_create_twice_with_one_key_gives_one_node(
        self, provider: Provider, cluster: ClusterSettings, node: Node
    ) -> None:
        """The second call hands back the first one's node."""
        again = provider.create(cluster, node.name, KEY)

        assert again == node
        assert [one.name for one in provider.list(cluster)] == [node.name]

    def test_a_node_is_found_by_its_key(
        self, provider: Provider, cluster: ClusterSettings, node: Node
    ) -> None:
        """After a crash between making and recording, the key finds it; another key does not."""
        assert provider.find(cluster, KEY) == node
        assert provider.find(cluster, KEY + "0") is None

    def test_a_node_survives_being_recorded(self, node: Node) -> None:
        """The form kept in the state gives the same node, with absolute paths in it."""
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
        """The second node is untouched by the first one's end."""
        other = provider.create(cluster, provider.plan(cluster)[1].name, KEY + "/other")

        provider.delete(node)

        assert provider.read(other) is ResourceStatus.PRESENT
        assert [one.name for one in provider.list(cluster)] == [other.name]
        provider.delete(other)

    def test_the_node_program_runs_there(self, provider: Provider, node: Node) -> None:
        """The transport and the node's own Python carry the node program, which may write its root."""
        transport = provider.transport(node)
        try:
            agent = NodeAgent(node, transport)
            answer = agent.call(STATUS, StatusRequest(root=node.root, keys=["never-came"]))
        finally:
            transport.close()

        assert answer == {"runs": {"never-came": None}}

    def test_a_run_that_never_came_keeps_no_node(self, provider: Provider, node: Node) -> None:
        """What forbids its start goes with the node: nothing that could start it is left."""
        transport = provider.transport(node)
        try:
            agent = NodeAgent(node, transport)
            agent.call(STOP, StopRequest(root=node.root, key="never-came", grace_seconds=0))
        finally:
            transport.close()

        provider.delete(node)

        assert provider.read(node) is ResourceStatus.MISSING
