"""Survey nodes, batch systems and offers of machines. Submits nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trainctl.base.parallel import each
from trainctl.base.protocol.host import (
    FACTS,
    Facts,
    FactsRequest,
    FreeResourcesRequest,
    MissingHostRequirements,
)
from trainctl.errors import NodeError, TrainctlError
from trainctl.inputs.environment import HostRequirements
from trainctl.ledger.state import State
from trainctl.manifest.checkout import is_from_checkout
from trainctl.model.address import Address, Kind
from trainctl.model.delivery import HOPS, DeliveryRecord, ServingCapability
from trainctl.model.diagnostics import Diagnostic, error, warning
from trainctl.model.run import RunRecord
from trainctl.model.specs.job_spec import JobSpec
from trainctl.model.specs.resource import ClusterSpec, DesiredResource
from trainctl.operations.survey.weights import TierQuery, WeightsSurveyResult
from trainctl.operations.workspace import Workspace
from trainctl.plan.checks import image_of
from trainctl.plan.machines import gpu_problems, machine_problems
from trainctl.plan.values import (
    BatchFacts,
    ImageSelection,
    MirrorProximity,
    NodeFacts,
)
from trainctl.plan.weights import mirroring_rate, transfer_rate
from trainctl.plugin_api import discovery
from trainctl.plugin_api.machines import Offer, OffersMachines
from trainctl.plugin_api.provider import Capabilities, Node, ResourceStatus
from trainctl.plugin_api.scheduler import BatchForecast, BatchRequest, SchedulesJobs
from trainctl.resources.agents import recorded_or_planned
from trainctl.resources.clusters import cache_target, provider_cluster
from trainctl.resources.runs.batch_runs import batch_request
from trainctl.resources.runs.run_control import QUERY_SECONDS, runs_of
from trainctl.store.survey import SourceSurvey


@dataclass(slots=True)
class NodesSurveyResult:
    """Planned nodes of each cluster, their prices, and the facts of reachable nodes."""

    names: dict[Address, tuple[str, ...]] = field(default_factory=dict)
    nodes: dict[Address, tuple[Node, ...]] = field(default_factory=dict)
    """Recorded or planned nodes of each cluster."""
    prices: dict[str, float] = field(default_factory=dict)
    capabilities: dict[str, Capabilities] = field(default_factory=dict)
    facts: dict[Address, tuple[NodeFacts, ...]] = field(default_factory=dict)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    scheduled: set[Address] = field(default_factory=set)
    """Clusters with a batch system."""
    unreachable_nodes: set[str] = field(default_factory=set)
    """Ids; a diagnostic has the reason of each."""


@dataclass(frozen=True, slots=True)
class _JobRequirements:
    """A job's requirements of a host; ``host`` is (venv, program)."""

    mounts: tuple[str, ...]
    sources: tuple[str, ...]
    host: tuple[str | None, str] | None
    accelerator: str
    image: ImageSelection | None


@dataclass(frozen=True, slots=True)
class _NodeQuery:
    """A query of one node."""

    provider: str
    node: Node
    jobs: Mapping[Address, _JobRequirements]
    weights: Mapping[Address, SourceSurvey]
    rates: Mapping[str, float]
    cluster: ClusterSpec
    one_of_several: bool
    mirror_serving: ServingCapability


