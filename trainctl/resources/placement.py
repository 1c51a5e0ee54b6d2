"""Asking the nodes of a cluster what they have free, and choosing those that a run gets."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from ipaddress import ip_address

from trainctl.base.listing import ListedFile
from trainctl.base.parallel import each
from trainctl.base.protocol.host import FREE_RESOURCES, FreeResourcesRequest
from trainctl.base.protocol.runs import STATUS, StatusRequest
from trainctl.base.protocol.weights import CacheQueryRequest, CacheQueryResponse
from trainctl.errors import NodeError, NodeUnreachable, TrainctlError
from trainctl.ledger.state import RecordedResource
from trainctl.model.address import Address
from trainctl.model.specs.job_spec import ComputeSpec
from trainctl.plan.placement import NodeOffer, PlannedRun, SpaceAvailability, assign_nodes, reserve
from trainctl.plan.values import GpuFacts
from trainctl.plugin_api.provider import Node
from trainctl.resources.agents import Agents, nodes_of, unprovisioned_nodes
from trainctl.resources.clusters import cache_target
from trainctl.resources.run_control import QUERY_SECONDS
from trainctl.store.store import MirrorStore

_AT_ONCE = 16
_NO_PLAN: Mapping[Address, PlannedRun] = {}
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class _NodeReply:
    """What a node said: its offer, the keys of its live runs, and the nodes of the run in question if it was started there before."""

    offer: NodeOffer
    live: frozenset[str]
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _PlacedRun:
    """A run that this process has placed."""

    job: Address
    key: str
    wanted: ComputeSpec
    nodes: tuple[str, ...]


class RunPlacer:
    """Places the runs of one apply, each knowing of those that were placed before it, and where it and those that are still to
    come were planned; safe to use from many threads."""

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
        wanted: ComputeSpec,
        listings: Sequence[str],
        among: Sequence[str] | None = None,
        *,
        replaced_key: str | None = None,
        resumed: bool = False,
    ) -> tuple[Node, ...]:
        """The nodes of a run, by rank: those on which it was started before, or the best of those that can be asked now.

        ``among`` are the only ones that it may get, by id; the run with the key ``replaced_key`` makes way for it. TrainctlError if there are not enough; NodeUnreachable also if an
        earlier attempt (``resumed``) may have started it where nobody can ask.
        """
        nodes = nodes_of(cluster)
        if len(nodes) == 1 == wanted.node_count and not unprovisioned_nodes(cluster):
            return nodes
        by_id = {node.id: node for node in nodes}
        said = self._ask(cluster, nodes, key, replaced_key, wanted, listings)
        before = next((one.nodes for one in said if one.nodes), ())
        if before and all(node in by_id for node in before):
            return tuple(by_id[node] for node in before)
        if resumed and len(said) < len(nodes):
            raise _maybe_started_error(nodes, {one.offer.node for one in said})
        offered = [one for one in said if among is None or one.offer.node in among]
        with self._lock:
            chosen = assign_nodes(wanted, [self._remaining_offer(job, one) for one in offered])
            if len(chosen) < wanted.node_count:
                raise _too_few_nodes_error(cluster, wanted, {one.offer.node for one in said})
            self._placed_runs.append(_PlacedRun(job, key, wanted, chosen))
        return tuple(by_id[node] for node in chosen)

    def _remaining_offer(self, job: Address, said: _NodeReply) -> NodeOffer:
        """The offer less what was placed there and has not begun there yet, and what is planned there and was not placed yet."""
        offer = said.offer
        for placed_run in self._placed_runs:
            if offer.node in placed_run.nodes and placed_run.key not in said.live:
                offer = reserve(offer, placed_run.wanted)
        placed = {job, *(placed_run.job for placed_run in self._placed_runs)}
        for address, planned in self._planned.items():
            if address not in placed and offer.node in planned.nodes:
                offer = reserve(offer, planned.wanted)
        own = self._planned.get(job)
        return replace(offer, planned=own is not None and offer.node in own.nodes)

    def _ask(
        self,
        cluster: RecordedResource,
        nodes: Sequence[Node],
        key: str,
        replaced_key: str | None,
        wanted: ComputeSpec,
        listings: Sequence[str],
    ) -> list[_NodeReply]:
        """What those that can be asked say. Where none can, the first one's error."""
        files = self._files(listings)
        digests = sorted({file.sha256 for some in files.values() for file in some})

        def ask(node: Node) -> _NodeReply | NodeError:
            agent = self._agents.of(cluster.provider, node)
            request = FreeResourcesRequest(
                root=node.root,
                key=key,
                replaced_key=replaced_key,
                declared=node.gpus,
                accelerators=[wanted.gpu_kind] if wanted.gpu_kind else [],
                cached=CacheQueryRequest(
                    **cache_target(node, cluster.cluster_spec),
                    listings=[*files],
                    blobs=digests,
                    room=bool(files),
                ),
            )
            try:
                found = agent.call(FREE_RESOURCES, request, timeout=QUERY_SECONDS)
            except NodeError as error:
                return error
            cached = found["cached"] or CacheQueryResponse(trees=[], blobs=[])
            gpus = [GpuFacts(one["name"], tuple(one["is"]), one["free"]) for one in found["gpus"]]
            offer = NodeOffer(
                node.id,
                tuple(gpus),
                len(found["live"]),
                _cached_bytes(files, cached),
                found["cpus"],
                found["memory"],
                _space_for(files, cached),
            )
            return _NodeReply(offer, frozenset(found["live"]), tuple(found["nodes"] or ()))

        answers = each(ask, nodes, _AT_ONCE)
        said = [answer for answer in answers if isinstance(answer, _NodeReply)]
        if not said and answers:
            raise next(answer for answer in answers if isinstance(answer, NodeError))
        return said

    def _files(self, listings: Sequence[str]) -> dict[str, Sequence[ListedFile]]:
        known = [(one, self._store.load_listing(one)) for one in listings]
        return {one: listing.files for one, listing in known if listing is not None}


