"""Deliver a job's weights to the nodes of its ranks before anything is started, and show the progress."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from trainctl.apply.step import Step
from trainctl.base.listing import Listing
from trainctl.base.protocol.runs import RELEASE, RunInCache
from trainctl.base.protocol.weights import DELIVER
from trainctl.errors import Interrupted, NodeUnreachable, NoRoomYet, StorageError, TrainctlError
from trainctl.model.address import Address
from trainctl.model.delivery import MIRROR, THROUGH_OPERATOR, Delivered, Foreseen
from trainctl.model.resource import ClusterSpec
from trainctl.remote.agent import NodeAgent
from trainctl.resources.agents import Home
from trainctl.resources.clusters import at, shared_settings
from trainctl.resources.mirror.node_server import Peers
from trainctl.resources.mirror.origins import Opened, Origins
from trainctl.spi.provider import Node
from trainctl.store.store import Store


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


@dataclass(frozen=True, slots=True)
class Seat:
    """A node that a rank of a run gets, how it is asked, and its cluster."""

    node: Node
    agent: NodeAgent
    cluster: ClusterSpec

    @property
    def provider(self) -> str:
        """The name of its cluster's provider."""
        return self.cluster.provider


@dataclass(frozen=True, slots=True)
class _Order:
    """What one seat is to be sent; ``more`` is what all its requests have in addition."""

    rank: int
    seat: Seat
    listings: Mapping[str, Listing]
    mirror: Opened
    more: Mapping[str, Any] = field(default_factory=dict)