def survey_nodes(
    workspace: Workspace,
    state: State,
    weights: WeightsSurveyResult,
    needs: Mapping[Address, HostRequirements],
    *,
    is_queried: Callable[[str], bool],
    parallelism: int,
) -> NodesSurveyResult:
    """Query the nodes of all clusters with jobs; ``is_queried`` filters by provider."""
    result = NodesSurveyResult()
    queries: dict[Address, list[_NodeQuery]] = {}
    installed = frozenset(discovery.plugin_names(discovery.PROVIDERS))
    result.capabilities = provider_capabilities(workspace, state, installed)
    for address, resource in workspace.desired.resources.items():
        if address.kind is Kind.CLUSTER and resource.provider in installed:
            planned = planned_nodes(workspace, resource)
            recorded = state.resources.get(address)
            nodes = tuple(recorded_or_planned(node, recorded) for node in planned)
            result.names[address] = tuple(node.name for node in nodes)
            result.nodes[address] = nodes
            prices = {node.id: node.price_per_hour for node in planned}
            result.prices |= {node: price for node, price in prices.items() if price is not None}
            queries[address] = _cluster_queries(workspace, state, weights, needs, resource, nodes)
    allowed = [
        (address, query)
        for address, of_cluster in queries.items()
        for query in of_cluster
        if is_queried(query.provider)
        and (query.node.key or not result.capabilities[query.provider].creates_machines)
    ]
    replies = each(lambda pair: _query_node(workspace, pair[1]), allowed, parallelism)
    for (address, query), reply in zip(allowed, replies, strict=True):
        if reply is None:
            continue
        result.diagnostics += _diagnose(reply, address, query.node)
        if isinstance(reply, NodeFacts):
            result.facts[address] = (*result.facts.get(address, ()), reply)
        else:
            result.unreachable_nodes.add(query.node.id)
    for address, of_cluster in queries.items():
        if result.capabilities[workspace.desired.resources[address].provider].schedules_jobs:
            result.scheduled.add(address)
            continue
        queried, facts = [query.node for query in of_cluster], result.facts.get(address, ())
        result.diagnostics += gpu_problems(workspace.desired, address, queried, facts)
        result.diagnostics += machine_problems(workspace.desired, address, len(queried), facts)
    return result


def provider_capabilities(
    workspace: Workspace, state: State, installed: Set[str]
) -> dict[str, Capabilities]:
    """Return the capabilities of the installed providers of desired and recorded clusters."""
    desired, recorded = workspace.desired.resources, state.resources
    providers = {
        *(item.provider for address, item in desired.items() if address.kind is Kind.CLUSTER),
        *(item.provider for address, item in recorded.items() if address.kind is Kind.CLUSTER),
    }
    return {name: workspace.provider(name).capabilities for name in providers & installed}


def _cluster_queries(
    workspace: Workspace,
    state: State,
    weights: WeightsSurveyResult,
    needs: Mapping[Address, HostRequirements],
    cluster: DesiredResource,
    nodes: Sequence[Node],
) -> list[_NodeQuery]:
    jobs = {job.address: job.job_spec for job in workspace.desired.jobs_on(cluster.address)}
    if not jobs:
        return []
    requirements = {
        job: _job_requirements(spec, needs.get(job), workspace.settings.directory)
        for job, spec in jobs.items()
    }
    needed = {item.address for job in jobs.values() for item in job.weights}
    surveys = {item: weights.surveys[item] for item in sorted(needed) if item in weights.surveys}
    rates = _transfer_rates(state, cluster.address)
    spec, several = cluster.cluster_spec, len(nodes) > 1
    return [
        _NodeQuery(
            cluster.provider,
            node,
            requirements,
            surveys,
            rates,
            spec,
            several,
            weights.mirror.serving,
        )
        for node in nodes
    ]


def _diagnose(
    reply: NodeFacts | TrainctlError, cluster: Address, node: Node
) -> Iterator[Diagnostic]:
    """Yield a warning if the node can't be queried, an error if it doesn't exist yet and can't be created."""
    if isinstance(reply, TrainctlError):
        hint = "The plan uses the recorded state." if node.root else ""
        detail = f"{reply.detail} {hint}".strip()
        yield warning(reply.summary, detail, address=str(cluster), code=reply.code)
    elif reply.reported["unusable"] and not node.key:
        yield error(
            f"cannot create node {node.id}: {reply.reported['unusable']}",
            "Make the directory writable, or use another: dir: of the host, or cache: {node: {dir: …}}.",
            address=str(cluster),
            code=NodeError.default_code,
        )


def planned_nodes(workspace: Workspace, cluster: DesiredResource) -> tuple[Node, ...]:
    """Return the nodes of a cluster by its settings alone."""
    settings = provider_cluster(cluster.address.name, cluster.cluster_spec)
    return tuple(workspace.provider(cluster.provider).plan(settings))


def _job_requirements(
    job: JobSpec, needs: HostRequirements | None, directory: Path
) -> _JobRequirements:
    host, image = None, image_of(job)
    if needs is not None and not job.runtime.requirements:
        venv = job.runtime.venv
        own = venv and is_from_checkout(Path(venv).expanduser(), directory)
        # A plan does not execute an interpreter that came with the manifest.
        host = (venv, "" if own else needs.program)
    return _JobRequirements(
        tuple(place for place in job.mount_locations if place.startswith("/") and image is None),
        tuple(mount.host_path for mount in job.mounts),
        host,
        job.compute.gpu_kind,
        image,
    )


