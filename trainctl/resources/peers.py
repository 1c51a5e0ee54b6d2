"""Nodes as each other's caches: a server on each for as long as a delivery lasts, and what all are told of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any

from trainctl.errors import TrainctlError
from trainctl.remote.agent import NodeAgent
from trainctl.resources.origins import new_token
from trainctl.spi.provider import Node

_BEAT_SECONDS = 0.2
_START_SECONDS = 60.0
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
        self._done = threading.Event()
        self._pool = ThreadPoolExecutor(len(nodes), thread_name_prefix="serve")

    def __enter__(self) -> Peers:
        return self

    def told(self) -> dict[str, Peer]:
        """By node id what the ``peers`` of a request say. A node that can't serve is left out; one alone has no peers."""
        asked = {node.id: self._start(node, agent, where) for node, agent, where in self._nodes}
        answers = {node_id: answer.result(_START_SECONDS) for node_id, answer in asked.items()}
        found = {node_id: peer for node_id, peer in answers.items() if peer is not None}
        return found if len(found) > 1 else {}

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        self._pool.shutdown()

    def _start(self, node: Node, agent: NodeAgent, where: Mapping[str, Any]) -> Future[Peer | None]:
        """Have a node serve, in a thread; what it says about itself comes with its first event."""
        token = self._register(new_token())
        told: Future[Peer | None] = Future()

        def on_event(event: Mapping[str, Any]) -> None:
            if "port" in event:
                url = f"http://{event['address']}:{event['port']}"
                peer = {"node": node.id, "url": url, "token": token, "holds": event["holds"]}
                told.set_result(peer)

        def serve() -> None:
            request = {**where, "token": token, "listings": list(self._listings)}
            try:
                agent.call("serve", request, payload=self._beats(), on_event=on_event)
            except TrainctlError:
                pass  # its deliveries will say what is wrong with the node, if anything is
            finally:
                if not told.done():
                    told.set_result(None)

        self._pool.submit(serve)
        return told

    def _beats(self) -> Iterator[bytes]:
        """What keeps a server alive: it ends with its caller, also with one that is only silent."""
        while not self._done.wait(_BEAT_SECONDS):
            yield b"\n"
