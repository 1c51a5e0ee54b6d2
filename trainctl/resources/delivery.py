"""Deliver a job's weights to the nodes of its ranks, and report progress."""

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
from trainctl.resources.mirror.access import MirrorAccess, NodeMirrorCall
from trainctl.resources.mirror.node_server import PeerServers
from trainctl.store.store import MirrorStore


class DeliveryProgress:
    """Sums up the progress of all nodes; thread-safe. Starts from the planned bytes."""

    def __init__(self, step: ApplyStep, listings: Mapping[str, Listing], nodes: int) -> None:
        self._step = step
        self._nodes = nodes
        self._lock = threading.Lock()
        self._received: dict[tuple[int, str], int] = {}
        self._remaining: dict[tuple[int, str], int] = {}
        for address, listing in listings.items():
            for rank in range(nodes):
                planned = step.forecasts.get((rank, address), TransferForecast()).bytes
                self._remaining[rank, address] = listing.size if planned is None else planned

    def of(self, rank: int, address: str) -> Callable[[Mapping[str, Any]], None]:
        """Return the event handler of one node and listing."""

        def on_event(event: Mapping[str, Any]) -> None:
            if "log" in event:
                self._step.notify(str(event["log"]))
                return
            with self._lock:
                self._received[rank, address] = int(event["received"])
                self._remaining[rank, address] = int(event["total"]) - int(event["done"])
                self._report(address)

        return on_event

    def finish(self, rank: int, address: str) -> None:
        """Count a listing as complete: a node that has it already sends no events."""
        with self._lock:
            if self._remaining[rank, address]:
                self._remaining[rank, address] = 0
                self._report(address)

    def _report(self, address: str) -> None:
        target = f" to {self._nodes} nodes" if self._nodes > 1 else ""
        received, remaining = sum(self._received.values()), sum(self._remaining.values())
        self._step.progress(f"delivering {address}{target}", received, received + remaining)


@dataclass(frozen=True, slots=True)
class RankAssignment:
    """The node of a rank, its agent and its cluster."""

    node: Node
    agent: NodeAgent
    cluster: ClusterSpec

    @property
    def provider(self) -> str:
        """The name of its cluster's provider."""
        return self.cluster.provider


@dataclass(frozen=True, slots=True)
class _NodeDelivery:
    """Listings to deliver to one node; ``options`` are added to every request."""

    rank: int
    assignment: RankAssignment
    listings: Mapping[str, Listing]
    mirror: NodeMirrorCall
    options: Mapping[str, Any] = field(default_factory=dict)


