"""Resolve the sources of weights, by metadata only, many at a time."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import repeat

from trainctl.base.listing import ResolvedSource, SourceFile
from trainctl.base.units import format_bytes
from trainctl.errors import SourceError, StorageError, TrainctlError
from trainctl.jobs.bucket_credentials import explaining_denials
from trainctl.ledger.state import State
from trainctl.model.address import Address, Kind
from trainctl.model.diagnostics import Diagnostic, error, of_error, warning
from trainctl.model.single_flight import SingleFlight
from trainctl.model.specs.resource import DesiredResource
from trainctl.operations.survey import SurveyOptions
from trainctl.operations.survey.mirror import MirrorSurveyResult, survey_mirror
from trainctl.operations.workspace import Workspace
from trainctl.plan.resources import PLANNED_WEIGHTS_ATTRIBUTES
from trainctl.plan.values import WeightsFacts
from trainctl.resources.weights import credential_of, source_request_of
from trainctl.sources import source_for
from trainctl.store.backends.directory import SPARE_BYTES
from trainctl.store.maintenance.survey import SourceSurvey
from trainctl.weights.lock import LockEntry, LockFile, find_locked
from trainctl.weights.mirrors import is_remote
from trainctl.weights.resolution import Resolution, SourceRequest, resolve, resolve_from_lock


@dataclass(slots=True)
class WeightsSurveyResult:
    """What was found out of each weights resource, and what went wrong."""

    facts: dict[Address, WeightsFacts] = field(default_factory=dict)
    surveys: dict[Address, SourceSurvey] = field(default_factory=dict)
    far: bool = False
    """Whether the mirror is not on this machine."""
    mirror: MirrorSurveyResult = field(default_factory=MirrorSurveyResult)
    diagnostics: list[Diagnostic] = field(default_factory=list)


def survey_weights(
    workspace: Workspace, state: State, look: SurveyOptions, among: Container[Address]
) -> WeightsSurveyResult:
    """What is known of every desired source ``among`` these; one that can't be resolved is an error diagnostic with its address."""
    seen = WeightsSurveyResult()
    locked = LockFile(workspace.settings.directory).entries()
    wanted = {
        address: source_request_of(resource.weights_spec, workspace.settings.directory)
        for address, resource in workspace.desired.resources.items()
        if address.kind is Kind.WEIGHTS
    }
    keys = {one.key for one in wanted.values()}
    questions = [
        _WeightsQuery(workspace.desired.resources[address], one, find_locked(locked, one.key, keys))
        for address, one in wanted.items()
        if address in among
    ]
    asked = []
    for one in questions:
        if _is_queried(one, state, look):
            asked.append(one)
        elif one.locked is not None:
            known = {name: getattr(one.locked, name) for name in PLANNED_WEIGHTS_ATTRIBUTES}
            seen.facts[one.resource.address] = WeightsFacts(None, locked=True, locked_as=known)
    once: SingleFlight[ResolvedSource] = SingleFlight()
    with ThreadPoolExecutor(look.parallelism, thread_name_prefix="resolve") as pool:
        answers = pool.map(lambda one: _resolve(workspace, one, once, upgrade=look.upgrade), asked)
        answered = list(zip(asked, answers, strict=True))
        resolved = {
            one.resource.address: found.resolution.resolved
            for one, found in answered
            if isinstance(found, _ResolvedWeights)
        }
        seen.far = is_remote(workspace.mirror)
        if not (seen.far and (look.offline or not look.refresh)):
            _survey_mirror(workspace, state, seen, resolved)
        linked: SingleFlight[bool] = SingleFlight()
        relayed_bytes = pool.map(
            lambda pair: _relayed_bytes(seen, pair[0], pair[1], linked), answered
        )
        for (one, found), size in zip(answered, relayed_bytes, strict=True):
            _add_result(seen, one, found, look, size)
    seen.diagnostics += _unusable_mirror(workspace, seen, look) or _mirror_space(workspace, seen)
    return seen


def _unusable_mirror(
    workspace: Workspace, seen: WeightsSurveyResult, look: SurveyOptions
) -> list[Diagnostic]:
    """A mirror that can't take what is missing in it. A warning if the plan isn't applied now: a review needs no right to write."""
    why = seen.mirror.unusable
    if not why or all(survey.listing for survey in seen.surveys.values()):
        return []
    advice = "Make the directory writable, or use another location in mirror: {url: …}"
    if workspace.mirror.on_a_host:
        advice += " or dir: of its host"
    summary = f"cannot use the mirror {workspace.mirror.url}: {why}"
    made = error if look.applies else warning
    return [made(summary, f"{advice}.", code=StorageError.default_code)]


def _mirror_space(workspace: Workspace, seen: WeightsSurveyResult) -> list[Diagnostic]:
    """What doesn't fit on the mirror's disk by itself, or else all of it together, which may share content that isn't known to be the same."""
    free = seen.mirror.free
    missing = {address: survey for address, survey in seen.surveys.items() if survey.missing}
    together = _missing_bytes(missing.values())
    if free is None or not missing or together + SPARE_BYTES <= free:
        return []
    too_large = {
        address: survey
        for address, survey in missing.items()
        if _missing_bytes([survey]) + SPARE_BYTES > free
    }
    size = _missing_bytes(too_large.values()) or together
    made = error if too_large else warning
    return [
        made(
            f"no space left for the mirror {workspace.mirror.url}: it needs {format_bytes(size + SPARE_BYTES)}, and {format_bytes(free)} is free",
            "Free disk space (trainctl mirror gc), or use another location in mirror: {url: …}.",
            address=str(*too_large) if len(too_large) == 1 else None,
            code="disk-full",
        )
    ]


