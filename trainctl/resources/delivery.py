"""Deliver a job's weights to the nodes of its ranks, and report progress."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from trainctl.apply.step import ApplyStep
from trainctl.base.lazy_dataclass import dataclass, replace
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
from trainctl.inputs.environment import RunPaths
from trainctl.model.address import Address
from trainctl.model.delivery import MIRROR, THROUGH_CLIENT, DeliveryRecord, TransferForecast
from trainctl.model.specs.resource import ClusterSpec
from trainctl.plugin_api.provider import Node
from trainctl.remote.agent import NodeAgent
from trainctl.resources.agents import ProjectContext
from trainctl.resources.clusters import cache_target, shared_settings
from trainctl.resources.mirror_access import MirrorAccess, NodeMirrorCall, Peer, PeerServers

if TYPE_CHECKING:
    from trainctl.store.store import MirrorStore


@dataclass(frozen=True, slots=True)
class PlacedRank:
    """A rank, its node with agent and cluster, and the run's paths there."""

    number: int
    node: Node
    agent: NodeAgent
    cluster: ClusterSpec
    paths: RunPaths


class DeliveryProgress:
    """Sums up the progress of all nodes; thread-safe. Starts from the planned bytes."""

    def __init__(
        self, step: ApplyStep, listings: Mapping[str, Listing], ranks: Sequence[PlacedRank]
    ) -> None:
        self._step = step
        self._nodes = len(ranks)
        self._lock = threading.Lock()
        self._received: dict[tuple[int, str], int] = {}
        self._remaining: dict[tuple[int, str], int] = {}
        for address, listing in listings.items():
            for rank in ranks:
                planned = step.forecasts.get((rank.number, address), TransferForecast()).bytes
                self._remaining[rank.number, address] = listing.size if planned is None else planned

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
            loaded: dict[str, Listing] = {}
            for address, listing_id in listings.items():
                listing = self._store.load_listing(listing_id)
                if listing is None:
                    raise StorageError(
                        f"listing {listing_id[:12]} not found in the mirror",
                        "Plan and apply again to mirror it.",
                        code="mirror-corrupt",
                    )
                loaded[address] = listing
            for renewal in renewals:
                renewal.result()
        return loaded

    def deliver(
        self,
        step: ApplyStep,
        ranks: Sequence[PlacedRank],
        listings: Mapping[str, Listing],
    ) -> tuple[DeliveryRecord, ...]:
        """Deliver all listings to all nodes in parallel; raise an error at the end.

        After an error that fails the run, the run's leases in the nodes' caches are released.
        """
        if not listings:
            return ()
        step.stop_if_cancelled()
        try:
            return self._deliver_all(step, ranks, listings)
        except (NodeUnreachable, UserInterrupt):
            raise  # the next apply resumes the transfer
        except TrainctlError:
            for rank in ranks:
                with contextlib.suppress(TrainctlError):
                    request = RunCacheRequest(**cache_target(rank.node, rank.cluster), key=step.key)
                    rank.agent.call(RELEASE, request)
            raise

    def _deliver_all(
        self, step: ApplyStep, ranks: Sequence[PlacedRank], listings: Mapping[str, Listing]
    ) -> tuple[DeliveryRecord, ...]:
        progress = DeliveryProgress(step, listings, ranks)
        with contextlib.ExitStack() as stack:
            peers = self._peers(ranks, listings)
            announced = stack.enter_context(peers).announced() if peers else {}
            for peer_error in peers.excluded if peers else ():
                step.notify(f"peer excluded: {peer_error.summary}")
            calls = [
                stack.enter_context(self._mirror.of(rank.cluster.provider, rank.node, rank.agent))
                for rank in ranks
            ]

            def deliver(rank: PlacedRank, call: NodeMirrorCall) -> tuple[DeliveryRecord, ...]:
                found = [*announced.values()] if rank.node.id in announced else []
                try:
                    return self._deliver_to(step, rank, call, listings, found, progress)
                except BaseException:
                    if peers:  # none waits for its chunks
                        peers.leave(rank.node.id)
                    raise

            if len(ranks) == 1:
                return deliver(ranks[0], calls[0])
            with ThreadPoolExecutor(len(ranks), thread_name_prefix="deliver") as pool:
                pairs = zip(ranks, calls, strict=True)
                futures = [pool.submit(deliver, *pair) for pair in pairs]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise _first_error(errors)
        return tuple(record for future in futures for record in future.result())

    def _peers(
        self, ranks: Sequence[PlacedRank], listings: Mapping[str, Listing]
    ) -> PeerServers | None:
        """Return servers for two or more nodes that don't see the mirror."""
        remote = [
            (rank.node, rank.agent, cache_target(rank.node, rank.cluster))
            for rank in ranks
            if not self._mirror.is_near(rank.cluster.provider, rank.node)
        ]
        if len(remote) < 2 or any(shared_settings(rank.cluster) for rank in ranks):
            return None
        return PeerServers(remote, list(listings.values()), self._mirror.register)

    def _deliver_to(
        self,
        step: ApplyStep,
        rank: PlacedRank,
        call: NodeMirrorCall,
        listings: Mapping[str, Listing],
        peers: Sequence[Peer],
        progress: DeliveryProgress,
    ) -> tuple[DeliveryRecord, ...]:
        """Deliver the listings to one node, one by one: they share its network and disk."""
        is_near = self._mirror.is_near(rank.cluster.provider, rank.node)
        is_relayed = self._mirror.far == THROUGH_CLIENT and not is_near
        route = "mirror-to-node" if is_near else self._mirror.far
        if shared_settings(rank.cluster):
            route = "shared-cache"
        elif peers:
            route = "peers"
        records = []
        for address, listing in listings.items():
            step.stop_if_cancelled()
            weights = None if "/" in address else step.needed(Address.parse(address)).weights_spec
            source = weights.source if weights else f"checkpoint {address}"
            request = {
                **cache_target(rank.node, rank.cluster),
                "lineage": self._context.lineage,
                "owner": self._context.owner,
                "lease": step.key,
                "source": source,
                **({"node": rank.node.id, "peers": peers} if peers else {}),
            }
            response = call(DELIVER, request, progress.of(rank.number, address), listing)
            progress.finish(rank.number, address)
            record = DeliveryRecord.of(rank.number, rank.node.id, address, response, route)
            forecast = step.forecasts.get((rank.number, address), TransferForecast())
            bytes_through_client = record.bytes_by_tier[MIRROR] if is_relayed else 0
            records.append(
                replace(
                    record,
                    forecast_seconds=forecast.seconds,
                    bytes_through_client=bytes_through_client,
                )
            )
        return tuple(records)


def _first_error(errors: Sequence[BaseException]) -> BaseException:
    """Return the error to raise, with the other summaries in its detail."""
    expected = [error for error in errors if isinstance(error, TrainctlError)]
    if len(expected) < len(errors):
        return next(error for error in errors if error not in expected)
    # An unknown outcome comes before a failure, a failure before a wait.
    expected.sort(
        key=lambda error: (
            isinstance(error, InsufficientSpace)
            - isinstance(error, NodeUnreachable | UserInterrupt)
        )
    )
    for other in expected[1:]:
        if other.summary != expected[0].summary:
            expected[0].detail = f"{expected[0].detail} Also: {other.summary}.".strip()
    return expected[0]


def listings_of(step: ApplyStep) -> dict[str, str]:
    """Return a job's listing ids by weights address; TrainctlError if missing."""
    listings = {}
    for item in step.job_spec.weights:
        listing = step.needed(item.address).outputs.get("listing")
        if not listing:
            raise TrainctlError(
                f"{item.address} is not mirrored yet",
                f"Apply the weights first: --target {item.address}.",
                code="not-applied-yet",
            )
        listings[str(item.address)] = str(listing)
    return listings
