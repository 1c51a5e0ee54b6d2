"""Clusters: their nodes are made and removed through the provider, and looked at before anything relies on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from trainctl.apply.step import Lookup, Step
from trainctl.errors import NodeError
from trainctl.jobs.environment import team_cache
from trainctl.ledger.state import Intent, Recorded
from trainctl.model.action import Action
from trainctl.plan.values import Observation
from trainctl.resources.agents import Agents, Providers, nodes_of
from trainctl.resources.node_cache import at, cache_settings, shared_settings
from trainctl.spi.provider import Cluster, Node, Presence

_AT_ONCE = 16
_WORST = (Presence.PRESENT, Presence.UNREADABLE, Presence.UNREACHABLE, Presence.GONE)


class ClusterHandler:
    """Gives a cluster the nodes that its section asks for."""

    def __init__(self, providers: Providers, agents: Agents, lineage: str) -> None:
        self._providers = providers
        self._agents = agents
        self._lineage = lineage

    def carry_out(self, step: Step) -> Mapping[str, Any]:
        """Make the nodes that are missing, remove those that are not asked for any more; a replacement removes all first."""
        name = str(step.attributes["provider"])
        provider = self._providers(name)
        cluster = section(step.address.name, step.attributes)
        if step.action is Action.REPLACE:
            self.delete(step)
        keys = self._keys(step, name, cluster)

        def make(planned: Node) -> Node:
            key = keys.get(planned.name, f"{step.key}/{planned.name}")
            node = provider.create(cluster, planned.name, key)
            request = {**at(node, step.attributes), "data": node.data, "mounts": []}
            self._agents.of(name, node).call("facts", request)
            return node

        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="make") as pool:
            nodes = list(pool.map(make, provider.plan(cluster)))
        made = {node.key for node in nodes}
        if step.recorded is not None and step.action is not Action.REPLACE:
            for node in nodes_of(step.recorded):
                if (
                    node.key not in made
                ):  # not asked for any more, or its name means another machine now
                    self._remove(step.recorded.provider, node, step.recorded.attributes)
            self._leave_old_cache(step, step.recorded, nodes)
        return {"nodes": [node.to_json() for node in nodes]}

    def delete(self, step: Step) -> None:
        """Leave the nodes as they were found: nothing of this state stays, and nobody else's things go."""
        if step.recorded is not None:
            for node in nodes_of(step.recorded):
                self._remove(step.recorded.provider, node, step.recorded.attributes)

    def abandon(self, intent: Intent, lookup: Lookup) -> None:
        """Remove the nodes that an interrupted attempt made and nobody recorded."""
        attributes = intent.inputs.get("attributes")
        if not attributes:
            return
        provider = self._providers(intent.provider)
        cluster = section(intent.address.name, attributes)
        recorded = lookup(intent.address)
        kept = {node.key for node in nodes_of(recorded)} if recorded else set()
        for planned in provider.plan(cluster):
            node = provider.find(cluster, f"{intent.key}/{planned.name}")
            if node is not None and node.key not in kept:
                self._remove(intent.provider, node, attributes)

    def read(self, recorded: Recorded, lookup: Lookup) -> Observation:
        """The worst of what its nodes say."""
        provider = self._providers(recorded.provider)
        nodes = nodes_of(recorded)
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="read") as pool:
            read = pool.map(provider.read, nodes)
            found = {node.id: one for node, one in zip(nodes, read, strict=True)}
        worst = max(found.values(), key=_WORST.index, default=Presence.PRESENT)
        return Observation(
            worst,
            detail=", ".join(
                sorted(node for node, one in found.items() if one is not Presence.PRESENT)
            ),
        )

    def _keys(self, step: Step, provider_name: str, cluster: Cluster) -> dict[str, str]:
        """Of each node that stays, the key it was made with: under another it would be made once more beside itself."""
        recorded = step.recorded
        if recorded is None or recorded.provider != provider_name:
            return {}
        find = self._providers(provider_name).find
        return {node.name: node.key for node in nodes_of(recorded) if find(cluster, node.key)}

    def _leave_old_cache(self, step: Step, recorded: Recorded, nodes: Sequence[Node]) -> None:
        """Let go of the caches that the nodes had elsewhere; what live runs need of them stays until they are forgotten."""
        before, after = (_cache_directories(one.attributes) for one in (recorded, step))
        if before == after:
            return
        for node in nodes:
            request = {**at(node, recorded.attributes), "lineage": self._lineage}
            self._agents.of(recorded.provider, node).call("forget_cache", request)

    def _remove(self, provider_name: str, node: Node, attributes: Mapping[str, Any]) -> None:
        provider = self._providers(provider_name)
        presence = provider.read(node)
        if presence is Presence.GONE:
            provider.delete(node)  # an earlier attempt may have died before it was done
            return
        if presence is not Presence.PRESENT:
            raise NodeError(
                f"node {node.id} is {presence}",
                "Nothing was removed. Try again when it can be reached.",
            )
        agent = self._agents.of(provider_name, node)
        agent.call(
            "remove_cache",
            {"root": node.root, "directory": team_cache(node), "lineage": self._lineage},
        )
        agent.call("forget", {**at(node, attributes), "lineage": self._lineage})
        provider.delete(node)  # takes only what nobody else has a part in


def _cache_directories(attributes: Mapping[str, Any]) -> tuple[Any, Any]:
    """Where weights are cached, on each node and by all together."""
    shared = shared_settings(attributes)
    return cache_settings(attributes)["dir"], shared["dir"] if shared else None


def section(name: str, attributes: Mapping[str, Any]) -> Cluster:
    """The provider's view of a cluster's attributes: what is not ours."""
    ours = {"provider", "cache", "price_per_hour", "forgotten"}
    return Cluster(name, {key: value for key, value in attributes.items() if key not in ours})
