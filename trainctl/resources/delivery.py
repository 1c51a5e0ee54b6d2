"""Having a job's weights on the nodes that its ranks get, before anything is started there."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainctl.apply.step import Step
from trainctl.errors import Interrupted, NodeUnreachable, StorageError, TrainctlError
from trainctl.model.address import Address
from trainctl.remote.agent import NodeAgent
from trainctl.resources.home import Home
from trainctl.resources.node_cache import at
from trainctl.resources.origins import Origins
from trainctl.spi.provider import Node
from trainctl.weights.mirror.directory import DirectoryMirror


@dataclass(frozen=True, slots=True)
class Seat:
    """A node that a rank of a run gets, how it is asked, and the attributes of its cluster."""

    node: Node
    agent: NodeAgent
    cluster: Mapping[str, Any]


class Delivery:
    """Brings listings from the mirror to nodes."""

    def __init__(self, mirror: DirectoryMirror, home: Home, origins: Origins) -> None:
        self._mirror = mirror
        self._home = home
        self._origins = origins

    def deliver(self, step: Step, seats: Sequence[Seat], listings: Mapping[str, str]) -> int:
        """Have all listings, by weights address, on every seat; the bytes that moved.

        A run that can't be deployed needs none of them any more: what it leases is given back.
        """
        return sum(self._deliver_all(step, seat, listings) for seat in seats)

    def _deliver_all(self, step: Step, seat: Seat, listings: Mapping[str, str]) -> int:
        try:
            return sum(
                self._deliver(step, seat, address, listing) for address, listing in listings.items()
            )
        except (NodeUnreachable, Interrupted):
            raise  # the next apply carries on with what is there
        except TrainctlError:
            with contextlib.suppress(TrainctlError):
                request = {**at(seat.node, seat.cluster), "key": step.key}
                seat.agent.call("release", request)
            raise

    def _deliver(self, step: Step, seat: Seat, address: str, listing: str) -> int:
        """Have one listing on the node; the bytes that had to move there."""

        def on_event(event: Mapping[str, Any]) -> None:
            step.progress(f"delivering {address}", int(event["done"]), int(event["total"]))

        step.stop_if_cancelled()
        self._mirror.renew(self._home.lineage, address)
        request = {
            **at(seat.node, seat.cluster),
            "lineage": self._home.lineage,
            "owner": self._home.owner,
            "lease": step.key,
            "source": str(step.needed(Address.parse(address)).attributes["source"]),
            "listing": self._document(listing),
        }
        with self._origins.of(str(seat.cluster["provider"]), seat.agent) as origin:
            answer = seat.agent.call("deliver", {**request, "origin": origin}, on_event=on_event)
        return int(answer["bytes_origin"])

    def _document(self, listing_id: str) -> Mapping[str, Any]:
        listing = self._mirror.load_listing(listing_id)
        if listing is None:
            raise StorageError(
                f"the mirror has lost listing {listing_id[:12]}",
                "Plan and apply again to mirror it.",
                code="mirror-damaged",
            )
        document: Mapping[str, Any] = json.loads(listing.to_bytes())
        return document


def listings_of(step: Step) -> dict[str, str]:
    """The mirrored listing of each of a job's weights, by address; TrainctlError for one that is not mirrored yet."""
    addresses = [Address.parse(weights["address"]) for weights in step.attributes["weights"]]
    return {str(address): _listing(step, address) for address in addresses}


def _listing(step: Step, address: Address) -> str:
    listing = step.needed(address).outputs.get("listing")
    if not listing:
        raise TrainctlError(
            f"{address} is not mirrored yet",
            f"Apply it first: --target {address}.",
            code="not-applied-yet",
        )
    return str(listing)
