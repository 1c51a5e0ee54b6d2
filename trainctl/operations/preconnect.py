"""Connect to nodes before the first request."""

from __future__ import annotations

import contextlib
from itertools import islice

from trainctl.errors import TrainctlError
from trainctl.ledger.state import State
from trainctl.model.address import Kind, of_kind
from trainctl.operations.directories import default_state_url, directory_of
from trainctl.operations.survey import SurveyOptions
from trainctl.operations.workspace import Workspace
from trainctl.resources.agents import nodes_of

_NODE_USERS = frozenset({Kind.JOB, Kind.CACHE})


def connect_early(workspace: Workspace, options: SurveyOptions) -> None:
    """Connect to the nodes of the default state, before reading the manifest.

    Reading the manifest takes longer than logging in. Does nothing if trust can't be read.
    """
    url = default_state_url(workspace.settings.directory)
    if workspace.settings.state_url or not directory_of(url, "state").is_dir():
        return
    with contextlib.suppress(TrainctlError):  # reported when the state is read for a plan
        _ = workspace.trust
        connect(workspace, workspace.ledger_at(url).state(), options)


def connect(workspace: Workspace, state: State, options: SurveyOptions) -> None:
    """Start logging in to recorded nodes and starting programs there.

    Doesn't wait; errors are reported by the first request.
    """
    if options.offline or not options.refresh:
        return
    from trainctl.operations.mirrors import is_on_host, locate_host

    used = {
        item.attributes.get("cluster")
        for address, item in state.external.items()
        if address.kind in _NODE_USERS
    }
    weights = of_kind(state.external, Kind.WEIGHTS)
    urls = {str(item.outputs.get("mirror", "")) for item in weights}
    with contextlib.suppress(TrainctlError):
        nodes = (
            (cluster.provider, node)
            for cluster in of_kind(state.external, Kind.CLUSTER)
            if cluster.address.name in used or not workspace.agents.shares_disk(cluster.provider)
            for node in nodes_of(cluster)
        )
        for provider, node in islice(nodes, options.parallelism):
            workspace.agents.of(provider, node, ephemeral=True).open()
        for url in sorted(filter(is_on_host, urls)):
            place = locate_host(url, None, workspace.provider, state.resources.get)
            workspace.agents.of(place.provider, place.node, ephemeral=True).open()
