"""Deliver a job's weights to the nodes of its ranks before anything is started, and show the progress."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from trainctl.apply.step import ApplyStep
from trainctl.base.listing import Listing
from trainctl.base.protocol.runs import RELEASE, RunCacheRequest
from trainctl.base.protocol.weights import DELIVER
from trainctl.errors import (
    InsufficientSpace,
    NodeUnreachable,
    StorageError,
    TrainctlError,
    UserInterrupt,
)
from trainctl.model.address import Address
from trainctl.model.delivery import MIRROR, THROUGH_CLIENT, DeliveryRecord, TransferForecast
from trainctl.model.specs.resource import ClusterSpec
from trainctl.plugin_api.provider import Node
from trainctl.remote.agent import NodeAgent
from trainctl.resources.agents import ProjectContext
from trainctl.resources.clusters import cache_target, shared_settings
from trainctl.resources.mirror.node_server import PeerServers
from trainctl.resources.mirror.origins import MirrorAccess, MirrorOrigins
from trainctl.store.store import MirrorStore


class DeliveryProgress:
    """Adds up what nodes report; safe to use from many threads. What a node lacks is what the plan says, until it tells."""

    def __init__(self, step: ApplyStep, listings: Mapping[str, Listing], nodes: int) -> None:
        self._step = step
        self._nodes = nodes
        self._lock = threading.Lock()
        self._arrived: dict[tuple[int, str], int] = {}
        self._left: dict[tuple[int, str], int] = {}
        for address, listing in listings.items():
            for rank in range(nodes):
                planned = step.forecasts.get((rank, address), TransferForecast()).bytes
                self._left[rank, address] = listing.size if planned is None else planned

    def of(self, rank: int, address: str) -> Callable[[Mapping[str, Any]], None]:
        """Takes the events of one node and listing."""

        def on_event(event: Mapping[str, Any]) -> None:
            if "log" in event:
                self._step.tell(str(event["log"]))
                return
            with self._lock:
                self._arrived[rank, address] = int(event["came"])
                self._left[rank, address] = int(event["total"]) - int(event["done"])
                self._tell(address)

        return on_event

    def finish(self, rank: int, address: str) -> None:
        """All of it is there: a node that had it before tells of none."""
        with self._lock:
            if self._left[rank, address]:
                self._left[rank, address] = 0
                self._tell(address)

    def _tell(self, address: str) -> None:
        where = f" to {self._nodes} nodes" if self._nodes > 1 else ""
        came, left = sum(self._arrived.values()), sum(self._left.values())
        self._step.progress(f"delivering {address}{where}", came, came + left)


@dataclass(frozen=True, slots=True)
class RankAssignment:
    """A node that a rank of a run gets, how it is asked, and its cluster."""

    node: Node
    agent: NodeAgent
    cluster: ClusterSpec

    @property
    def provider(self) -> str:
        """The name of its cluster's provider."""
        return self.cluster.provider


@dataclass(frozen=True, slots=True)
class _NodeDelivery:
    """What one seat is to be sent; ``options`` is what all its requests have in addition."""

    rank: int
    assignment: RankAssignment
    listings: Mapping[str, Listing]
    mirror: MirrorAccess
    options: Mapping[str, Any] = field(default_factory=dict)


