"""Survey nodes, batch systems and offers of machines. Submits nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from trainctl.base.lazy_dataclass import dataclass, field, replace
from trainctl.base.parallel import each
from trainctl.errors import NodeError, TrainctlError
from trainctl.ledger.state import State
from trainctl.model.address import Address, Kind, of_kind
from trainctl.model.delivery import HOPS, DeliveryRecord, ServingCapability
from trainctl.model.diagnostics import Diagnostic, error, warning
from trainctl.model.run import RunRecord
from trainctl.model.specs.job_spec import JobSpec
from trainctl.model.specs.resource import DesiredResource
from trainctl.operations.survey.weights import TierQuery, WeightsSurveyResult
from trainctl.operations.workspace import Workspace
from trainctl.plan.checks import image_of
from trainctl.plan.machines import gpu_problems, machine_problems
from trainctl.plan.values import (
    BatchFacts,
    ClusterFacts,
    ImageSelection,
    MirrorProximity,
    NodeFacts,
)
from trainctl.plan.weights import mirroring_rate, transfer_rate
from trainctl.plugin_api import discovery
from trainctl.plugin_api.provider import ClusterSettings, Node, Provider, ResourceStatus
from trainctl.resources.agents import recorded_or_planned
from trainctl.resources.clusters import cache_target
from trainctl.resources.runs.run_control import QUERY_SECONDS, runs_of
from trainctl.store.survey import SourceSurvey

if TYPE_CHECKING:
    from trainctl.base.protocol.host import Facts, JobNeeds
    from trainctl.plugin_api.machines import Offer
    from trainctl.plugin_api.scheduler import BatchForecast, BatchRequest


@dataclass(slots=True)
class NodesSurveyResult:
    """Nodes of each cluster, and the facts of those that were reached."""

    facts: ClusterFacts
    diagnostics: list[Diagnostic] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _JobRequirements:
    """A job's requirements of a host; ``program`` is (venv, program)."""

    mounts: tuple[str, ...]
    sources: tuple[str, ...]
    program: tuple[str | None, str] | None
    accelerator: str
    image: ImageSelection | None

    @classmethod
    def of(cls, job: JobSpec, program: tuple[str | None, str] | None) -> _JobRequirements:
        """Return the requirements of a job."""
        image = image_of(job)
        places = () if image else job.mount_locations
        mounts = tuple(place for place in places if place.startswith("/"))
        sources = tuple(mount.host_path for mount in job.mounts)
        return cls(mounts, sources, program, job.compute.gpu_kind, image)


@dataclass(frozen=True, slots=True)
class _ClusterQuery:
    """What to ask each of the ``nodes`` of a cluster with jobs."""

    cluster: DesiredResource
    nodes: tuple[Node, ...]
    jobs: Mapping[Address, _JobRequirements]
    weights: Mapping[Address, SourceSurvey]
    rates: Mapping[str, float]
    mirror_serving: ServingCapability


def survey_nodes(
    workspace: Workspace,
    state: State,
    weights: WeightsSurveyResult,
    programs: Mapping[Address, tuple[str | None, str]],
    is_queried: Callable[[str], bool],
    parallelism: int,
) -> NodesSurveyResult:
    """Query the nodes of all clusters with jobs; ``is_queried`` filters by provider."""
    queries: dict[Address, _ClusterQuery] = {}
    providers = providers_in_use(workspace, state)
    capabilities = {name: found.capabilities for name, found in providers.items()}
    result = NodesSurveyResult(ClusterFacts(capabilities=capabilities))
    facts = result.facts
    for address, resource in workspace.desired.external.items():
        if address.kind is Kind.CLUSTER and resource.provider in providers:
            settings = ClusterSettings(address.name, resource.cluster_spec.settings)
            planned = tuple(providers[resource.provider].plan(settings))
            recorded = state.resources.get(address)
            nodes = tuple(recorded_or_planned(node, recorded) for node in planned)
            facts.planned_nodes[address] = nodes
            for node in (*nodes, *planned):
                if node.price_per_hour is not None:
                    facts.prices[node.id] = node.price_per_hour
            jobs = {job.address: job.job_spec for job in workspace.desired.jobs_on(address)}
            if jobs:
                needed = {item.address for job in jobs.values() for item in job.weights}
                queries[address] = _ClusterQuery(
                    resource,
                    nodes,
                    {
                        job: _JobRequirements.of(spec, programs.get(job))
                        for job, spec in jobs.items()
                    },
                    {item: weights.surveys[item] for item in sorted(needed & {*weights.surveys})},
                    _transfer_rates(state, address),
                    weights.mirror.serving,
                )
    _query_nodes(workspace, queries.values(), result, is_queried, parallelism)
    for address in facts.planned_nodes:
        cluster = workspace.desired.resources[address]
        if capabilities[cluster.provider].schedules_jobs:
            facts.scheduled.add(address)
        elif address in queries:
            nodes, reached = queries[address].nodes, facts.nodes.get(address, ())
            on_cluster = workspace.desired.jobs_on(address)
            result.diagnostics += gpu_problems(cluster, on_cluster, nodes, reached)
            result.diagnostics += machine_problems(address, on_cluster, len(nodes), reached)
    return result


