"""Query the offers for clusters whose machines are still to be created."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from trainctl.base.parallel import each
from trainctl.errors import NodeError
from trainctl.model.address import Address
from trainctl.model.diagnostics import Diagnostic, error
from trainctl.operations.workspace import Workspace
from trainctl.plugin_api.offers import Offer, OffersMachines
from trainctl.plugin_api.provider import Node
from trainctl.resources.clusters import provider_cluster


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
