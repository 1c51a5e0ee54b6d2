"""Query the free resources of nodes and assign nodes to a run."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from ipaddress import ip_address

from trainctl.base.listing import ListedFile
from trainctl.base.parallel import each
from trainctl.base.protocol.host import (
    FREE_RESOURCES,
    INSPECT,
    FreeResourcesRequest,
    InspectNodeRequest,
)
from trainctl.base.protocol.runs import STATUS, StatusRequest
from trainctl.base.protocol.weights import CacheQueryRequest, CacheQueryResponse
from trainctl.errors import NodeError, NodeUnreachable, TrainctlError
from trainctl.ledger.state import RecordedResource
from trainctl.model.address import Address
from trainctl.model.specs.job_spec import Compute
from trainctl.plan.placement import NodeOffer, PlannedRun, SpaceAvailability, assign_nodes, reserve
from trainctl.plan.quarantine import quarantine_error, quarantined
from trainctl.plugin_api.provider import Node
from trainctl.resources.agents import Agents, nodes_of, unprovisioned_nodes
from trainctl.resources.clusters import cache_target
from trainctl.resources.runs.run_control import QUERY_SECONDS
from trainctl.store.store import MirrorStore

_AT_ONCE = 16
_NO_PLAN: Mapping[Address, PlannedRun] = {}
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class _NodeReply:
    """Offer of a node, its live runs, and the nodes if the run started there."""

    offer: NodeOffer
    live: frozenset[str]
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _PlacedRun:
    """A run placed by this process."""

    job: Address
    key: str
    compute: Compute
    nodes: tuple[str, ...]


class RunPlacer:
    """Places the runs of one apply; thread-safe.

    Reserves the resources of runs placed before, and of those still to be placed by the plan.
    """

    def __init__(
        self, agents: Agents, store: MirrorStore, planned: Mapping[Address, PlannedRun] = _NO_PLAN
    ) -> None:
        self._agents = agents
        self._store = store
        self._planned = planned
        self._lock = threading.Lock()
        self._placed_runs: list[_PlacedRun] = []

    def place_run(
        self,
        cluster: RecordedResource,
        job: Address,
        key: str,
        compute: Compute,
        listings: Sequence[str],
        among: Sequence[str] | None = None,
        *,
        excluded: Set[str] = frozenset(),
        replaced_key: str | None = None,
        resumed: bool = False,
    ) -> tuple[Node, ...]:
        """Return a run's nodes by rank: those of an earlier start, or the best.

        ``among`` restricts the choice to node ids, without quarantined and ``excluded`` ones. The resources of the live run ``replaced_key``
        count as free. TrainctlError if there are too few nodes; NodeUnreachable also if an earlier
        attempt (``resumed``) may have started the run on an unreachable node.
        """
        nodes, barred = nodes_of(cluster), quarantined(cluster)
        unusable = excluded | barred.keys()
        single = len(nodes) == 1 == compute.node_count and not unprovisioned_nodes(cluster)
        if single and not unusable:
            return nodes
        by_id = {node.id: node for node in nodes}
        reclaimed = nodes_taken_back(self._agents, cluster)
        nodes = tuple(node for node in nodes if node.id not in reclaimed)
        replies = self._query(cluster, nodes, key, replaced_key, compute, listings)
        reachable = {reply.offer.node for reply in replies}
        before = next((reply.nodes for reply in replies if reply.nodes), ())
        if before and all(node in by_id for node in before):
            return tuple(by_id[node] for node in before)
        if resumed and len(replies) < len(nodes):
            raise _maybe_started_error(nodes, reachable)
        among = [node.id for node in nodes if among is None or node.id in among]
        allowed = [
            reply
            for reply in replies
            if reply.offer.node in among and reply.offer.node not in unusable
        ]
        with self._lock:
            chosen = assign_nodes(compute, [self._remaining_offer(job, reply) for reply in allowed])
            if len(chosen) < compute.node_count:
                for node in barred:
                    raise quarantine_error(job, compute.node_count, node, barred[node].reason)
                raise _too_few_nodes_error(cluster, compute, reachable)
            self._placed_runs.append(_PlacedRun(job, key, compute, chosen))
        return tuple(by_id[node] for node in chosen)

    def withdraw(self, key: str) -> None:
        """Free the resources reserved for a run, to place it again."""
        with self._lock:
            self._placed_runs = [run for run in self._placed_runs if run.key != key]

    def _remaining_offer(self, job: Address, reply: _NodeReply) -> NodeOffer:
        """Subtract the resources of placed runs not yet live, and of planned runs."""
        offer = reply.offer
        for placed_run in self._placed_runs:
            if offer.node in placed_run.nodes and placed_run.key not in reply.live:
                offer = reserve(offer, placed_run.compute)
        placed = {job, *(placed_run.job for placed_run in self._placed_runs)}
        for address, planned in self._planned.items():
            if address not in placed and offer.node in planned.nodes:
                offer = reserve(offer, planned.compute)
        own = self._planned.get(job)
        return replace(offer, planned=own is not None and offer.node in own.nodes)

    def _query(
        self,
        cluster: RecordedResource,
        nodes: Sequence[Node],
        key: str,
        replaced_key: str | None,
        compute: Compute,
        listings: Sequence[str],
    ) -> list[_NodeReply]:
        """Return the replies of reachable nodes; raise the first error if there are none."""
        files = self._files(listings)
        digests = sorted({file.sha256 for some in files.values() for file in some})

        def query(node: Node) -> _NodeReply | NodeError:
            agent = self._agents.of(cluster.provider, node)
            request = FreeResourcesRequest(
                root=node.root,
                key=key,
                replaced_key=replaced_key,
                declared=node.gpus,
                accelerators=[compute.gpu_kind] if compute.gpu_kind else [],
                cached=CacheQueryRequest(
                    **cache_target(node, cluster.cluster_spec),
                    listings=[*files],
                    blobs=digests,
                    room=bool(files),
                ),
            )
            try:
                response = agent.call(FREE_RESOURCES, request, timeout=QUERY_SECONDS)
            except NodeError as error:
                return error
            cached = response["cached"] or CacheQueryResponse(trees=[], blobs=[])
            offer = NodeOffer(
                node.id,
                response["gpus"],
                len(response["live"]),
                _cached_bytes(files, cached),
                response["cpus"],
                response["memory"],
                _space_for(files, cached),
            )
            return _NodeReply(offer, frozenset(response["live"]), tuple(response["nodes"] or ()))

        results = each(query, nodes, _AT_ONCE)
        replies = [result for result in results if isinstance(result, _NodeReply)]
        if not replies and results:
            raise next(result for result in results if isinstance(result, NodeError))
        return replies

    def _files(self, listings: Sequence[str]) -> dict[str, Sequence[ListedFile]]:
        loaded = [(listing_id, self._store.load_listing(listing_id)) for listing_id in listings]
        return {listing_id: listing.files for listing_id, listing in loaded if listing is not None}


def _cached_bytes(files: Mapping[str, Sequence[ListedFile]], cached: CacheQueryResponse) -> int:
    """Return the bytes of the listings' files in the node's cache."""
    trees, blobs = frozenset(cached["trees"]), frozenset(cached["blobs"])
    return sum(
        file.size
        for listing, some in files.items()
        for file in some
        if listing in trees or file.sha256 in blobs
    )


def _space_for(
    files: Mapping[str, Sequence[ListedFile]], cached: CacheQueryResponse
) -> SpaceAvailability:
    """Return whether the node's cache has space for the listings, now or later."""
    held, leased = frozenset(cached.get("leases", ())), frozenset(cached.get("leased", ()))
    missing = sum(
        file.size
        for listing, some in files.items()
        for file in some
        if listing not in held and file.sha256 not in leased
    )
    total = sum(file.size for some in files.values() for file in some)
    return SpaceAvailability.of(missing, total, cached)