def _transfer_rates(state: State, cluster: Address) -> dict[str, float]:
    """Return bytes per second, by hop, of the largest recorded transfers."""
    runs = [
        run
        for address, job in state.resources.items()
        if address.kind is Kind.JOB and job.job_spec.cluster == cluster.name
        for run in runs_of(job)
    ]
    onto_nodes = [(run.delivered, run.phases.get("delivering", 0.0)) for run in runs]
    rates = {"upstream": mirroring_rate(state), "mirror": transfer_rate(onto_nodes)}
    rows = [DeliveryRecord.from_json(row) for run in runs for row in run.deliveries]
    for path, hop in HOPS.items():
        measured = transfer_rate((row.moved, row.seconds) for row in rows if row.path == path)
        rates[hop] = measured or rates.get(hop)
    return {hop: rate for hop, rate in rates.items() if rate}


def _query_node(workspace: Workspace, query: _NodeQuery) -> NodeFacts | TrainctlError | None:
    """Return facts of a node, or why it can't be queried; None if its machine is gone."""
    provider, node = workspace.provider(query.provider), query.node
    try:
        if not node.key:
            node = provider.locate(provider_cluster(node.cluster, query.cluster), node)
        if provider.capabilities.creates_machines and provider.read(node) is ResourceStatus.MISSING:
            return None
    except NodeError as error:
        return error
    agent = workspace.agents.ephemeral_agent(query.provider, node)
    jobs = query.jobs.values()
    hosts = sorted({job.host for job in jobs if job.host}, key=repr)
    images = list(dict.fromkeys(job.image for job in jobs if job.image))
    target = cache_target(node, query.cluster)
    tiers = TierQuery(target, query.weights)
    kinds = sorted({job.accelerator for job in jobs} - {""})
    free_resources = FreeResourcesRequest(root=node.root, declared=node.gpus, accelerators=kinds)
    request = FactsRequest(
        **target,
        data=node.data,
        mounts=sorted({place for job in jobs for place in job.mounts}),
        sources=sorted({path for job in jobs for path in job.sources}),
        accelerators=kinds,
        images=[{"image": image.image, "engine": image.engine} for image in images],
        hosts=[{"venv": venv, "program": program} for venv, program in hosts],
        cached=tiers.request,
        free_resources=free_resources if query.one_of_several else None,
    )
    try:
        facts = agent.call(FACTS, request, timeout=QUERY_SECONDS)
        counts = tiers.counted(facts["cached"] or {"trees": [], "blobs": []})
    except NodeError as error:
        return error
    return NodeFacts(
        node.id,
        facts,
        target,
        node.gpus,
        tiers={address: count.tiers for address, count in counts.items()},
        claims={address: count.claim for address, count in counts.items()},
        rates=query.rates,
        images=dict(zip(images, facts["images"], strict=True)),
        missing_requirements=_missing_requirements(
            query.jobs, facts, dict(zip(hosts, facts["hosts"], strict=True))
        ),
        mirror=_mirror_proximity(workspace, query, node, facts),
    )


def _mirror_proximity(
    workspace: Workspace, query: _NodeQuery, node: Node, facts: Facts
) -> MirrorProximity:
    mirror = workspace.mirror
    if not query.weights:
        return MirrorProximity()
    if mirror.in_a_bucket:
        return MirrorProximity(sees=False, host=mirror.url)
    try:
        place = mirror.place
    except NodeError:
        return MirrorProximity(sees=False, host="the mirror's host")
    host = place.node.id if place else ""
    if workspace.agents.sees(query.provider, node, place):
        return MirrorProximity(host=host)
    serving = ServingCapability(**facts["serving"])
    reason = query.mirror_serving.blocked_reason(serving)
    return MirrorProximity(
        sees=False, host=host, unserved_reason=reason, tls=query.mirror_serving.tls
    )