class Delivery:
    """Delivers listings of the mirror to nodes."""

    def __init__(self, store: MirrorStore, context: ProjectContext, mirror: MirrorAccess) -> None:
        self._store = store
        self._context = context
        self._mirror = mirror

    def listings(self, listings: Mapping[str, str]) -> dict[str, Listing]:
        """Load listings by their ids and renew their references."""
        if not listings:
            return {}
        with ThreadPoolExecutor(2, thread_name_prefix="renew") as pool:
            renewals = [
                pool.submit(self._store.renew, self._context.lineage, address)
                for address in listings
            ]
            loaded = {address: self._listing(listing) for address, listing in listings.items()}
            for renewal in renewals:
                renewal.result()
        return loaded

    def deliver(
        self,
        step: ApplyStep,
        assignments: Sequence[RankAssignment],
        listings: Mapping[str, Listing],
    ) -> tuple[DeliveryRecord, ...]:
        """Deliver all listings to all nodes in parallel; raise an error at the end.

        After an error that fails the run, the run's leases in the nodes' caches are released.
        """
        if not listings:
            return ()
        step.stop_if_cancelled()
        try:
            return self._deliver_all(step, assignments, listings)
        except (NodeUnreachable, UserInterrupt):
            raise  # the next apply resumes the transfer
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
            for peer_error in peers.excluded if peers else ():
                step.notify(f"peer excluded: {peer_error.summary}")
            deliveries = [
                _NodeDelivery(
                    rank,
                    assignment,
                    listings,
                    stack.enter_context(
                        self._mirror.of(assignment.provider, assignment.node, assignment.agent)
                    ),
                    self._peer_options(assignment, announced),
                )
                for rank, assignment in enumerate(assignments)
            ]
            if len(deliveries) == 1:
                return self._deliver_to(step, deliveries[0], progress)
            with ThreadPoolExecutor(len(deliveries), thread_name_prefix="deliver") as pool:
                futures = [
                    pool.submit(self._deliver_among, peers, step, delivery, progress)
                    for delivery in deliveries
                ]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise _first_error(errors)
        return tuple(record for future in futures for record in future.result())

    def _peers(
        self, assignments: Sequence[RankAssignment], listings: Mapping[str, Listing]
    ) -> PeerServers | None:
        """Return servers for two or more nodes that don't see the mirror."""
        remote = [
            (assignment.node, assignment.agent, cache_target(assignment.node, assignment.cluster))
            for assignment in assignments
            if not self._is_near(assignment)
        ]
        if len(remote) < 2 or any(shared_settings(item.cluster) for item in assignments):
            return None
        return PeerServers(remote, list(listings.values()), self._mirror.register)

    def _is_near(self, assignment: RankAssignment) -> bool:
        return self._mirror.is_near(assignment.provider, assignment.node)

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
        """Deliver the listings to one node, one by one: they share its network and disk."""
        records = []
        for address, listing in delivery.listings.items():
            step.stop_if_cancelled()
            weights = None if "/" in address else step.needed(Address.parse(address)).weights_spec
            source = weights.source if weights else f"checkpoint {address}"
            request = {
                **cache_target(delivery.assignment.node, delivery.assignment.cluster),
                "lineage": self._context.lineage,
                "owner": self._context.owner,
                "lease": step.key,
                "source": source,
                **delivery.options,
            }
            on_event = progress.of(delivery.rank, address)
            response = delivery.mirror(DELIVER, request, on_event, listing)
            progress.finish(delivery.rank, address)
            node, route = delivery.assignment.node.id, self._route(delivery)
            record = DeliveryRecord.of(delivery.rank, node, address, response, route)
            forecast = step.forecasts.get((delivery.rank, address), TransferForecast()).seconds
            through_client = self._bytes_through_client(delivery, record)
            records.append(
                replace(record, forecast_seconds=forecast, bytes_through_client=through_client)
            )
        return tuple(records)

    def _bytes_through_client(self, delivery: _NodeDelivery, record: DeliveryRecord) -> int:
        through_client = self._mirror.far == THROUGH_CLIENT
        if not through_client or self._is_near(delivery.assignment):
            return 0
        return record.bytes_by_tier[MIRROR]

    def _route(self, delivery: _NodeDelivery) -> str:
        if shared_settings(delivery.assignment.cluster):
            return "shared-cache"
        if delivery.options.get("peers"):
            return "peers"
        return "mirror-to-node" if self._is_near(delivery.assignment) else self._mirror.far

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
    """Return the error to raise, with the other summaries in its detail."""
    expected = [error for error in errors if isinstance(error, TrainctlError)]
    if len(expected) < len(errors):
        return next(error for error in errors if error not in expected)
    expected.sort(key=_error_rank)
    for other in expected[1:]:
        if other.summary != expected[0].summary:
            expected[0].detail = f"{expected[0].detail} Also: {other.summary}.".strip()
    return expected[0]


def _error_rank(error: TrainctlError) -> int:
    """Rank errors: an unknown outcome before a failure, a failure before a wait."""
    if isinstance(error, NodeUnreachable | UserInterrupt):
        return 0
    return 2 if isinstance(error, InsufficientSpace) else 1


def listings_of(step: ApplyStep) -> dict[str, str]:
    """Return a job's listing ids by weights address; TrainctlError if missing."""
    return {str(item.address): _listing_id(step, item.address) for item in step.job_spec.weights}


def _listing_id(step: ApplyStep, address: Address) -> str:
    listing = step.needed(address).outputs.get("listing")
    if not listing:
        raise TrainctlError(
            f"{address} is not mirrored yet",
            f"Apply the weights first: --target {address}.",
            code="not-applied-yet",
        )
    return str(listing)
