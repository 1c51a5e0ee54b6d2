"""Survey storage: the mirror, training caches, and the weights caches of nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from trainctl.base.listing import ResolvedSource
from trainctl.base.parallel import each
from trainctl.base.protocol.method import NodeCacheRequest
from trainctl.base.protocol.training import CACHE_STATE, CacheStatesRequest
from trainctl.base.protocol.weights import CacheQueryRequest, CacheQueryResponse
from trainctl.errors import NodeError, SourceInterrupted, SourceUnavailable, StorageError
from trainctl.ledger.state import RecordedResource, State, origin_of
from trainctl.model.address import Address, Kind
from trainctl.model.delivery import SERVES_ALL, MirrorSite, ServingCapability
from trainctl.model.diagnostics import Diagnostic, warning
from trainctl.model.json_codec import from_json
from trainctl.operations.workspace import Workspace
from trainctl.plan.caches import cache_full_warning
from trainctl.plan.values import CacheFacts, TierFacts
from trainctl.resources.caches import find_cache_location
from trainctl.resources.runs.run_control import QUERY_SECONDS
from trainctl.store.survey import SourceSurvey
from trainctl.weights.mirrors import site_of

_TRANSIENT_CODES = (SourceUnavailable.default_code, SourceInterrupted.default_code)
"""Error codes of a temporarily unavailable bucket."""

DAMAGED_REFERENCE = "Until it is repaired, mirror gc deletes nothing. The next apply of its project writes it again; if that project no longer exists, delete the reference."


@dataclass(frozen=True, slots=True)
class MirrorSurveyResult:
    """Surveys of the sources, in their order, and the recorded listings that exist.

    Empty if the mirror was not queried, or is unreachable (``problem``).
    """

    queried: bool = False
    sources: tuple[SourceSurvey, ...] = ()
    listings: frozenset[str] = frozenset()
    problem: Diagnostic | None = None
    serving: ServingCapability = SERVES_ALL
    """How the mirror's host can serve weights to nodes."""
    free: int | None = None
    warnings: tuple[Diagnostic, ...] = ()
    unusable: str = ""
    """Why nothing can be stored in the mirror."""
    site: MirrorSite | None = None
    """None if unknown."""


def survey_mirror(
    workspace: Workspace, state: State, sources: Sequence[ResolvedSource] = ()
) -> MirrorSurveyResult:
    """Survey the sources and recorded listings in the mirror, with one request if any."""
    listings = [
        str(resource.outputs["listing"])
        for resource in state.resources.values()
        if resource.address.kind is Kind.WEIGHTS and resource.outputs.get("listing")
    ]
    if not (sources or listings):
        return MirrorSurveyResult(queried=True)
    try:
        survey = workspace.mirror.store.survey(sources, listings, state.lineage)
    except (NodeError, StorageError) as failure:
        if isinstance(failure, StorageError) and failure.code not in _TRANSIENT_CODES:
            raise
        summary = f"the mirror is unreachable: {failure.summary}"
        detail = f"{failure.detail} The plan uses the recorded contents of the mirror.".strip()
        return MirrorSurveyResult(queried=True, problem=warning(summary, detail, code=failure.code))
    return MirrorSurveyResult(
        True,
        survey.sources,
        survey.listings,
        serving=workspace.mirror.serving,
        free=survey.free,
        warnings=tuple(
            warning(summary, DAMAGED_REFERENCE, code="mirror-corrupt") for summary in survey.damaged
        ),
        unusable=survey.unusable,
        site=site_of(workspace.mirror),
    )


_AT_ONCE = 10


def survey_caches(
    workspace: Workspace, state: State, parallelism: int, *, only_sized: bool = False
) -> dict[Address, tuple[CacheFacts, ...]]:
    """Query the directories of recorded training caches (``only_sized``: with a size)."""
    caches = [
        cache
        for address, cache in state.resources.items()
        if address.kind is Kind.CACHE and (cache.cache_spec.size or not only_sized)
    ]

    def query(cache: RecordedResource) -> tuple[CacheFacts, ...]:
        try:
            return _query_cache(workspace, state, cache)
        except NodeError:
            return ()  # reported with the cluster

    results = zip(caches, each(query, caches, parallelism), strict=True)
    return {cache.address: facts for cache, facts in results if facts}


def full_cache_warnings(workspace: Workspace) -> list[str]:
    """Return a warning for each recorded cache that exceeds its size."""
    state = workspace.ledger.state()
    warnings = []
    for address, facts in survey_caches(workspace, state, _AT_ONCE, only_sized=True).items():
        size = state.resources[address].cache_spec.size
        warnings.append(cache_full_warning(address, size, facts[0]))
    return [text for text in warnings if text]


def _query_cache(
    workspace: Workspace, state: State, cache: RecordedResource
) -> tuple[CacheFacts, ...]:
    location = find_cache_location(cache, state.resources.get)
    if location is None:
        return ()
    owner = origin_of(state.resources.get, cache.address).name
    request = CacheStatesRequest(
        root=location.node.root,
        lineage=state.lineage,
        caches=[{"directory": directory, "owner": owner} for directory in location.directories],
    )
    agent = workspace.agents.ephemeral_agent(location.provider, location.node)
    rows = agent.call(CACHE_STATE, request, timeout=QUERY_SECONDS)["caches"]
    return tuple(from_json(CacheFacts, row) for row in rows)


class TierCount(NamedTuple):
    """Bytes of weights by nearest tier, and those not leased by live runs on the node."""

    tiers: TierFacts
    claim: int


@dataclass(frozen=True, slots=True)
class TierQuery:
    """A query of weights in a node's cache."""

    cache: NodeCacheRequest
    weights: Mapping[Address, SourceSurvey]

    @property
    def request(self) -> CacheQueryRequest:
        """The request to the node."""
        rows = (row for survey in self.weights.values() for row in survey.files)
        return {
            **self.cache,
            "listings": [survey.listing for survey in self.weights.values() if survey.listing],
            "blobs": sorted({sha256 for sha256, _, _ in rows if sha256}),
            "room": bool(self.weights),
        }

    def counted(self, response: CacheQueryResponse) -> dict[Address, TierCount]:
        """Count the bytes of each of the weights."""
        present, leased = frozenset(response["blobs"]), frozenset(response.get("leased", ()))
        shared = frozenset(response.get("shared", ()))
        return {
            address: _count_tiers(
                survey, survey.listing in response["trees"], present, leased, shared
            )
            for address, survey in self.weights.items()
        }


def _count_tiers(
    survey: SourceSurvey,
    in_tree: bool,
    present: Set[str | None],
    leased: Set[str | None],
    shared: Set[str | None],
) -> TierCount:
    """Count each file in its nearest tier: node, cluster's cache, mirror, upstream."""
    tiers = {"node": 0, "cluster": 0, "mirror": 0, "upstream": 0}
    claim = 0
    for sha256, size, mirrored in survey.files:
        on_node = in_tree or sha256 in present
        remote = "mirror" if mirrored else "upstream"
        tiers["node" if on_node else "cluster" if sha256 in shared else remote] += size
        if not (on_node and sha256 in leased):
            claim += size
    return TierCount(TierFacts(**tiers), claim)
