"""Nodes as each other's caches: a server on each for as long as a delivery lasts, and what all are told of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from trainctl.base.listing import Listing
from trainctl.errors import NodeError, TrainctlError
from trainctl.model.delivery import Serving, cut_off
from trainctl.remote.agent import NodeAgent
from trainctl.resources.node_server import NodeServer
from trainctl.resources.sent_listings import following, with_listings
from trainctl.spi.provider import Node

Asked = tuple[Node, NodeAgent, Mapping[str, Any]]
Peer = Mapping[str, Any]


class Peers:
    """``with Peers(…) as peers``: they serve until the block ends."""

    def __init__(
        self,
        nodes: Sequence[Asked],
        listings: Sequence[Listing],
        register: Callable[[str], str],
    ) -> None:
        self._nodes = nodes
        self._listings = listings
        self._register = register
        self._servers: dict[str, NodeServer] = {}
        self.left_out: list[TrainctlError] = []

    def __enter__(self) -> Peers:
        return self

    def told(self) -> dict[str, Peer]:
        """By node id what the ``peers`` of a request say. A node that can't serve any other is ``left_out``; one alone has no peers."""
        asked = {node.id: self._start(node, agent, where) for node, agent, where in self._nodes}
        found: dict[str, Peer] = {}
        serving: dict[str, Serving] = {}
        for node_id, server in asked.items():
            try:
                found[node_id] = _peer(node_id, server)
                serving[node_id] = server.serving()
            except TrainctlError as error:
                self.left_out.append(error)
        for node_id, why in cut_off(serving).items():
            self.left_out.append(NodeError(f"node {node_id}: {why}"))
            del found[node_id]
        return found if len(found) > 1 else {}

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for server in self._servers.values():
            server.end()
        for server in self._servers.values():
            server.close()

    def leave(self, node_id: str) -> None:
        """End its server, as its delivery failed: the others would wait for what it doesn't get any more."""
        if node_id in self._servers:
            self._servers[node_id].end()

    def _start(self, node: Node, agent: NodeAgent, where: Mapping[str, Any]) -> NodeServer:
        request = with_listings({**where, "ports": node.ports}, self._listings)
        server = NodeServer(agent, request, self._register, following(*self._listings))
        self._servers[node.id] = server
        return server


def _peer(node_id: str, server: NodeServer) -> Peer:
    """What the others are told of it."""
    return {"node": node_id, **server.where(), "holds": server.told()["holds"]}