def unreachable_nodes_reason(agents: Agents, cluster: RecordedResource, node_count: int) -> str:
    """Return why a multi-node run must wait for unreachable nodes; '' if it needn't."""
    if node_count == 1:
        return ""

    def is_reachable(node: Node) -> bool:
        try:
            request = StatusRequest(root=node.root, keys=[])
            agents.of(cluster.provider, node).call(STATUS, request, timeout=QUERY_SECONDS)
        except NodeError:
            return False
        return True

    nodes = nodes_of(cluster)
    results = zip(nodes, each(is_reachable, nodes, _AT_ONCE), strict=True)
    missing = [node for node, reachable in results if not reachable]
    if len(nodes) - len(missing) >= node_count:
        return ""
    unreachable = ", ".join(node.id for node in (*missing, *unprovisioned_nodes(cluster)))
    if not unreachable:
        return ""
    return f"waits: it needs {node_count} nodes, and {unreachable} can't be reached"


def nodes_taken_back(agents: Agents, cluster: RecordedResource) -> Mapping[str, float]:
    """Return the ids of nodes whose platform takes them back, with the Unix time when it does."""

    def query(node: Node) -> float | None:
        agent = agents.ephemeral_agent(cluster.provider, node)
        try:
            request = InspectNodeRequest(root=node.root, gpus=0)
            report = agent.call(INSPECT, request, timeout=QUERY_SECONDS)["idle_shutdown"]
        except NodeError:
            return None
        return report["taken_back"] if report else None

    nodes = [node for node in nodes_of(cluster) if node.details.get("notice")]
    results = zip(nodes, each(query, nodes, _AT_ONCE), strict=True)
    return {node.id: time for node, time in results if time is not None}


