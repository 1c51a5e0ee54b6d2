"""List and end machines that the state doesn't have."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from trainctl.base.parallel import each
from trainctl.errors import NodeError
from trainctl.model.address import Kind
from trainctl.operations.machines.nodes import declared_clusters
from trainctl.operations.workspace import Workspace
from trainctl.plugin_api.machines import ListsMachines, Machine
from trainctl.plugin_api.provider import ClusterSettings
from trainctl.resources.clusters import provider_cluster
from trainctl.resources.orphans import OrphanedMachine, cost_since_launch, is_orphaned

_AT_ONCE = 16


def find_orphans(workspace: Workspace, lineages: Sequence[str] = ()) -> list[OrphanedMachine]:
    """List machines that the state doesn't have, by provider and launch.

    Those of other states are included, as such a state may be lost. ``lineages`` selects some; '' is this state's.
    """
    found: dict[tuple[str, str], Machine] = {}
    for name, cluster in _clusters(workspace):
        provider = workspace.provider(name)
        if isinstance(provider, ListsMachines):
            found |= {(name, machine.id): machine for machine in provider.machines(cluster)}
    # Read the state last: an apply records the key of a machine before it creates it.
    state, now = workspace.ledger.state(), time.time()
    selected = {lineage or state.lineage for lineage in lineages}
    orphans = [
        OrphanedMachine(
            name, machine, machine.lineage == state.lineage, cost_since_launch(machine, now)
        )
        for (name, _), machine in found.items()
        if is_orphaned(state, machine) and (not selected or machine.lineage in selected)
    ]
    return sorted(orphans, key=lambda orphan: (orphan.provider, orphan.machine.launched_at or 0.0))


def unlisted_providers(workspace: Workspace) -> list[str]:
    """Return the providers of the state and manifest that create machines and can't list them."""
    names = {name for name, _ in _clusters(workspace)}
    providers = {name: workspace.provider(name) for name in sorted(names)}
    return [
        name
        for name, provider in providers.items()
        if provider.capabilities.creates_machines and not isinstance(provider, ListsMachines)
    ]


def end_machines(workspace: Workspace, orphans: Sequence[OrphanedMachine]) -> list[OrphanedMachine]:
    """Delete the machines; return them with the error of each that could not be deleted."""

    def end(orphan: OrphanedMachine) -> OrphanedMachine:
        provider = workspace.provider(orphan.provider)
        try:
            if isinstance(provider, ListsMachines):
                provider.end(orphan.machine)
        except NodeError as error:
            return replace(orphan, error=error.summary)
        return replace(orphan, ended=True)

    return each(end, orphans, _AT_ONCE)


def _clusters(workspace: Workspace) -> Iterator[tuple[str, ClusterSettings]]:
    """Return the providers and settings of all recorded and declared clusters."""
    recorded = workspace.ledger.state().resources.values()
    clusters = [item for item in recorded if item.address.kind is Kind.CLUSTER]
    for item in (*clusters, *declared_clusters(workspace).values()):
        yield item.provider, provider_cluster(item.address.name, item.cluster_spec)
