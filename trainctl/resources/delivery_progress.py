"""The progress of a delivery to all of a run's nodes, as one bar: of what has to come, as what they have already takes no time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from trainctl.apply.step import Step
from trainctl.base.listing import Listing
from trainctl.model.delivery import Foreseen


class DeliveryProgress:
    """Adds up what nodes report; safe to use from many threads. What a node lacks is what the plan says, until it tells."""

    def __init__(self, step: Step, listings: Mapping[str, Listing], nodes: int) -> None:
        self._step = step
        self._nodes = nodes
        self._lock = threading.Lock()
        self._came: dict[tuple[int, str], int] = {}
        self._left: dict[tuple[int, str], int] = {}
        for address, listing in listings.items():
            for rank in range(nodes):
                planned = step.forecasts.get((rank, address), Foreseen()).bytes
                self._left[rank, address] = listing.size if planned is None else planned

    def of(self, rank: int, address: str) -> Callable[[Mapping[str, Any]], None]:
        """Takes the events of one node and listing."""

        def on_event(event: Mapping[str, Any]) -> None:
            if "say" in event:
                self._step.tell(str(event["say"]))
                return
            with self._lock:
                self._came[rank, address] = int(event["came"])
                self._left[rank, address] = int(event["total"]) - int(event["done"])
                self._tell(address)

        return on_event

    def ended(self, rank: int, address: str) -> None:
        """All of it is there: a node that had it before tells of none."""
        with self._lock:
            if self._left[rank, address]:
                self._left[rank, address] = 0
                self._tell(address)

    def _tell(self, address: str) -> None:
        where = f" to {self._nodes} nodes" if self._nodes > 1 else ""
        came, left = sum(self._came.values()), sum(self._left.values())
        self._step.progress(f"delivering {address}{where}", came, came + left)