def _missing_requirements(
    jobs: Mapping[Address, _JobRequirements],
    facts: Facts,
    hosts: Mapping[Any, MissingHostRequirements],
) -> dict[Address, tuple[str, ...]]:
    absent = frozenset(facts["absent"])
    missing = {
        address: (
            *(f"directory {path} to mount not found" for path in job.sources if path in absent),
            *(hosts[job.host]["lacks"] if job.host else ()),
        )
        for address, job in jobs.items()
    }
    return {address: problems for address, problems in missing.items() if problems}


_AT_ONCE = 8


def survey_batch_systems(
    workspace: Workspace, state: State, is_queried: Callable[[str], bool]
) -> dict[Address, BatchFacts]:
    """Query the batch systems of all clusters with jobs; ``is_queried`` filters by provider."""
    installed = frozenset(discovery.plugin_names(discovery.PROVIDERS))
    clusters = [
        resource
        for address, resource in workspace.desired.resources.items()
        if address.kind is Kind.CLUSTER
        and resource.provider in installed
        and workspace.agents.scheduler(resource.provider) is not None
        and is_queried(resource.provider)
        and workspace.desired.jobs_on(address)
    ]
    facts = each(lambda cluster: _query(workspace, state, cluster), clusters, _AT_ONCE)
    return {cluster.address: found for cluster, found in zip(clusters, facts, strict=True)}


def _query(workspace: Workspace, state: State, cluster: DesiredResource) -> BatchFacts:
    provider = workspace.provider(cluster.provider)
    assert isinstance(provider, SchedulesJobs)  # noqa: S101 - see survey_batch_systems
    settings = provider_cluster(cluster.address.name, cluster.cluster_spec)
    planned = next(iter(workspace.provider(cluster.provider).plan(settings)))
    node = recorded_or_planned(planned, state.resources.get(cluster.address))
    requests: dict[BatchRequest, list[Address]] = {}
    for job in workspace.desired.jobs_on(cluster.address):
        request = batch_request(job.address, job.job_spec, RunRecord("", 0, ""))
        requests.setdefault(replace(request, name="trainctl", label=""), []).append(job.address)
    try:
        partitions = provider.partitions(settings, node)
        answers = each(
            lambda request: provider.forecast(settings, node, request), [*requests], _AT_ONCE
        )
    except NodeError as error:
        return BatchFacts(problem=error.summary)
    forecasts: dict[Address, BatchForecast] = {
        job: answer for jobs, answer in zip(requests.values(), answers, strict=True) for job in jobs
    }
    return BatchFacts(tuple(partitions), forecasts)


def survey_offers(
    workspace: Workspace,
    nodes: Mapping[Address, Sequence[Node]],
    *,
    online: bool,
    parallelism: int,
) -> dict[Address, tuple[Offer, ...]]:
    """Return the offers of each cluster of ``nodes`` that has nodes without a machine."""
    missing = [
        address for address, of_cluster in nodes.items() if any(not node.key for node in of_cluster)
    ]

    def offers(address: Address) -> tuple[Offer, ...] | None:
        resource = workspace.desired.resources[address]
        provider = workspace.provider(resource.provider)
        if not isinstance(provider, OffersMachines):
            return None
        settings = provider_cluster(address.name, resource.cluster_spec)
        try:
            return tuple(provider.offers(settings, online=online))
        except NodeError:
            return tuple(provider.offers(settings, online=False))

    found = zip(missing, each(offers, missing, parallelism), strict=True)
    return {address: of_cluster for address, of_cluster in found if of_cluster is not None}


def offered_prices(
    nodes: Mapping[Address, Sequence[Node]], offers: Mapping[Address, Sequence[Offer]]
) -> dict[str, float]:
    """Return the price of each node without a machine, by id: that of the first offer."""
    first = {address: of_cluster[0] for address, of_cluster in offers.items() if of_cluster}
    return {
        node.id: offer.price_per_hour
        for address, offer in first.items()
        for node in nodes[address]
        if not node.key and offer.price_per_hour is not None
    }


def offer_problems(offers: Mapping[Address, Sequence[Offer]]) -> Iterator[Diagnostic]:
    """Yield an error for each cluster without any offer."""
    for address, of_cluster in offers.items():
        if not of_cluster:
            yield error(
                f"no machine is offered for {address}",
                "Change its machine types, zones or price limit.",
                address=str(address),
                code="machine-capacity",
            )
