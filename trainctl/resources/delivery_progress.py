"""The progress of a delivery to all of a run's nodes, as one bar."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from trainctl.apply.step import Step
from trainctl.model.files import Listing


class DeliveryProgress:
    """Adds up what nodes report; safe to use from many threads."""

    def __init__(self, step: Step, listings: Mapping[str, Listing], nodes: int) -> None:
        self._step = step
        self._nodes = nodes
        self._lock = threading.Lock()
        self._done: dict[tuple[int, str], int] = {}
        self._totals = {
            (rank, address): listing.size
            for address, listing in listings.items()
            for rank in range(nodes)
        }

    def of(self, rank: int, address: str) -> Callable[[Mapping[str, Any]], None]:
        """Takes the events of one node and listing."""

        def on_event(event: Mapping[str, Any]) -> None:
            if "say" in event:
                self._step.tell(str(event["say"]))
                return
            where = f" to {self._nodes} nodes" if self._nodes > 1 else ""
            with self._lock:
                # The node counts equal files once.
                self._totals[rank, address] = int(event["total"])
                self._done[rank, address] = int(event["done"])
                done, total = sum(self._done.values()), sum(self._totals.values())
                self._step.progress(f"delivering {address}{where}", done, total)

        return on_event