def _cached_bytes(files: Mapping[str, Sequence[ListedFile]], cached: CacheQueryResponse) -> int:
    """What is there of listings."""
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
    """When there is room for listings."""
    held, leased = frozenset(cached.get("leases", ())), frozenset(cached.get("leased", ()))
    missing = sum(
        file.size
        for listing, some in files.items()
        for file in some
        if listing not in held and file.sha256 not in leased
    )
    total = sum(file.size for some in files.values() for file in some)
    return SpaceAvailability.of(missing, total, cached.get("room"), cached.get("most"))


def unreachable_nodes_reason(agents: Agents, cluster: RecordedResource, wanted: int) -> str:
    """Why a run on several nodes can't have them now: those that are away. Empty if enough can be reached."""
    if wanted == 1:
        return ""

    def there(node: Node) -> bool:
        try:
            request = StatusRequest(root=node.root, keys=[])
            agents.of(cluster.provider, node).call(STATUS, request, timeout=QUERY_SECONDS)
        except NodeError:
            return False
        return True

    nodes = nodes_of(cluster)
    found = zip(nodes, each(there, nodes, _AT_ONCE), strict=True)
    missing = [node for node, answers in found if not answers]
    if len(nodes) - len(missing) >= wanted:
        return ""
    unreachable = ", ".join(node.id for node in (*missing, *unprovisioned_nodes(cluster)))
    return (
        f"waits: it needs {wanted} nodes, and {unreachable} can't be reached" if unreachable else ""
    )


def leader_addresses(node: Node, reported: Sequence[str]) -> list[str]:
    """Where the other ranks may reach a node, the likeliest first: its declared address if that is a number, then those it reports."""
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


def _maybe_started_error(nodes: Sequence[Node], said: Set[str]) -> NodeUnreachable:
    missing = ", ".join(node.id for node in nodes if node.id not in said)
    return NodeUnreachable(
        f"an earlier attempt may have started it on {missing}, which is unreachable",
        f"Apply again when the node is reachable. If it is permanently gone: trainctl nodes forget {missing.partition(',')[0]}.",
    )


def _too_few_nodes_error(
    cluster: RecordedResource, wanted: ComputeSpec, said: Set[str]
) -> TrainctlError:
    """Nodes that are away may have what is wanted; otherwise nothing will have it."""
    unreachable = [
        one.id for one in (*nodes_of(cluster), *unprovisioned_nodes(cluster)) if one.id not in said
    ]
    if unreachable:
        nodes = f"{wanted.node_count} node{'s' if wanted.node_count > 1 else ''}"
        return NodeUnreachable(
            f"{nodes} {'are' if wanted.node_count > 1 else 'is'} needed, and {', '.join(unreachable)} can't be reached",
            "Apply again when the nodes are reachable, or lower compute.node_count.",
        )
    return TrainctlError(
        f"{wanted.node_count} nodes with {wanted.gpus or 'no'} {wanted.gpu_kind + ' ' if wanted.gpu_kind else ''}GPUs are needed, but {cluster.address} has fewer",
        "Lower compute.node_count or compute.accelerator.",
        code="too-few-nodes",
    )