class Delivery:
    """Brings listings from the mirror to nodes."""

    def __init__(self, store: Store, home: Home, origins: Origins) -> None:
        self._store = store
        self._home = home
        self._origins = origins

    def listings(self, listings: Mapping[str, str]) -> dict[str, Listing]:
        """The listings by their ids, as the mirror has them, by weights address. That they are used now is said at the same time."""
        if not listings:
            return {}
        with ThreadPoolExecutor(2, thread_name_prefix="renew") as pool:
            renewed = [
                pool.submit(self._store.renew, self._home.lineage, address) for address in listings
            ]
            found = {address: self._listing(one) for address, one in listings.items()}
            for one in renewed:
                one.result()
        return found

    def deliver(
        self, step: Step, seats: Sequence[Seat], listings: Mapping[str, Listing]
    ) -> tuple[Delivered, ...]:
        """Have all listings, by weights address, on every seat, the ranks in order; what moved.

        All nodes at once; each brings its work to an end before an error of another is raised. A run that can't be
        deployed needs none of it any more: what it leases is given back.
        """
        if not listings:
            return ()
        step.stop_if_cancelled()
        try:
            return self._deliver_all(step, seats, listings)
        except (NodeUnreachable, Interrupted):
            raise  # the next apply carries on with what is there
        except TrainctlError:
            for seat in seats:
                with contextlib.suppress(TrainctlError):
                    request = RunInCache(**at(seat.node, seat.cluster), key=step.key)
                    seat.agent.call(RELEASE, request)
            raise

    def _deliver_all(
        self, step: Step, seats: Sequence[Seat], listings: Mapping[str, Listing]
    ) -> tuple[Delivered, ...]:
        progress = DeliveryProgress(step, listings, len(seats))
        with contextlib.ExitStack() as stack:
            peers = self._peers(seats, listings)
            told = stack.enter_context(peers).told() if peers else {}
            for why in peers.left_out if peers else ():
                step.tell(f"without a peer: {why.summary}")
            orders = [
                _Order(rank, seat, listings, self._opened(seat, stack), self._more(seat, told))
                for rank, seat in enumerate(seats)
            ]
            if len(orders) == 1:
                return self._deliver_to(step, orders[0], progress)
            with ThreadPoolExecutor(len(orders), thread_name_prefix="deliver") as pool:
                work = [pool.submit(self._deliver_among, peers, step, one, progress) for one in orders]  # fmt: skip
        errors = [error for one in work if (error := one.exception()) is not None]
        if errors:
            raise _first(errors)
        return tuple(row for one in work for row in one.result())

    def _peers(self, seats: Sequence[Seat], listings: Mapping[str, Listing]) -> Peers | None:
        """Servers on those that would otherwise take turns at the machine that has the mirror."""
        far = [seat for seat in seats if not self._origins.is_near(seat.provider, seat.node)]
        if len(far) < 2 or any(shared_settings(seat.cluster) for seat in seats):
            return None
        return Peers(
            [(seat.node, seat.agent, at(seat.node, seat.cluster)) for seat in far],
            list(listings.values()),
            self._origins.register,
        )

    def _opened(self, seat: Seat, stack: contextlib.ExitStack) -> Opened:
        return stack.enter_context(self._origins.of(seat.provider, seat.node, seat.agent))

    def _more(self, seat: Seat, told: Mapping[str, Any]) -> Mapping[str, Any]:
        if seat.node.id not in told:
            return {}
        return {"node": seat.node.id, "peers": list(told.values())}

    def _deliver_among(
        self, peers: Peers | None, step: Step, order: _Order, progress: DeliveryProgress
    ) -> tuple[Delivered, ...]:
        try:
            return self._deliver_to(step, order, progress)
        except BaseException:
            if peers:
                peers.leave(order.seat.node.id)
            raise

    def _deliver_to(
        self, step: Step, order: _Order, progress: DeliveryProgress
    ) -> tuple[Delivered, ...]:
        """Have the listings on one node, one after another, as they share its link and its disk."""
        found = []
        for address, listing in order.listings.items():
            step.stop_if_cancelled()
            request = {
                **at(order.seat.node, order.seat.cluster),
                "lineage": self._home.lineage,
                "owner": self._home.owner,
                "lease": step.key,
                "source": step.needed(Address.parse(address)).weights_spec.source,
                **order.more,
            }
            answer = order.mirror(DELIVER, request, progress.of(order.rank, address), listing)
            progress.ended(order.rank, address)
            path = self._path(order)
            row = Delivered.of(order.rank, order.seat.node.id, address, answer, path)
            forecast = step.forecasts.get((order.rank, address), Foreseen()).seconds
            found.append(
                replace(
                    row, forecast_seconds=forecast, bytes_through_operator=self._crossed(order, row)
                )
            )
        return tuple(found)

    def _crossed(self, order: _Order, row: Delivered) -> int:
        """What came through this machine: all from its mirror, whatever became of it on the nodes."""
        here = self._origins.far == THROUGH_OPERATOR
        near = self._origins.is_near(order.seat.provider, order.seat.node)
        return row.bytes_by_tier[MIRROR] if here and not near else 0

    def _path(self, order: _Order) -> str:
        if shared_settings(order.seat.cluster):
            return "shared-cache"
        if order.more.get("peers"):
            return "peers"
        near = self._origins.is_near(order.seat.provider, order.seat.node)
        return "mirror-to-node" if near else self._origins.far

    def _listing(self, listing_id: str) -> Listing:
        listing = self._store.load_listing(listing_id)
        if listing is None:
            raise StorageError(
                f"the mirror has lost listing {listing_id[:12]}",
                "Plan and apply again to mirror it.",
                code="mirror-damaged",
            )
        return listing


def _first(errors: Sequence[BaseException]) -> BaseException:
    """The error to raise: one that leaves everything open, if there is one; it speaks of the others too."""
    ours = [error for error in errors if isinstance(error, TrainctlError)]
    if len(ours) < len(errors):
        return next(error for error in errors if error not in ours)
    ours.sort(key=_rank)
    for other in ours[1:]:
        if other.summary != ours[0].summary:
            ours[0].detail = f"{ours[0].detail} Also: {other.summary}.".strip()
    return ours[0]


def _rank(error: TrainctlError) -> int:
    """What leaves everything open goes before what is wrong, and that before what only has to wait."""
    if isinstance(error, NodeUnreachable | Interrupted):
        return 0
    return 2 if isinstance(error, NoRoomYet) else 1


def listings_of(step: Step) -> dict[str, str]:
    """The mirrored listing of each of a job's weights, by address; TrainctlError for one that is not mirrored yet."""
    return {str(one.address): _listing(step, one.address) for one in step.job_spec.weights}


def _listing(step: Step, address: Address) -> str:
    listing = step.needed(address).outputs.get("listing")
    if not listing:
        raise TrainctlError(
            f"{address} is not mirrored yet",
            f"Apply it first: --target {address}.",
            code="not-applied-yet",
        )
    return str(listing)