def taken_back_reason(agents: Agents, cluster: RecordedResource, node_count: int) -> str:
    """Return why a run must wait until other machines replace those that are taken back; '' if it needn't."""
    reclaimed = nodes_taken_back(agents, cluster)
    if not reclaimed or len(nodes_of(cluster)) - len(reclaimed) >= node_count:
        return ""
    return f"waits: the platform takes back {', '.join(sorted(reclaimed))}"


def leader_addresses(node: Node, reported: Sequence[str]) -> list[str]:
    """Return a node's IP addresses: the declared one, then those it reports."""
    if node.address == "local":
        return [_LOOPBACK]
    declared = [node.address] if _is_ip_address(node.address) else []
    return list(dict.fromkeys([*declared, *filter(_is_ip_address, reported)]))


def _is_ip_address(address: str) -> bool:
    try:
        ip_address(address)
    except ValueError:
        return False
    return True


def _maybe_started_error(nodes: Sequence[Node], reachable: Set[str]) -> NodeUnreachable:
    missing = [node.id for node in nodes if node.id not in reachable]
    return NodeUnreachable(
        f"an earlier attempt may have started it on {', '.join(missing)}, which is unreachable",
        f"Apply again when the node is reachable. If it is permanently gone: trainctl nodes forget {missing[0]}.",
    )


def _too_few_nodes_error(
    cluster: RecordedResource, compute: Compute, reachable: Set[str]
) -> TrainctlError:
    """Return a retryable error if unreachable nodes may be enough."""
    nodes = (*nodes_of(cluster), *unprovisioned_nodes(cluster))
    unreachable = [node.id for node in nodes if node.id not in reachable]
    if unreachable:
        needed = "1 node is" if compute.node_count == 1 else f"{compute.node_count} nodes are"
        return NodeUnreachable(
            f"{needed} needed, and {', '.join(unreachable)} can't be reached",
            "Apply again when the nodes are reachable, or lower compute.node_count.",
        )
    kind = f"{compute.gpu_kind} " if compute.gpu_kind else ""
    return TrainctlError(
        f"{compute.node_count} nodes with {compute.gpus or 'no'} {kind}GPUs are needed, but {cluster.address} has fewer",
        "Lower compute.node_count or compute.accelerator.",
        code="too-few-nodes",
    )
