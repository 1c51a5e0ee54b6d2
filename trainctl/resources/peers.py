"""Nodes as each other's caches: a server on each for as long as a delivery lasts, and what all are told of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from trainctl.errors import TrainctlError
from trainctl.remote.agent import NodeAgent
from trainctl.resources.node_server import NodeServer
from trainctl.spi.provider import Node

Asked = tuple[Node, NodeAgent, Mapping[str, Any]]
Peer = Mapping[str, Any]


class Peers:
    """``with Peers(…) as peers``: they serve until the block ends."""

    def __init__(
        self,
        nodes: Sequence[Asked],
        listings: Sequence[Mapping[str, Any]],
        register: Callable[[str], str],
    ) -> None:
        self._nodes = nodes
        self._listings = listings
        self._register = register
        self._servers: list[NodeServer] = []

    def __enter__(self) -> Peers:
        return self

    def told(self) -> dict[str, Peer]:
        """By node id what the ``peers`` of a request say. A node that can't serve is left out; one alone has no peers."""
        asked = {node.id: self._start(node, agent, where) for node, agent, where in self._nodes}
        answers = {node_id: _peer(node_id, server) for node_id, server in asked.items()}
        found = {node_id: peer for node_id, peer in answers.items() if peer is not None}
        return found if len(found) > 1 else {}

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for server in self._servers:
            server.end()
        for server in self._servers:
            server.close()

    def _start(self, node: Node, agent: NodeAgent, where: Mapping[str, Any]) -> NodeServer:
        request = {**where, "listings": list(self._listings)}
        server = NodeServer(agent, request, self._register)
        self._servers.append(server)
        return server


def _peer(node_id: str, server: NodeServer) -> Peer | None:
    """What the others are told of it. Its deliveries will say what is wrong with a node, if anything is."""
    try:
        return {"node": node_id, **server.where(), "holds": server.told()["holds"]}
    except TrainctlError:
        return None
