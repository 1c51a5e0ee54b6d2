"""Ask batch systems what is free and when jobs would start, and query offers of machines. Submits nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from trainctl.base.parallel import each
from trainctl.errors import NodeError
from trainctl.ledger.state import State
from trainctl.model.address import Address, Kind
from trainctl.model.diagnostics import Diagnostic, error
from trainctl.model.run import RunRecord
from trainctl.model.specs.resource import DesiredResource
from trainctl.operations.workspace import Workspace
from trainctl.plan.values import BatchFacts
from trainctl.plugin_api import discovery
from trainctl.plugin_api.machines import Offer, OffersMachines
from trainctl.plugin_api.provider import Node
from trainctl.plugin_api.scheduler import BatchForecast, BatchRequest, SchedulesJobs
from trainctl.resources.agents import recorded_or_planned
from trainctl.resources.clusters import provider_cluster
from trainctl.resources.runs.batch_runs import batch_request

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