def _query_nodes(
    workspace: Workspace,
    queries: Collection[_ClusterQuery],
    result: NodesSurveyResult,
    is_queried: Callable[[str], bool],
    parallelism: int,
) -> None:
    """Add the facts of the nodes: a warning for one that can't be queried, an error for one that can't be created."""
    allowed = [
        (query, node)
        for query in queries
        for node in query.nodes
        if is_queried(query.cluster.provider)
        and (node.key or not result.facts.capabilities[query.cluster.provider].creates_machines)
    ]
    replies = each(lambda pair: _query_node(workspace, *pair), allowed, parallelism)
    for (query, node), reply in zip(allowed, replies, strict=True):
        address = query.cluster.address
        if isinstance(reply, TrainctlError):
            hint = "The plan uses the recorded state." if node.root else ""
            detail = f"{reply.detail} {hint}".strip()
            result.diagnostics += [
                warning(reply.summary, detail, address=str(address), code=reply.code)
            ]
            result.facts.unreachable_nodes.add(node.id)
        elif reply is not None:
            unusable = reply.reported["unusable"]
            if unusable and not node.key:
                result.diagnostics += [
                    error(
                        f"cannot create node {node.id}: {unusable}",
                        "Make the directory writable, or use another: dir: of the host, or cache: {node: {dir: …}}.",
                        address=str(address),
                        code=NodeError.default_code,
                    )
                ]
            reached = result.facts.nodes
            reached[address] = (*reached.get(address, ()), reply)


def providers_in_use(workspace: Workspace, state: State) -> dict[str, Provider]:
    """Return the installed providers of desired and recorded clusters, by name."""
    installed = frozenset(discovery.plugin_names(discovery.PROVIDERS))
    desired, recorded = workspace.desired.external, state.external
    clusters = (*of_kind(desired, Kind.CLUSTER), *of_kind(recorded, Kind.CLUSTER))
    names = {cluster.provider for cluster in clusters}
    return {name: workspace.provider(name) for name in names & installed}


def _transfer_rates(state: State, cluster: Address) -> dict[str, float]:
    """Return bytes per second, by hop, of the largest recorded transfers."""
    runs = [
        run
        for job in of_kind(state.external, Kind.JOB)
        if job.job_spec.cluster == cluster.name
        for run in runs_of(job)
    ]
    onto_nodes = [(run.delivered, run.phases.get("delivering", 0.0)) for run in runs]
    rates = {"upstream": mirroring_rate(state), "mirror": transfer_rate(onto_nodes)}
    rows = [DeliveryRecord.from_json(row) for run in runs for row in run.deliveries]
    for path, hop in HOPS.items():
        measured = transfer_rate((row.moved, row.seconds) for row in rows if row.path == path)
        rates[hop] = measured or rates.get(hop)
    return {hop: rate for hop, rate in rates.items() if rate}


