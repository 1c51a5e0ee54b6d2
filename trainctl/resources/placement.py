"""Choose the nodes of a run, and check them before it starts."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from ipaddress import ip_address
from typing import TYPE_CHECKING

from trainctl.apply.step import ApplyStep
from trainctl.base.lazy_dataclass import replace
from trainctl.base.listing import ListedFile
from trainctl.base.parallel import each
from trainctl.base.protocol.host import (
    ERROR,
    FAULT,
    FREE_RESOURCES,
    INSPECT,
    PREFLIGHT,
    PREFLIGHT_PORTS,
    WARNING,
    DiskNeeds,
    Finding,
    FreeResources,
    FreeResourcesRequest,
    InspectNodeRequest,
    PortOfRank,
    PreflightPortsRequest,
    PreflightPortsResponse,
    PreflightRequest,
    PreflightResponse,
    make_finding,
)
from trainctl.base.protocol.runs import STATUS, StatusRequest
from trainctl.base.protocol.weights import CacheQueryRequest, CacheQueryResponse
from trainctl.errors import NodeError, NodeUnreachable, TrainctlError
from trainctl.ledger.state import RecordedResource
from trainctl.model.address import Address
from trainctl.model.specs.job_spec import Compute
from trainctl.plan.placement import NodeOffer, PlannedRun, SpaceAvailability, assign_nodes, reserve
from trainctl.plan.quarantine import entries, quarantine_error, quarantined
from trainctl.plugin_api.provider import Node
from trainctl.resources.agents import Agents, nodes_of, unprovisioned_nodes
from trainctl.resources.clusters import cache_target
from trainctl.resources.runs.run_control import QUERY_SECONDS

if TYPE_CHECKING:
    from trainctl.store.store import MirrorStore

_AT_ONCE = 16
_NO_PLAN: Mapping[Address, PlannedRun] = {}


_Reply = tuple[NodeOffer, FreeResources]
"""Offer of a node, and what the node reports."""


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
        self._placed: dict[str, tuple[Address, PlannedRun]] = {}
        """Runs placed by this process, by key."""

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
        reachable = {offer.node for offer, _ in replies}
        before = next((reply["nodes"] for _, reply in replies if reply["nodes"]), ())
        if before and all(node in by_id for node in before):
            return tuple(by_id[node] for node in before)
        if resumed and len(replies) < len(nodes):
            missing = [node.id for node in nodes if node.id not in reachable]
            raise NodeUnreachable(
                f"an earlier attempt may have started it on {', '.join(missing)}, which is unreachable",
                f"Apply again when the node is reachable. If it is permanently gone: trainctl nodes forget {missing[0]}.",
            )
        among = [node.id for node in nodes if among is None or node.id in among]
        allowed = [
            reply for reply in replies if reply[0].node in among and reply[0].node not in unusable
        ]
        with self._lock:
            chosen = assign_nodes(
                compute, [self._remaining_offer(job, *reply) for reply in allowed]
            )
            if len(chosen) < compute.node_count:
                for node in barred:
                    raise quarantine_error(job, compute.node_count, node, barred[node].reason)
                raise _too_few_nodes_error(cluster, compute, reachable)
            self._placed[key] = job, PlannedRun(compute, frozenset(chosen))
        return tuple(by_id[node] for node in chosen)

    def withdraw(self, key: str) -> None:
        """Free the resources reserved for a run, to place it again."""
        with self._lock:
            self._placed.pop(key, None)

    def _remaining_offer(self, job: Address, offer: NodeOffer, reply: FreeResources) -> NodeOffer:
        """Subtract the resources of placed runs not yet live, and of planned runs."""
        placed_jobs = {job}
        for key, (placed_job, placed) in self._placed.items():
            placed_jobs.add(placed_job)
            if offer.node in placed.nodes and key not in reply["live"]:
                offer = reserve(offer, placed.compute)
        for address, planned in self._planned.items():
            if address not in placed_jobs and offer.node in planned.nodes:
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
    ) -> list[_Reply]:
        """Return the replies of reachable nodes; raise the first error if there are none."""
        loaded = [(listing_id, self._store.load_listing(listing_id)) for listing_id in listings]
        files = {listing_id: listing.files for listing_id, listing in loaded if listing is not None}
        digests = sorted({file.sha256 for some in files.values() for file in some})

        def query(node: Node) -> _Reply | NodeError:
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
            bytes_there, space = _cached_bytes(files, cached)
            offer = NodeOffer(
                node=node.id,
                gpus=response["gpus"],
                runs=len(response["live"]),
                bytes_there=bytes_there,
                cpus=response["cpus"],
                memory=response["memory"],
                space=space,
            )
            return offer, response

        results = each(query, nodes, _AT_ONCE)
        replies = [result for result in results if not isinstance(result, NodeError)]
        if not replies and results:
            raise next(result for result in results if isinstance(result, NodeError))
        return replies


def _cached_bytes(
    files: Mapping[str, Sequence[ListedFile]], cached: CacheQueryResponse
) -> tuple[int, SpaceAvailability]:
    """Return the listings' bytes in the node's cache, and whether it has space for them, now or later."""

    def size(listings: Collection[str], blobs: Collection[str]) -> int:
        trees, digests = frozenset(listings), frozenset(blobs)
        present = (
            file.size
            for listing, some in files.items()
            for file in some
            if listing in trees or file.sha256 in digests
        )
        return sum(present)

    total = sum(file.size for some in files.values() for file in some)
    missing = total - size(cached.get("leases", ()), cached.get("leased", ()))
    return size(cached["trees"], cached["blobs"]), SpaceAvailability.of(missing, total, cached)


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
        agent = agents.of(cluster.provider, node, ephemeral=True)
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
        return ["127.0.0.1"]
    declared = [node.address] if _is_ip_address(node.address) else []
    return list(dict.fromkeys([*declared, *filter(_is_ip_address, reported)]))


def _is_ip_address(address: str) -> bool:
    try:
        ip_address(address)
    except ValueError:
        return False
    return True


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


_PROBE_BYTES = 64 * 2**20
_MAX_SKEW_SECONDS = 30.0
_FRESH_SECONDS = 20.0

Quarantine = Callable[[Address, str, str], None]
"""Quarantine a node: address of its cluster, node id, reason."""


class PreflightChecker:
    """Checks nodes in parallel; quarantines those with faults."""

    def __init__(self, agents: Agents, quarantine: Quarantine) -> None:
        self._agents = agents
        self._quarantine = quarantine
        self._passed: dict[tuple[object, ...], float] = {}
        """When nodes passed which check, so that runs of a sweep don't repeat it."""

    def check(
        self,
        step: ApplyStep,
        key: str,
        cluster: RecordedResource,
        nodes: Sequence[Node],
        listings: Sequence[str],
    ) -> dict[str, NodeError]:
        """Return an error for each node, by id, that the run must avoid; notify of warnings.

        Nodes on which the run has started are not checked.
        """
        compute, now = step.job_spec.compute, time.monotonic()
        volume = step.job_spec.runtime.checkpointing_config.volume_size_gib
        host = (compute.gpus, compute.gpu_kind, step.job_spec.in_container, volume)
        kind = (*host, *sorted(listings))
        checks = [(node.id, *kind) for node in nodes]
        if len(nodes) == 1 and now - self._passed.get(checks[0], -_FRESH_SECONDS) < _FRESH_SECONDS:
            return {}
        reports = each(
            lambda node: self._query(step, key, cluster, node, listings), nodes, _AT_ONCE
        )
        if any(report["started"] for report in reports):
            return {}
        findings = {
            node.id: report["findings"] for node, report in zip(nodes, reports, strict=True)
        }
        failed = any(
            finding["level"] != WARNING for each_ in findings.values() for finding in each_
        )
        if len(nodes) > 1 and not failed:
            drivers = [report["driver"] for report in reports]
            _add_differences("driver", "driver is", nodes, drivers, findings)
            self._check_ports(cluster, nodes, reports, findings)
        errors = self._errors(step, cluster, findings)
        self._passed.update(dict.fromkeys(checks if not errors else (), now))
        return errors

    def _query(
        self,
        step: ApplyStep,
        key: str,
        cluster: RecordedResource,
        node: Node,
        listings: Sequence[str],
    ) -> PreflightResponse:
        """Query a node; add a finding if its clock differs."""
        compute, checkpoints = step.job_spec.compute, step.job_spec.runtime.checkpointing_config
        sizes = (step.needed(item.address).weights_spec.bytes for item in step.job_spec.weights)
        size = sum(_PROBE_BYTES if size is None else size for size in sizes)
        sent_at = time.time()
        disks: DiskNeeds = {
            "data": node.data,
            "listings": [*listings],
            "probe_bytes": min(_PROBE_BYTES, size),
            "checkpoint_bytes": (checkpoints.volume_size_gib or 0) * 2**30,
        }
        request = PreflightRequest(
            **cache_target(node, cluster.cluster_spec),
            **disks,
            key=key,
            gpus={"count": compute.gpus, "kind": compute.gpu_kind, "declared": node.gpus},
            in_container=step.job_spec.in_container,
            ports=node.ports if compute.node_count > 1 else None,
        )
        agent = self._agents.of(cluster.provider, node)
        response = agent.call(PREFLIGHT, request, timeout=QUERY_SECONDS)
        now = response["time"]
        skew = max(sent_at - now, now - time.time())  # before or after both ends of the call
        if skew > _MAX_SKEW_SECONDS:
            summary = f"its clock is {skew:.0f} s {'behind' if now < sent_at else 'ahead'}"
            remedy = "Run chrony or ntpd: TLS and presigned URLs fail."
            response["findings"].append(make_finding("clock", WARNING, summary, remedy))
        return response

    def _check_ports(
        self,
        cluster: RecordedResource,
        nodes: Sequence[Node],
        reports: Sequence[PreflightResponse],
        findings: Mapping[str, list[Finding]],
    ) -> None:
        """Have each node connect to all others; blame those with the most failed connections."""
        token, hosts = os.urandom(8).hex(), []
        for node, report in zip(nodes, reports, strict=True):
            addresses = leader_addresses(node, report["addresses"])
            hosts.append(PortOfRank(addresses=addresses, port=report["port"] or 0))

        def connect(rank: int) -> PreflightPortsResponse:
            node = nodes[rank]
            request = PreflightPortsRequest(root=node.root, rank=rank, token=token, hosts=hosts)
            agent = self._agents.of(cluster.provider, node)
            return agent.call(PREFLIGHT_PORTS, request, timeout=QUERY_SECONDS)

        responses, pairs = _failed_pairs(connect, len(nodes))
        if pairs:  # one call may have begun too late
            responses, pairs = _failed_pairs(connect, len(nodes))
        while pairs:
            counts = Counter(rank for pair in pairs for rank in pair)
            worst = max(counts, key=lambda rank: (counts[rank], rank))
            source, target = min(pair for pair in pairs if worst in pair)
            host, port = nodes[target], hosts[target]["port"]
            tried = ", ".join(hosts[target]["addresses"]) or "no address"
            name = host.id if source == worst else "it"
            by = "it" if source == worst else nodes[source].id
            findings[nodes[worst].id].append(
                make_finding(
                    "ports",
                    ERROR,
                    f"{by} cannot connect to {name} at port {port} ({tried})",
                    f"Open {host.ports or 'all ports'} of {host.id} in its firewall, or set ports: and address: of the host.",
                )
            )
            pairs = {pair for pair in pairs if worst not in pair}
        mtus = [response["mtu"] for response in responses]
        _add_differences("mtu", "interface has MTU", nodes, mtus, findings)

    def _errors(
        self, step: ApplyStep, cluster: RecordedResource, findings: Mapping[str, list[Finding]]
    ) -> dict[str, NodeError]:
        accepted = {
            node: entry.reason for node, entry in entries(cluster).items() if entry.released
        }
        errors: dict[str, NodeError] = {}
        for node, found in findings.items():
            for finding in found:
                text, remedy = finding["summary"], finding["remedy"]
                if finding["level"] == WARNING or accepted.get(node) == text:
                    step.notify(f"warning: node {node}: {text}. {remedy}")
                    continue
                if finding["level"] == FAULT:
                    self._quarantine(cluster.address, node, text)
                    remedy += f" To use the node again: trainctl nodes release {node}."
                error = NodeError(f"node {node}: {text}", remedy, code="preflight-failed")
                if finding["check"] == "port":
                    error.code = "no-free-port"
                errors.setdefault(node, error)
        return errors


def _add_differences(
    check: str,
    subject: str,
    nodes: Sequence[Node],
    values: Sequence[object],
    findings: Mapping[str, list[Finding]],
) -> None:
    """Add a warning for each node with another value than the first node's, if both are known."""
    for node, value in zip(nodes, values, strict=True):
        if values[0] and value and value != values[0]:
            summary = f"its {subject} {value}, that of {nodes[0].id} {values[0]}"
            remedy = f"Use the same {check.upper() if check == 'mtu' else check} on all nodes."
            findings[node.id].append(make_finding(check, WARNING, summary, remedy))


def _failed_pairs(
    connect: Callable[[int], PreflightPortsResponse], count: int
) -> tuple[list[PreflightPortsResponse], set[tuple[int, int]]]:
    """Have all ranks connect; return the responses, and pairs of ranks without a connection."""
    responses = each(connect, range(count), count)
    return responses, {
        (rank, to)
        for rank, found in enumerate(responses)
        for to in found["unreached"]
        if not responses[to]["problem"]  # it can't listen, as its port was taken meanwhile
    }
