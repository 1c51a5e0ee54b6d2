"""Survey weights: their sources upstream, the mirror, caches of nodes; and training caches."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import cache, partial
from itertools import repeat
from typing import TYPE_CHECKING

from trainctl.base.lazy_dataclass import dataclass, field, replace
from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.base.listing import ResolvedSource, SourceFile
from trainctl.base.parallel import each
from trainctl.base.protocol.method import NodeCacheRequest
from trainctl.base.units import format_bytes
from trainctl.errors import (
    NodeError,
    SourceInterrupted,
    SourceUnavailable,
    StorageError,
    TrainctlError,
)
from trainctl.ledger.state import RecordedResource, State, origin_of
from trainctl.model.address import Address, Kind, of_kind
from trainctl.model.delivery import SERVES_ALL, MirrorSite, ServingCapability
from trainctl.model.diagnostics import Diagnostic, error, of_error, warning
from trainctl.model.json_codec import from_json
from trainctl.model.single_flight import SingleFlight
from trainctl.model.specs.resource import DesiredResource
from trainctl.operations.directories import cache_home
from trainctl.operations.survey import SurveyOptions
from trainctl.operations.workspace import Workspace
from trainctl.resources.runs.run_control import QUERY_SECONDS
from trainctl.secrets.bucket_credentials import explaining_denials
from trainctl.sources import source_for
from trainctl.store.objects import SPARE_BYTES
from trainctl.store.survey import SourceSurvey, StoreSurvey

if TYPE_CHECKING:
    from trainctl.base.protocol.weights import CacheQueryRequest, CacheQueryResponse
    from trainctl.model.reports import CacheFacts
    from trainctl.plan.values import TierFacts, WeightsFacts
    from trainctl.plugin_api.sources import WeightSource
    from trainctl.weights.lock import LockEntry
    from trainctl.weights.resolution import Resolution, SourceRequest

_SOURCES_AT_ONCE = 32
"""Sources resolved at once, as many as one host is sent requests."""
_TRANSIENT_CODES = (SourceUnavailable.default_code, SourceInterrupted.default_code)
"""Error codes of a temporarily unavailable bucket."""

DAMAGED_REFERENCE = "Until it is repaired, mirror gc deletes nothing. The next apply of its project writes it again; if that project no longer exists, delete the reference."


@dataclass(frozen=True, slots=True)
class MirrorSurveyResult:
    """The survey of the sources and recorded listings; empty if not queried, or unreachable (``problem``)."""

    queried: bool = False
    store: StoreSurvey = StoreSurvey()
    problem: Diagnostic | None = None
    serving: ServingCapability = SERVES_ALL
    """How the mirror's host can serve weights to nodes."""
    site: MirrorSite | None = None
    """None if unknown."""