def _query_node(
    workspace: Workspace, query: _ClusterQuery, node: Node
) -> NodeFacts | TrainctlError | None:
    """Return facts of a node, or why it can't be queried; None if its machine is gone."""
    from trainctl.base.protocol.host import FACTS, FactsRequest, FreeResourcesRequest

    name, spec = query.cluster.provider, query.cluster.cluster_spec
    provider = workspace.provider(name)
    try:
        if not node.key:
            node = provider.locate(ClusterSettings(node.cluster, spec.settings), node)
        if provider.capabilities.creates_machines and provider.read(node) is ResourceStatus.MISSING:
            return None
    except NodeError as error:
        return error
    agent = workspace.agents.of(name, node, ephemeral=True)
    jobs = query.jobs.values()
    programs = sorted({job.program for job in jobs if job.program}, key=repr)
    images = list(dict.fromkeys(job.image for job in jobs if job.image))
    target = cache_target(node, spec)
    tiers = TierQuery(target, query.weights)
    kinds = sorted({job.accelerator for job in jobs} - {""})
    free_resources = FreeResourcesRequest(root=node.root, declared=node.gpus, accelerators=kinds)
    needs: JobNeeds = {
        "mounts": sorted({place for job in jobs for place in job.mounts}),
        "sources": sorted({path for job in jobs for path in job.sources}),
        "images": [{"image": image.image, "engine": image.engine} for image in images],
        "hosts": [{"venv": venv, "program": program} for venv, program in programs],
    }
    request = FactsRequest(
        **target,
        **needs,
        data=node.data,
        accelerators=kinds,
        cached=tiers.request,
        free_resources=free_resources if len(query.nodes) > 1 else None,
    )
    try:
        facts = agent.call(FACTS, request, timeout=QUERY_SECONDS)
        counts = tiers.counted(facts["cached"] or {"trees": [], "blobs": []})
    except NodeError as error:
        return error
    found = dict(zip(programs, facts["hosts"], strict=True))
    missing = {
        address: (
            *(
                f"directory {path} to mount not found"
                for path in job.sources
                if path in facts["absent"]
            ),
            *(found[job.program]["lacks"] if job.program else ()),
        )
        for address, job in query.jobs.items()
    }
    claims = {address: count.claim for address, count in counts.items()}
    return NodeFacts(
        id=node.id,
        reported=facts,
        cache=target,
        declared_gpus=node.gpus,
        tiers={address: count.tiers for address, count in counts.items()},
        claims=claims,
        rates=query.rates,
        images=dict(zip(images, facts["images"], strict=True)),
        missing_requirements={job: problems for job, problems in missing.items() if problems},
        mirror=_mirror_proximity(workspace, query, node, facts),
    )


def _mirror_proximity(
    workspace: Workspace, query: _ClusterQuery, node: Node, facts: Facts
) -> MirrorProximity:
    mirror = workspace.mirror
    if not query.weights:
        return MirrorProximity()
    if not mirror.on_a_host and mirror.path is None:  # a bucket
        return MirrorProximity(sees=False, host=mirror.url)
    try:
        place = mirror.place
    except NodeError:
        return MirrorProximity(sees=False, host="the mirror's host")
    host = place.node.id if place else ""
    if workspace.agents.sees(query.cluster.provider, node, place):
        return MirrorProximity(host=host)
    serving = ServingCapability(**facts["serving"])
    reason = query.mirror_serving.blocked_reason(serving)
    return MirrorProximity(
        sees=False, host=host, unserved_reason=reason, tls=query.mirror_serving.tls
    )


_AT_ONCE = 8


def survey_batch_systems(
    workspace: Workspace, state: State, is_queried: Callable[[str], bool]
) -> dict[Address, BatchFacts]:
    """Query the batch systems of all clusters with jobs; ``is_queried`` filters by provider."""
    installed = frozenset(discovery.plugin_names(discovery.PROVIDERS))
    clusters = [
        cluster
        for cluster in of_kind(workspace.desired.external, Kind.CLUSTER)
        if cluster.provider in installed
        and workspace.agents.scheduler(cluster.provider) is not None
        and is_queried(cluster.provider)
        and workspace.desired.jobs_on(cluster.address)
    ]
    facts = each(lambda cluster: _query(workspace, state, cluster), clusters, _AT_ONCE)
    return {cluster.address: found for cluster, found in zip(clusters, facts, strict=True)}


def _query(workspace: Workspace, state: State, cluster: DesiredResource) -> BatchFacts:
    from trainctl.plugin_api.scheduler import SchedulesJobs
    from trainctl.resources.runs.batch_runs import batch_request

    provider = workspace.provider(cluster.provider)
    assert isinstance(provider, SchedulesJobs)  # noqa: S101 - see survey_batch_systems
    settings = ClusterSettings(cluster.address.name, cluster.cluster_spec.settings)
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
    parallelism: int,
    *,
    online: bool,
) -> dict[Address, tuple[Offer, ...]]:
    """Return the offers of each cluster of ``nodes`` that has nodes without a machine."""
    from trainctl.plugin_api.machines import OffersMachines

    missing = [
        address for address, of_cluster in nodes.items() if any(not node.key for node in of_cluster)
    ]

    def offers(address: Address) -> tuple[Offer, ...] | None:
        resource = workspace.desired.resources[address]
        provider = workspace.provider(resource.provider)
        if not isinstance(provider, OffersMachines):
            return None
        settings = ClusterSettings(address.name, resource.cluster_spec.settings)
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
