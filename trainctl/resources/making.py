"""Making the nodes of a cluster, each for itself: one that can't be reached is left for a later apply, and the others are made."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from trainctl.apply.step import Step, StepFailed
from trainctl.base.protocol.runs import STATUS, StatusRequest
from trainctl.errors import NodeError, NodeUnreachable
from trainctl.ledger.state import Recorded
from trainctl.resources.agents import Agents, away_nodes, nodes_of, same_machine
from trainctl.spi.provider import Cluster, Node, Presence, Provider

AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Made:
    """``nodes`` are there. ``away`` could not be reached: what has a key may have been made by it, what has none was not."""

    nodes: tuple[Node, ...]
    away: tuple[Node, ...]

    def to_outputs(self) -> dict[str, Any]:
        """The form kept in the state."""
        away = {"away": [node.to_json() for node in self.away]} if self.away else {}
        return {"nodes": [node.to_json() for node in self.nodes], **away}


class Maker:
    """Makes the nodes that one step asks for. A node that is there keeps the key it was made with, however often this is repeated."""

    def __init__(
        self,
        step: Step,
        cluster: Cluster,
        provider: Provider,
        agents: Agents,
        known: Recorded | None,
    ) -> None:
        self._step = step
        self._cluster = cluster
        self._provider = provider
        self._agents = agents
        self._before = {node.name: node for node in nodes_of(known)} if known else {}
        self._tried = {node.name: node for node in away_nodes(known)} if known else {}

    def make(self) -> Made:
        """All of them that can be reached. StepFailed if none can; any other error of a node fails the step."""
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="make") as pool:
            found = list(pool.map(self._node, self._provider.plan(self._cluster)))
        away = [one for one in found if isinstance(one, _Away)]
        made = Made(
            tuple(one for one in found if isinstance(one, Node)), tuple(one.node for one in away)
        )
        if not made.nodes and away:
            raise StepFailed(away[0].why, made.to_outputs())
        for one in away:
            self._step.progress(f"without {one.node.id}, which can't be reached", 0, 0)
        return made

    def _node(self, planned: Node) -> Node | _Away:
        before = self._before.get(planned.name)
        tried = self._tried_key(planned)
        try:
            located = self._provider.locate(self._cluster, planned)
        except NodeUnreachable as error:
            if before is not None and same_machine(before, planned):
                return before
            return _Away(replace(planned, key=tried), error)
        key = self._key(located, before) if before else tried or self._own_key(planned.name)
        try:
            node = self._provider.create(self._cluster, planned.name, key)
            self._agents.of(self._provider.name, node).call(
                STATUS, StatusRequest(root=node.root, keys=[])
            )
        except NodeUnreachable as error:
            return _Away(replace(planned, key=key), error)
        return node

    def _key(self, located: Node, before: Node) -> str:
        """The key that a node was made with, if it is there: under another it would be made once more beside itself."""
        there = self._provider.read(replace(located, key=before.key))
        return before.key if there is Presence.PRESENT else self._own_key(located.name)

    def _tried_key(self, planned: Node) -> str:
        """The key by which an earlier attempt may have made it; empty if none can have."""
        tried = self._tried.get(planned.name)
        if tried is not None and tried.key and same_machine(tried, planned):
            return tried.key
        return self._own_key(planned.name) if self._step.resumed else ""

    def _own_key(self, name: str) -> str:
        return f"{self._step.key}/{name}"


@dataclass(frozen=True, slots=True)
class _Away:
    node: Node
    why: NodeUnreachable


def reachable(provider: Provider, cluster: Cluster, nodes: Sequence[Node]) -> tuple[str, ...]:
    """The names of those nodes, none of them made, that can be reached now."""

    def look(node: Node) -> bool:
        try:
            provider.locate(cluster, node)
        except NodeError:
            return False
        return True

    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="read") as pool:
        return tuple(
            node.name for node, there in zip(nodes, pool.map(look, nodes), strict=True) if there
        )
