"""Connect to nodes before there is anything to ask them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import islice
from typing import Any

from trainctl.base.protocol.code import HAS_CODE
from trainctl.base.protocol.host import FACTS
from trainctl.base.protocol.method import Method
from trainctl.base.protocol.mirrors import MIRROR_SURVEY
from trainctl.base.protocol.runs import START
from trainctl.base.protocol.weights import DELIVER
from trainctl.errors import TrainctlError
from trainctl.ledger.state import RecordedResource, State
from trainctl.model.address import Kind
from trainctl.operations.directories import default_state_url, directory_of
from trainctl.operations.survey import SurveyOptions
from trainctl.operations.workspace import Workspace
from trainctl.resources.agents import nodes_of

_NODE_USERS = frozenset({Kind.JOB, Kind.CACHE})
_TO_PLAN: tuple[Method[Any, Any], ...] = (FACTS,)
_TO_APPLY = (*_TO_PLAN, HAS_CODE, DELIVER, START)


def connect_early(workspace: Workspace, look: SurveyOptions) -> None:
    """As ``connect``, by the state beside the manifest, if there is one: before the manifest is read, which takes longer than to log in.

    If trust can't be read no node is contacted.
    """
    url = default_state_url(workspace.settings.directory)
    if workspace.settings.state_url or not directory_of(url, "state").is_dir():
        return
    with contextlib.suppress(TrainctlError):  # reported when the state is read for a plan
        _ = workspace.trust
        connect(workspace, workspace.ledger_at(url).state(), look)


def connect(workspace: Workspace, state: State, look: SurveyOptions) -> None:
    """Begin to log in to nodes that are recorded, as many as are asked at once, and to start there what will answer.

    Nothing is waited for, and errors are reported when they are asked.
    """
    if look.offline or not look.refresh:
        return
    methods = _TO_APPLY if look.writes_lock else _TO_PLAN
    nodes = (
        (cluster.provider, node)
        for cluster in _clusters_in_use(workspace, state)
        for node in nodes_of(cluster)
    )
    with contextlib.suppress(TrainctlError):
        for provider, node in islice(nodes, look.parallelism):
            workspace.agents.ephemeral_agent(provider, node).open(methods)
        _connect_to_mirrors(workspace, state)


def _connect_to_mirrors(workspace: Workspace, state: State) -> None:
    """Likewise to the hosts of recorded mirrors; loaded while the others are being logged in to."""
    from trainctl.operations.mirrors import is_on_host, locate_host

    kept = {
        str(one.outputs.get("mirror", ""))
        for name, one in state.resources.items()
        if name.kind is Kind.WEIGHTS
    }
    for url in sorted(filter(is_on_host, kept)):
        place = locate_host(url, None, workspace.provider, state.resources.get)
        workspace.agents.ephemeral_agent(place.provider, place.node).open((MIRROR_SURVEY,))


def _clusters_in_use(workspace: Workspace, state: State) -> Iterator[RecordedResource]:
    """The clusters whose nodes are asked: those that jobs or caches use, and that need a login."""
    clusters = [one for name, one in state.resources.items() if name.kind is Kind.CLUSTER]
    used = {
        one.attributes.get("cluster")
        for name, one in state.resources.items()
        if clusters and name.kind in _NODE_USERS
    }
    for cluster in clusters:
        if cluster.address.name in used or not workspace.agents.shares_disk(cluster.provider):
            yield cluster
