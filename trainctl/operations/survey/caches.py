"""Contents of recorded training caches, by the nodes' own summaries."""

from __future__ import annotations

from trainctl.base.parallel import each
from trainctl.base.protocol.caches import CACHE_STATE, CacheStatesRequest
from trainctl.errors import NodeError
from trainctl.ledger.state import RecordedResource, State
from trainctl.model.address import Address, Kind
from trainctl.model.json_codec import from_json
from trainctl.operations.workspace import Workspace
from trainctl.plan.caches import cache_full_warning
from trainctl.plan.values import CacheFacts
from trainctl.resources.caches import find_cache_location
from trainctl.resources.run_control import QUERY_SECONDS

_AT_ONCE = 10


def survey_caches(
    workspace: Workspace, state: State, parallelism: int, *, only_sized: bool = False
) -> dict[Address, tuple[CacheFacts, ...]]:
    """Of each cache whose node answers, its directories; ``only_sized``: of those that have a size alone."""
    caches = [
        cache
        for address, cache in state.resources.items()
        if address.kind is Kind.CACHE and (cache.cache_spec.size or not only_sized)
    ]

    def ask(cache: RecordedResource) -> tuple[CacheFacts, ...]:
        try:
            return _query_cache(workspace, state, cache)
        except NodeError:
            return ()  # reported with the cluster

    answers = zip(caches, each(ask, caches, parallelism), strict=True)
    return {cache.address: facts for cache, facts in answers if facts}


def full_cache_warnings(workspace: Workspace) -> list[str]:
    """Of each recorded cache that holds more than it is meant to, a sentence that says so."""
    state = workspace.ledger.state()
    found = []
    for address, facts in survey_caches(workspace, state, _AT_ONCE, only_sized=True).items():
        size = state.resources[address].cache_spec.size
        found.append(cache_full_warning(address, size, facts[0]))
    return [one for one in found if one]


def _query_cache(
    workspace: Workspace, state: State, cache: RecordedResource
) -> tuple[CacheFacts, ...]:
    location = find_cache_location(cache, state.resources.get)
    if location is None:
        return ()
    owner = cache.address.name
    request = CacheStatesRequest(
        root=location.node.root,
        lineage=state.lineage,
        caches=[{"directory": directory, "owner": owner} for directory in location.directories],
    )
    agent = workspace.agents.ephemeral_agent(location.provider, location.node)
    found = agent.call(CACHE_STATE, request, timeout=QUERY_SECONDS)["caches"]
    return tuple(from_json(CacheFacts, one) for one in found)