def survey_mirror(
    workspace: Workspace, state: State, sources: Sequence[ResolvedSource] = ()
) -> MirrorSurveyResult:
    """Survey the sources and recorded listings in the mirror, with one request if any."""
    from trainctl.weights.mirrors import site_of

    listings = [
        str(weights.outputs["listing"])
        for weights in of_kind(state.external, Kind.WEIGHTS)
        if weights.outputs.get("listing")
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
    serving, site = workspace.mirror.serving, site_of(workspace.mirror)
    return MirrorSurveyResult(True, survey, serving=serving, site=site)


_AT_ONCE = 10


def survey_caches(
    workspace: Workspace, state: State, parallelism: int, *, only_sized: bool = False
) -> dict[Address, tuple[CacheFacts, ...]]:
    """Query the directories of recorded training caches (``only_sized``: with a size)."""
    caches = [
        cache
        for address, cache in state.external.items()
        if address.kind is Kind.CACHE and (cache.cache_spec.size or not only_sized)
    ]

    def query(cache: RecordedResource) -> tuple[CacheFacts, ...]:
        from trainctl.base.protocol.training import CACHE_STATE, CacheStatesRequest
        from trainctl.model.reports import CacheFacts
        from trainctl.resources.caches import find_cache_location

        location = find_cache_location(cache, state.resources.get)
        if location is None:
            return ()
        owner = origin_of(state.resources.get, cache.address).name
        request = CacheStatesRequest(
            root=location.node.root,
            lineage=state.lineage,
            caches=[{"directory": directory, "owner": owner} for directory in location.directories],
        )
        try:
            agent = workspace.agents.of(location.provider, location.node, ephemeral=True)
            rows = agent.call(CACHE_STATE, request, timeout=QUERY_SECONDS)["caches"]
        except NodeError:
            return ()  # reported with the cluster
        return tuple(from_json(CacheFacts, row) for row in rows)

    results = zip(caches, each(query, caches, parallelism), strict=True)
    return {cache.address: facts for cache, facts in results if facts}


def full_cache_warnings(workspace: Workspace) -> list[str]:
    """Return a warning for each recorded cache that exceeds its size."""
    state = workspace.ledger.state()
    warnings = []
    for address, facts in survey_caches(workspace, state, _AT_ONCE, only_sized=True).items():
        from trainctl.plan.caches import cache_full_warning

        size = state.resources[address].cache_spec.size
        warnings.append(cache_full_warning(address, size, facts[0]))
    return [text for text in warnings if text]


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
        """Count the bytes of each of the weights, each file in its nearest tier."""
        from trainctl.plan.values import TierFacts

        present, leased = frozenset(response["blobs"]), frozenset(response.get("leased", ()))
        shared = frozenset(response.get("shared", ()))
        counts: dict[Address, TierCount] = {}
        for address, survey in self.weights.items():
            tiers = {"node": 0, "cluster": 0, "mirror": 0, "upstream": 0}
            claim = 0
            in_tree = survey.listing in response["trees"]
            for sha256, size, mirrored in survey.files:
                on_node = in_tree or sha256 in present
                remote = "mirror" if mirrored else "upstream"
                tiers["node" if on_node else "cluster" if sha256 in shared else remote] += size
                if not (on_node and sha256 in leased):
                    claim += size
            counts[address] = TierCount(TierFacts(**tiers), claim)
        return counts


@dataclass(slots=True)
class WeightsSurveyResult:
    """Facts and mirror surveys of weights, by address, and problems."""

    facts: dict[Address, WeightsFacts] = field(default_factory=dict)
    surveys: dict[Address, SourceSurvey] = field(default_factory=dict)
    mirror_is_remote: bool = False
    mirror: MirrorSurveyResult = field(default_factory=MirrorSurveyResult)
    diagnostics: list[Diagnostic] = field(default_factory=list)


def _is_queried(query: _WeightsQuery, state: State, options: SurveyOptions) -> bool:
    """Return whether to query upstream: without refresh only for new sources."""
    from trainctl.weights.resolution import SourceRequest

    request, recorded = query.request, state.resources.get(query.resource.address)
    if options.offline:
        return request.source.startswith("file:")
    if options.refresh or options.upgrade:
        return True
    if query.locked is not None or recorded is None:
        return query.locked is None
    before = SourceRequest(recorded.weights_spec, request.directory).key
    return (request.key, request.weights.sha256) != (before, recorded.weights_spec.sha256)


def survey_weights(
    workspace: Workspace, state: State, options: SurveyOptions, among: Container[Address]
) -> WeightsSurveyResult:
    """Resolve the declared sources ``among`` these, and survey the mirror for them."""
    from trainctl.plan.resources import PLANNED_WEIGHTS_ATTRIBUTES
    from trainctl.plan.values import WeightsFacts
    from trainctl.weights.lock import LockFile
    from trainctl.weights.mirrors import is_remote

    result = WeightsSurveyResult()
    locked = LockFile(workspace.settings.directory).entries()
    queries = []
    for address, request in workspace.source_requests.items():
        if address not in among:
            continue
        entry = locked.get(request.key)
        query = _WeightsQuery(workspace.desired.resources[address], request, entry)
        if _is_queried(query, state, options):
            queries.append(query)
        elif entry is not None:
            attributes = {name: getattr(entry, name) for name in PLANNED_WEIGHTS_ATTRIBUTES}
            result.facts[address] = WeightsFacts(None, locked=True, locked_as=attributes)
    once: SingleFlight[ResolvedSource] = SingleFlight()
    open_source = cache(source_for)  # sources share connections
    resolve = partial(
        _resolve, workspace, once=once, open_source=open_source, upgrade=options.upgrade
    )
    outcomes = list(zip(queries, each(resolve, queries, _SOURCES_AT_ONCE), strict=True))
    resolved = {
        query.resource.address: outcome.resolution.resolved
        for query, outcome in outcomes
        if isinstance(outcome, _ResolvedWeights) and outcome.resolution.resolved.is_measured
    }
    result.mirror_is_remote = is_remote(workspace.mirror)
    if not (result.mirror_is_remote and (options.offline or not options.refresh)):
        mirror = result.mirror = survey_mirror(workspace, state, [*resolved.values()])
        if mirror.problem:
            result.diagnostics += [mirror.problem]
        else:
            result.diagnostics += [
                warning(summary, DAMAGED_REFERENCE, code="mirror-corrupt")
                for summary in mirror.store.damaged
            ]
            result.surveys = dict(zip(resolved, mirror.store.sources, strict=True))
    for query, outcome in outcomes:
        _add_result(result, query, outcome, options)
    unusable = _unusable_mirror(workspace, result, options)
    result.diagnostics += unusable or _mirror_space(workspace, result)
    return result


def _unusable_mirror(
    workspace: Workspace, result: WeightsSurveyResult, options: SurveyOptions
) -> list[Diagnostic]:
    """Report an unusable mirror with missing weights: a warning unless applying now."""
    reason = result.mirror.store.unusable
    if not reason or all(survey.listing for survey in result.surveys.values()):
        return []
    advice = "Make the directory writable, or use another location in mirror: {url: …}"
    if workspace.mirror.on_a_host:
        advice += " or dir: of its host"
    summary = f"cannot use the mirror {workspace.mirror.url}: {reason}"
    diagnostic = error if options.applies else warning
    return [diagnostic(summary, f"{advice}.", code=StorageError.default_code)]


def _mirror_space(workspace: Workspace, result: WeightsSurveyResult) -> list[Diagnostic]:
    """Report too little disk space; an error if a single source doesn't fit.

    All sources together are only a warning, as their files may turn out to be the same.
    """
    free = result.mirror.store.free
    missing = {address: survey for address, survey in result.surveys.items() if survey.missing}
    together = _missing_bytes(missing.values())
    if free is None or not missing or together + SPARE_BYTES <= free:
        return []
    too_large = {
        address: survey
        for address, survey in missing.items()
        if _missing_bytes([survey]) + SPARE_BYTES > free
    }
    size = _missing_bytes(too_large.values()) or together
    diagnostic = error if too_large else warning
    return [
        diagnostic(
            f"no space left for the mirror {workspace.mirror.url}: it needs {format_bytes(size + SPARE_BYTES)}, and {format_bytes(free)} is free",
            "Free disk space (trainctl mirror gc), or use another location in mirror: {url: …}.",
            address=str(*too_large) if len(too_large) == 1 else None,
            code="disk-full",
        )
    ]


def _missing_bytes(surveys: Iterable[SourceSurvey]) -> int:
    """Sum the missing bytes; files with the same known digest count once."""
    surveys = tuple(surveys)
    missing = [row for survey in surveys for row in survey.files if not row[2]]
    unknown = sum(size for sha256, size, _ in missing if sha256 is None)
    known = sum({sha256: size for sha256, size, _ in missing if sha256}.values())
    return max(0, unknown + known - sum(survey.arrived for survey in surveys))


@dataclass(frozen=True, slots=True)
class _ResolvedWeights:
    """A source, and which of its files need the relay, as far as known without a request."""

    resolution: Resolution
    needs_relay: Callable[[SourceFile], bool]


@dataclass(frozen=True, slots=True)
class _WeightsQuery:
    resource: DesiredResource
    request: SourceRequest
    locked: LockEntry | None


def _resolve(
    workspace: Workspace,
    query: _WeightsQuery,
    once: SingleFlight[ResolvedSource],
    open_source: Callable[[str], WeightSource],
    *,
    upgrade: bool,
) -> _ResolvedWeights | TrainctlError:
    from trainctl.resources.weights import credential_of
    from trainctl.weights.mirrors import is_remote
    from trainctl.weights.resolution import resolve, resolve_from_lock

    store = workspace.mirror.store
    try:
        try:
            credential = credential_of(query.resource.weights_spec, workspace.secrets)
        except TrainctlError as failure:  # the mirror may have the locked version
            locked = resolve_from_lock(
                query.request, failure, locked=query.locked, upgrade=upgrade, store=store,
                open_source=open_source,
            )  # fmt: skip
            return _ResolvedWeights(locked, lambda file: True)
        with explaining_denials(credential):
            resolution = resolve(
                query.request,
                credential,
                locked=query.locked,
                upgrade=upgrade,
                store=store,
                retry=workspace.retry,
                open_source=open_source,
                once=once,
                memory=cache_home(workspace.settings.environ) / "file-digests",
            )
        source = open_source(query.request.uri.scheme)
        if is_remote(workspace.mirror) and not workspace.mirror.on_a_host:  # a bucket
            return _ResolvedWeights(resolution, lambda file: True)
        return _ResolvedWeights(resolution, lambda file: source.needs_relay(file, credential))
    except TrainctlError as failure:
        return failure


def _add_result(
    result: WeightsSurveyResult,
    query: _WeightsQuery,
    outcome: _ResolvedWeights | TrainctlError,
    options: SurveyOptions,
) -> None:
    from trainctl.plan.values import WeightsFacts

    address = query.resource.address
    if isinstance(outcome, TrainctlError):
        result.diagnostics.append(of_error(outcome, str(address)))
        return
    resolution = outcome.resolution
    resolved, survey = resolution.resolved, result.surveys.get(address)
    relayed = 0  # bytes that a remote mirror lacks and can't download itself
    if result.mirror_is_remote and resolved.is_measured:
        mirrored = (row[2] for row in survey.files) if survey else repeat(False)
        relayed = sum(
            file.size
            for file, is_mirrored in zip(resolved.files, mirrored, strict=False)
            if not is_mirrored and outcome.needs_relay(file)
        )
    locked = (
        options.writes_lock is True
        or query.locked is not None
        or query.request.weights.sha256 is not None
        or query.request.source.startswith("file:")
    )
    result.facts[address] = WeightsFacts(
        resolved,
        survey.here if survey else None,
        relayed,
        survey.listing if survey else None,
        locked,
        unmatched_patterns=resolution.unmatched,
    )
    result.diagnostics += [
        replace(diagnostic, address=str(address)) for diagnostic in resolution.warnings
    ]
