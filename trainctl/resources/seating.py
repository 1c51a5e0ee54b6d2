"""Asking the nodes of a cluster what they have free, and choosing those that a run gets."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from trainctl.errors import NodeError, NodeUnreachable, TrainctlError
from trainctl.ledger.state import Recorded
from trainctl.model.files import ListedFile
from trainctl.plan.placement import Offer, Wanted, place, with_run
from trainctl.plan.values import GpuFacts
from trainctl.resources.agents import Agents, nodes_of
from trainctl.resources.node_cache import at
from trainctl.resources.run_control import LOOK_SECONDS
from trainctl.spi.provider import Node
from trainctl.weights.mirror.port import Mirror

_AT_ONCE = 16
_HERE = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class _Said:
    """What a node said: its offer, the keys of its live runs, and the nodes of the run in question if it was started there before."""

    offer: Offer
    live: frozenset[str]
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Taken:
    """A run that this process has placed."""

    key: str
    wanted: Wanted
    nodes: tuple[str, ...]


class Seating:
    """Places the runs of one apply, each knowing of those that were placed before it; safe to use from many threads."""

    def __init__(self, agents: Agents, mirror: Mirror) -> None:
        self._agents = agents
        self._mirror = mirror
        self._lock = threading.Lock()
        self._taken: list[_Taken] = []

    def seats(
        self,
        cluster: Recorded,
        key: str,
        attributes: Mapping[str, Any],
        listings: Sequence[str],
        among: Sequence[str] | None = None,
    ) -> tuple[Node, ...]:
        """The nodes of a run, by rank: those on which it was started before, or the best of those that can be asked now.

        ``among`` are the only ones that it may get, by id. TrainctlError if there are not enough.
        """
        nodes = nodes_of(cluster)
        wanted = Wanted.by(attributes)
        if len(nodes) == 1 == wanted.nodes:
            return nodes
        by_id = {node.id: node for node in nodes}
        said = self._ask(cluster, nodes, key, wanted, listings)
        before = next((one.nodes for one in said if one.nodes), ())
        if before and all(node in by_id for node in before):
            return tuple(by_id[node] for node in before)
        offered = [one for one in said if among is None or one.offer.node in among]
        with self._lock:
            chosen = place(wanted, [self._as_taken(one) for one in offered])
            if len(chosen) < wanted.nodes:
                raise _too_few(cluster, wanted, len(offered), len(nodes))
            self._taken.append(_Taken(key, wanted, chosen))
        return tuple(by_id[node] for node in chosen)

    def _as_taken(self, said: _Said) -> Offer:
        """The offer less what was placed there and has not begun there yet."""
        offer = said.offer
        for one in self._taken:
            if offer.node in one.nodes and one.key not in said.live:
                offer = with_run(offer, one.wanted)
        return offer

    def _ask(
        self,
        cluster: Recorded,
        nodes: Sequence[Node],
        key: str,
        wanted: Wanted,
        listings: Sequence[str],
    ) -> list[_Said]:
        """What those that can be asked say. Where none can, the first one's error."""
        files = self._files(listings)
        digests = sorted({file.sha256 for some in files.values() for file in some})

        def ask(node: Node) -> _Said | NodeError:
            agent = self._agents.of(cluster.provider, node)
            request = {
                "root": node.root,
                "key": key,
                "declared": node.gpus,
                "accelerators": [wanted.kind] if wanted.kind else [],
                "cached": {
                    **at(node, cluster.attributes),
                    "listings": list(files),
                    "blobs": digests,
                },
            }
            try:
                found = agent.call("vacancy", request, timeout=LOOK_SECONDS)
            except NodeError as error:
                return error
            gpus = [GpuFacts(one["name"], tuple(one["is"]), one["free"]) for one in found["gpus"]]
            offer = Offer(
                node.id, tuple(gpus), len(found["live"]), _bytes_there(files, found["cached"])
            )
            return _Said(offer, frozenset(found["live"]), tuple(found["nodes"] or ()))

        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="seats") as pool:
            answers = list(pool.map(ask, nodes))
        said = [one for one in answers if isinstance(one, _Said)]
        if not said:
            raise next(one for one in answers if isinstance(one, NodeError))
        return said

    def _files(self, listings: Sequence[str]) -> dict[str, tuple[ListedFile, ...]]:
        known = [(one, self._mirror.load_listing(one)) for one in listings]
        return {one: listing.files for one, listing in known if listing is not None}


def _bytes_there(
    files: Mapping[str, Sequence[ListedFile]], cached: Mapping[str, Sequence[str]]
) -> int:
    trees, blobs = frozenset(cached["trees"]), frozenset(cached["blobs"])
    return sum(
        file.size
        for listing, some in files.items()
        for file in some
        if listing in trees or file.sha256 in blobs
    )


def leader_addresses(node: Node, facts: Mapping[str, Any]) -> list[str]:
    """Where the other ranks may reach a node, the likeliest first: its declared address if that is a number, then those it reports."""
    if node.address == "local":
        return [_HERE]
    declared = [node.address] if _is_number(node.address) else []
    reported = [str(one) for one in facts.get("addresses") or () if _is_number(str(one))]
    return list(dict.fromkeys([*declared, *reported]))


def _is_number(address: str) -> bool:
    try:
        ip_address(address)
    except ValueError:
        return False
    return True


def _too_few(cluster: Recorded, wanted: Wanted, asked: int, nodes: int) -> TrainctlError:
    if asked < nodes:
        return NodeUnreachable(
            f"{wanted.nodes} nodes are wanted, and {asked} of {nodes} of {cluster.address} can be asked now",
            "Apply again once they can be reached.",
        )
    return TrainctlError(
        f"{wanted.nodes} nodes with {wanted.gpus or 'no'} {wanted.kind} GPUs are wanted, and {cluster.address} has fewer",
        "Lower compute.node_count or compute.accelerator.",
        code="too-few-nodes",
    )