def _missing_bytes(surveys: Iterable[SourceSurvey]) -> int:
    """Bytes that sources lack; files that are known to be the same count once."""
    surveys = tuple(surveys)
    missing = [row for survey in surveys for row in survey.files if not row[2]]
    unknown = sum(size for sha256, size, _ in missing if sha256 is None)
    known = sum({sha256: size for sha256, size, _ in missing if sha256}.values())
    return max(0, unknown + known - sum(survey.arrived for survey in surveys))


def _survey_mirror(
    workspace: Workspace,
    state: State,
    seen: WeightsSurveyResult,
    resolved: Mapping[Address, ResolvedSource],
) -> None:
    seen.mirror = survey_mirror(workspace, state, [*resolved.values()])
    if seen.mirror.problem:
        seen.diagnostics.append(seen.mirror.problem)
    else:
        seen.diagnostics += seen.mirror.warnings
        seen.surveys = dict(zip(resolved, seen.mirror.sources, strict=True))


@dataclass(frozen=True, slots=True)
class _ResolvedWeights:
    """A source, and how to tell a file of it that only this machine can bring into the mirror, without a request and by one."""

    resolution: Resolution
    needs_relay: Callable[[SourceFile], bool]
    has_link: Callable[[SourceFile], bool] = lambda file: True


@dataclass(frozen=True, slots=True)
class _WeightsQuery:
    resource: DesiredResource
    wanted: SourceRequest
    locked: LockEntry | None


def _is_queried(question: _WeightsQuery, state: State, look: SurveyOptions) -> bool:
    """Whether upstream is asked: always, but offline only this machine, and without refresh only about what is new."""
    if look.offline:
        return question.wanted.source.startswith("file:")
    if look.refresh or look.upgrade:
        return True
    recorded = state.resources.get(question.resource.address)
    known = recorded is not None and question.wanted == source_request_of(
        recorded.weights_spec, question.wanted.directory
    )
    return not known and question.locked is None


def _resolve(
    workspace: Workspace,
    question: _WeightsQuery,
    once: SingleFlight[ResolvedSource],
    *,
    upgrade: bool,
) -> _ResolvedWeights | TrainctlError:
    try:
        credential = credential_of(question.resource.weights_spec, workspace.secrets)
    except TrainctlError as failure:
        return _resolve_without_credential(workspace, question, failure, upgrade=upgrade)
    try:
        with explaining_denials(credential):
            resolution = resolve(
                question.wanted,
                credential,
                locked=question.locked,
                upgrade=upgrade,
                store=workspace.mirror.store,
                retry=workspace.retry,
                once=once,
            )
        source = source_for(question.wanted.uri.scheme)
        if workspace.mirror.in_a_bucket:
            return _ResolvedWeights(resolution, lambda file: True)

        found = _ResolvedWeights(resolution, lambda file: source.needs_relay(file, credential))
        if question.wanted.uri.scheme != "hf" or credential is None:
            return found

        def has_link(file: SourceFile) -> bool:
            return source.presigned_url(resolution.resolved, file, credential) is not None

        # A Hub may send to its storage for a large file, or hand it out itself: only its answer tells.
        return replace(found, has_link=has_link)
    except TrainctlError as failure:
        return failure


def _resolve_without_credential(
    workspace: Workspace, question: _WeightsQuery, why: TrainctlError, *, upgrade: bool
) -> _ResolvedWeights | TrainctlError:
    """What is locked out of the mirror, for want of a credential; ``why`` where nothing can stand in."""
    try:
        resolution = resolve_from_lock(
            question.wanted,
            why,
            locked=question.locked,
            upgrade=upgrade,
            store=workspace.mirror.store,
        )
    except TrainctlError as failure:
        return failure
    return _ResolvedWeights(resolution, lambda file: True)


def _add_result(
    seen: WeightsSurveyResult,
    question: _WeightsQuery,
    answer: _ResolvedWeights | TrainctlError,
    look: SurveyOptions,
    relayed_bytes: int,
) -> None:
    resource = question.resource
    if isinstance(answer, TrainctlError):
        seen.diagnostics.append(of_error(answer, str(resource.address)))
        return
    resolution = answer.resolution
    survey = seen.surveys.get(resource.address)
    locked = (
        look.writes_lock is True
        or question.locked is not None
        or question.wanted.sha256 is not None
        or question.wanted.source.startswith("file:")
    )
    seen.facts[resource.address] = WeightsFacts(
        resolution.resolved,
        survey.here if survey else None,
        relayed_bytes,
        survey.listing if survey else None,
        locked,
        unmatched_patterns=resolution.unmatched,
    )
    seen.diagnostics += [replace(one, address=str(resource.address)) for one in resolution.warnings]


def _relayed_bytes(
    seen: WeightsSurveyResult,
    question: _WeightsQuery,
    found: _ResolvedWeights | TrainctlError,
    linked: SingleFlight[bool],
) -> int:
    """The bytes that are missing in the mirror and that it can't fetch by itself; a server is asked once for the link of one file of each source."""
    if not seen.far or isinstance(found, TrainctlError):
        return 0
    resolved, survey = found.resolution.resolved, seen.surveys.get(question.resource.address)
    through = by_link = 0
    one: SourceFile | None = None
    here = (row[2] for row in survey.files) if survey else repeat(False)
    for file, is_here in zip(resolved.files, here, strict=False):
        if is_here:
            continue
        if found.needs_relay(file):
            through += file.size
        else:
            by_link, one = by_link + file.size, file
    if one is None:
        return through
    example = one
    try:
        linkable = linked.get(
            (resolved.identity, resolved.revision), lambda: found.has_link(example)
        )
    except SourceError:  # reported when it is fetched
        return through
    return through if linkable else through + by_link
