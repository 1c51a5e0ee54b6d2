"""Contents of recorded training caches, by the nodes' own summaries."""

from __future__ import annotations

from trainctl.base.parallel import each
from trainctl.base.protocol.caches import CACHE_STATE, CacheStateRequest
from trainctl.errors import NodeError
from trainctl.ledger.state import Recorded, State
from trainctl.model.address import Address, Kind
from trainctl.model.json_form import from_json
from trainctl.operations.workspace import Workspace
from trainctl.plan.caches import too_full
from trainctl.plan.values import CacheFacts
from trainctl.resources.caches import keeper
from trainctl.resources.run_control import LOOK_SECONDS

_ASKED_AT_ONCE = 10


def look_at_caches(
    workspace: Workspace, state: State, parallelism: int, *, only_sized: bool = False
) -> dict[Address, tuple[CacheFacts, ...]]:
    """Of each cache whose node answers, its directories; ``only_sized``: of those that have a size alone."""
    caches = [
        cache
        for address, cache in state.resources.items()
        if address.kind is Kind.CACHE and (cache.cache_spec.size or not only_sized)
    ]

    def ask(cache: Recorded) -> tuple[CacheFacts, ...]:
        try:
            return _ask(workspace, state, cache)
        except NodeError:
            return ()  # reported with the cluster

    answers = zip(caches, each(ask, caches, parallelism), strict=True)
    return {cache.address: facts for cache, facts in answers if facts}


def full_caches(workspace: Workspace) -> list[str]:
    """Of each recorded cache that holds more than it is meant to, a sentence that says so."""
    state = workspace.ledger.state()
    found = []
    for address, facts in look_at_caches(workspace, state, _ASKED_AT_ONCE, only_sized=True).items():
        size = state.resources[address].cache_spec.size
        found.append(too_full(address, size, facts[0]))
    return [one for one in found if one]


def _ask(workspace: Workspace, state: State, cache: Recorded) -> tuple[CacheFacts, ...]:
    kept = keeper(cache, state.resources.get)
    if kept is None:
        return ()
    owner = cache.address.name
    request = CacheStateRequest(
        root=kept.node.root,
        lineage=state.lineage,
        caches=[{"directory": one, "owner": owner} for one in kept.directories],
    )
    agent = workspace.agents.to_look(kept.provider, kept.node)
    found = agent.call(CACHE_STATE, request, timeout=LOOK_SECONDS)["caches"]
    return tuple(from_json(CacheFacts, one) for one in found)
