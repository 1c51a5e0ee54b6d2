"""Check the nodes of a run before weights are copied to them and before a gang starts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from secrets import token_hex

from trainctl.apply.step import ApplyStep
from trainctl.base.parallel import each
from trainctl.base.protocol.host import (
    ERROR,
    FAULT,
    PREFLIGHT,
    PREFLIGHT_PORTS,
    WARNING,
    Finding,
    PortOfRank,
    PreflightPortsRequest,
    PreflightPortsResponse,
    PreflightRequest,
    PreflightResponse,
    make_finding,
)
from trainctl.errors import NodeError
from trainctl.ledger.state import RecordedResource
from trainctl.model.address import Address
from trainctl.plan.quarantine import entries
from trainctl.plugin_api.provider import Node
from trainctl.resources.agents import Agents
from trainctl.resources.clusters import cache_target
from trainctl.resources.placement import leader_addresses
from trainctl.resources.runs.run_control import QUERY_SECONDS

_AT_ONCE = 32
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
        compute = step.job_spec.compute
        sizes = (step.needed(item.address).weights_spec.bytes for item in step.job_spec.weights)
        size = sum(_PROBE_BYTES if size is None else size for size in sizes)
        sent_at = time.time()
        request = PreflightRequest(
            **cache_target(node, cluster.cluster_spec),
            data=node.data,
            key=key,
            gpus={"count": compute.gpus, "kind": compute.gpu_kind, "declared": node.gpus},
            in_container=step.job_spec.in_container,
            listings=[*listings],
            probe_bytes=min(_PROBE_BYTES, size),
            checkpoint_bytes=step.job_spec.runtime.checkpointing_config.volume_bytes or 0,
            ports=node.ports if compute.node_count > 1 else None,
        )
        agent = self._agents.of(cluster.provider, node)
        response = agent.call(PREFLIGHT, request, timeout=QUERY_SECONDS)
        response["findings"] += _skew(response["time"], sent_at)
        return response

    def _check_ports(
        self,
        cluster: RecordedResource,
        nodes: Sequence[Node],
        reports: Sequence[PreflightResponse],
        findings: Mapping[str, list[Finding]],
    ) -> None:
        """Have each node connect to all others; blame those with the most failed connections."""
        token, hosts = token_hex(8), []
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
            findings[nodes[worst].id].append(_unreached(worst, pairs, nodes, hosts))
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


def _skew(now: float, sent_at: float) -> list[Finding]:
    """Compare the node's clock with the client's before and after the call."""
    skew = max(sent_at - now, now - time.time())
    if skew <= _MAX_SKEW_SECONDS:
        return []
    summary = f"its clock is {skew:.0f} s {'behind' if now < sent_at else 'ahead'}"
    return [
        make_finding("clock", WARNING, summary, "Run chrony or ntpd: TLS and presigned URLs fail.")
    ]


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


def _unreached(
    rank: int, pairs: set[tuple[int, int]], nodes: Sequence[Node], hosts: Sequence[PortOfRank]
) -> Finding:
    """Return the finding of a node whose connections fail, from it or to it."""
    source, target = min(pair for pair in pairs if rank in pair)
    host, port = nodes[target], hosts[target]["port"]
    tried = ", ".join(hosts[target]["addresses"]) or "no address"
    name = host.id if source == rank else "it"
    by = "it" if source == rank else nodes[source].id
    ports = host.ports or "all ports"
    remedy = f"Open {ports} of {host.id} in its firewall, or set ports: and address: of the host."
    summary = f"{by} cannot connect to {name} at port {port} ({tried})"
    return make_finding("ports", ERROR, summary, remedy)
