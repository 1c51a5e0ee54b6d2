"""A server on a node, for as long as a block lasts here: it ends with its caller, also with one that is only silent."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from typing import Any

from trainctl.errors import NodeError, TrainctlError
from trainctl.remote.agent import NodeAgent

_BEAT_SECONDS = 0.2


class NodeServer:
    """Runs the verb ``serve``. ``told`` is the first event, in which it says where it listens, or why it can't."""

    def __init__(self, agent: NodeAgent, request: Mapping[str, Any]) -> None:
        self.told: Future[Mapping[str, Any]] = Future()
        self._agent = agent
        self._request = request
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True, name="serve")
        self._thread.start()

    def end(self) -> None:
        """Have it end; ``close`` waits until it has."""
        self._done.set()

    def close(self) -> None:
        """Have it end, and wait."""
        self.end()
        self._thread.join()

    def _serve(self) -> None:
        try:
            self._agent.call("serve", self._request, payload=self._beats(), on_event=self._on_event)
        except TrainctlError as error:
            if not self.told.done():
                self.told.set_exception(error)
        finally:
            if not self.told.done():
                self.told.set_exception(NodeError("a server on a node ended at once"))

    def _on_event(self, event: Mapping[str, Any]) -> None:
        if "port" in event:
            self.told.set_result(event)

    def _beats(self) -> Iterator[bytes]:
        while not self._done.wait(_BEAT_SECONDS):
            yield b"\n"
