"""The progress of a delivery to all of a run's nodes, as one bar."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from trainctl.apply.step import Step


class DeliveryProgress:
    """Adds up what nodes report; safe to use from many threads."""

    def __init__(self, step: Step, documents: Mapping[str, Mapping[str, Any]], nodes: int) -> None:
        self._step = step
        self._nodes = nodes
        self._lock = threading.Lock()
        self._done: dict[tuple[int, str], int] = {}
        self._total = nodes * sum(map(_size, documents.values()))

    def of(self, rank: int, address: str) -> Callable[[Mapping[str, Any]], None]:
        """Takes the events of one node and listing."""

        def on_event(event: Mapping[str, Any]) -> None:
            if "say" in event:
                self._step.tell(str(event["say"]))
                return
            where = f" to {self._nodes} nodes" if self._nodes > 1 else ""
            with self._lock:
                self._done[rank, address] = int(event["done"])
                done = sum(self._done.values())
                self._step.progress(f"delivering {address}{where}", done, self._total)

        return on_event


def _size(document: Mapping[str, Any]) -> int:
    """The bytes of a listing's different contents, as nodes count them."""
    return sum({file["sha256"]: int(file["size"]) for file in document["files"]}.values())