class Delivery:
    """Brings listings from the mirror to nodes."""

    def __init__(self, store: MirrorStore, context: ProjectContext, origins: MirrorOrigins) -> None:
        self._store = store
        self._context = context
        self._origins = origins

    def listings(self, listings: Mapping[str, str]) -> dict[str, Listing]:
        """The listings by their ids, as the mirror has them, by weights address. That they are used now is said at the same time."""
        if not listings:
            return {}
        with ThreadPoolExecutor(2, thread_name_prefix="renew") as pool:
            renewed = [
                pool.submit(self._store.renew, self._context.lineage, address)
                for address in listings
            ]
            found = {address: self._listing(one) for address, one in listings.items()}
            for one in renewed:
                one.result()
        return found

    def deliver(
        self,
        step: ApplyStep,
        assignments: Sequence[RankAssignment],
        listings: Mapping[str, Listing],
    ) -> tuple[DeliveryRecord, ...]:
        """Have all listings, by weights address, on every seat, the ranks in order; what moved.

        All nodes at once; each brings its work to an end before an error of another is raised. A run that can't be
        deployed needs none of it any more: what it leases is given back.
        """
        if not listings:
            return ()
        step.stop_if_cancelled()
        try:
            return self._deliver_all(step, assignments, listings)
        except (NodeUnreachable, UserInterrupt):
            raise  # the next apply carries on with what is there
        except TrainctlError:
            for assignment in assignments:
                with contextlib.suppress(TrainctlError):
                    request = RunCacheRequest(
                        **cache_target(assignment.node, assignment.cluster), key=step.key
                    )
                    assignment.agent.call(RELEASE, request)
            raise

    def _deliver_all(
        self,
        step: ApplyStep,
        assignments: Sequence[RankAssignment],
        listings: Mapping[str, Listing],
    ) -> tuple[DeliveryRecord, ...]:
        progress = DeliveryProgress(step, listings, len(assignments))
        with contextlib.ExitStack() as stack:
            peers = self._peers(assignments, listings)
            announced = stack.enter_context(peers).announced() if peers else {}
            for why in peers.excluded if peers else ():
                step.tell(f"without a peer: {why.summary}")
            deliveries = [
                _NodeDelivery(
                    rank,
                    assignment,
                    listings,
                    self._open_mirror(assignment, stack),
                    self._peer_options(assignment, announced),
                )
                for rank, assignment in enumerate(assignments)
            ]
            if len(deliveries) == 1:
                return self._deliver_to(step, deliveries[0], progress)
            with ThreadPoolExecutor(len(deliveries), thread_name_prefix="deliver") as pool:
                work = [pool.submit(self._deliver_among, peers, step, delivery, progress) for delivery in deliveries]  # fmt: skip
        errors = [error for one in work if (error := one.exception()) is not None]
        if errors:
            raise _first_error(errors)
        return tuple(row for one in work for row in one.result())

    def _peers(
        self, assignments: Sequence[RankAssignment], listings: Mapping[str, Listing]
    ) -> PeerServers | None:
        """Servers on those that would otherwise take turns at the machine that has the mirror."""
        far = [
            assignment
            for assignment in assignments
            if not self._origins.is_near(assignment.provider, assignment.node)
        ]
        if len(far) < 2 or any(shared_settings(assignment.cluster) for assignment in assignments):
            return None
        return PeerServers(
            [
                (
                    assignment.node,
                    assignment.agent,
                    cache_target(assignment.node, assignment.cluster),
                )
                for assignment in far
            ],
            list(listings.values()),
            self._origins.register,
        )

    def _open_mirror(self, assignment: RankAssignment, stack: contextlib.ExitStack) -> MirrorAccess:
        return stack.enter_context(
            self._origins.of(assignment.provider, assignment.node, assignment.agent)
        )

    def _peer_options(
        self, assignment: RankAssignment, announced: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        if assignment.node.id not in announced:
            return {}
        return {"node": assignment.node.id, "peers": list(announced.values())}

    def _deliver_among(
        self,
        peers: PeerServers | None,
        step: ApplyStep,
        delivery: _NodeDelivery,
        progress: DeliveryProgress,
    ) -> tuple[DeliveryRecord, ...]:
        try:
            return self._deliver_to(step, delivery, progress)
        except BaseException:
            if peers:
                peers.leave(delivery.assignment.node.id)
            raise

    def _deliver_to(
        self, step: ApplyStep, delivery: _NodeDelivery, progress: DeliveryProgress
    ) -> tuple[DeliveryRecord, ...]:
        """Have the listings on one node, one after another, as they share its link and its disk."""
        found = []
        for address, listing in delivery.listings.items():
            step.stop_if_cancelled()
            request = {
                **cache_target(delivery.assignment.node, delivery.assignment.cluster),
                "lineage": self._context.lineage,
                "owner": self._context.owner,
                "lease": step.key,
                "source": step.needed(Address.parse(address)).weights_spec.source,
                **delivery.options,
            }
            answer = delivery.mirror(DELIVER, request, progress.of(delivery.rank, address), listing)
            progress.finish(delivery.rank, address)
            path = self._path(delivery)
            row = DeliveryRecord.of(
                delivery.rank, delivery.assignment.node.id, address, answer, path
            )
            forecast = step.forecasts.get((delivery.rank, address), TransferForecast()).seconds
            found.append(
                replace(
                    row,
                    forecast_seconds=forecast,
                    bytes_through_client=self._crossed(delivery, row),
                )
            )
        return tuple(found)

    def _crossed(self, delivery: _NodeDelivery, row: DeliveryRecord) -> int:
        """What came through this machine: all from its mirror, whatever became of it on the nodes."""
        here = self._origins.far == THROUGH_CLIENT
        near = self._origins.is_near(delivery.assignment.provider, delivery.assignment.node)
        return row.bytes_by_tier[MIRROR] if here and not near else 0

    def _path(self, delivery: _NodeDelivery) -> str:
        if shared_settings(delivery.assignment.cluster):
            return "shared-cache"
        if delivery.options.get("peers"):
            return "peers"
        near = self._origins.is_near(delivery.assignment.provider, delivery.assignment.node)
        return "mirror-to-node" if near else self._origins.far

    def _listing(self, listing_id: str) -> Listing:
        listing = self._store.load_listing(listing_id)
        if listing is None:
            raise StorageError(
                f"listing {listing_id[:12]} not found in the mirror",
                "Plan and apply again to mirror it.",
                code="mirror-corrupt",
            )
        return listing


def _first_error(errors: Sequence[BaseException]) -> BaseException:
    """The error to raise: one that leaves everything open, if there is one; it speaks of the others too."""
    ours = [error for error in errors if isinstance(error, TrainctlError)]
    if len(ours) < len(errors):
        return next(error for error in errors if error not in ours)
    ours.sort(key=_error_rank)
    for other in ours[1:]:
        if other.summary != ours[0].summary:
            ours[0].detail = f"{ours[0].detail} Also: {other.summary}.".strip()
    return ours[0]


def _error_rank(error: TrainctlError) -> int:
    """What leaves everything open goes before what is wrong, and that before what only has to wait."""
    if isinstance(error, NodeUnreachable | UserInterrupt):
        return 0
    return 2 if isinstance(error, InsufficientSpace) else 1


def listings_of(step: ApplyStep) -> dict[str, str]:
    """The mirrored listing of each of a job's weights, by address; TrainctlError for one that is not mirrored yet."""
    return {str(item.address): _listing(step, item.address) for item in step.job_spec.weights}


def _listing(step: ApplyStep, address: Address) -> str:
    listing = step.needed(address).outputs.get("listing")
    if not listing:
        raise TrainctlError(
            f"{address} is not mirrored yet",
            f"Apply the weights first: --target {address}.",
            code="not-applied-yet",
        )
    return str(listing)
