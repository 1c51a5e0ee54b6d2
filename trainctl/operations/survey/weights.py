"""Resolve the sources of weights, by metadata only, many at a time."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import repeat

from trainctl.base.listing import ResolvedSource, SourceFile
from trainctl.base.units import format_bytes
from trainctl.errors import SourceError, StorageError, TrainctlError
from trainctl.jobs.bucket_credentials import explained
from trainctl.ledger.state import State
from trainctl.model.address import Address, Kind
from trainctl.model.diagnostics import Diagnostic, error, of_error, warning
from trainctl.model.once import Once
from trainctl.model.resource import Resource
from trainctl.operations.survey import LookOptions
from trainctl.operations.survey.mirror import MirrorSeen, look_at_mirror
from trainctl.operations.workspace import Workspace
from trainctl.plan.resources import PLANNED_OF_WEIGHTS
from trainctl.plan.values import WeightsFacts
from trainctl.resources.weights import credential_of, wanted_of
from trainctl.sources import source_for
from trainctl.store.directory import SPARE_BYTES
from trainctl.store.survey import SourceSurvey
from trainctl.weights.lock import LockEntry, LockFile, locked_as
from trainctl.weights.mirrors import is_far
from trainctl.weights.resolve import Resolution, Wanted, resolve, resolve_unopened


@dataclass(slots=True)
class WeightsSeen:
    """What was found out of each weights resource, and what went wrong."""

    facts: dict[Address, WeightsFacts] = field(default_factory=dict)
    surveys: dict[Address, SourceSurvey] = field(default_factory=dict)
    far: bool = False
    """Whether the mirror is not on this machine."""
    mirror: MirrorSeen = field(default_factory=MirrorSeen)
    diagnostics: list[Diagnostic] = field(default_factory=list)


def look_at_weights(
    workspace: Workspace, state: State, look: LookOptions, among: Container[Address]
) -> WeightsSeen:
    """What is known of every desired source ``among`` these; one that can't be resolved is an error diagnostic with its address."""
    seen = WeightsSeen()
    locked = LockFile(workspace.setting.directory).entries()
    wanted = {
        address: wanted_of(resource.weights_spec, workspace.setting.directory)
        for address, resource in workspace.desired.resources.items()
        if address.kind is Kind.WEIGHTS
    }
    keys = {one.key for one in wanted.values()}
    questions = [
        _Question(workspace.desired.resources[address], one, locked_as(locked, one.key, keys))
        for address, one in wanted.items()
        if address in among
    ]
    asked = []
    for one in questions:
        if _is_asked(one, state, look):
            asked.append(one)
        elif one.locked is not None:
            known = {name: getattr(one.locked, name) for name in PLANNED_OF_WEIGHTS}
            seen.facts[one.resource.address] = WeightsFacts(None, locked=True, locked_as=known)
    once: Once[ResolvedSource] = Once()
    with ThreadPoolExecutor(look.parallelism, thread_name_prefix="resolve") as pool:
        answers = pool.map(lambda one: _resolve(workspace, one, once, upgrade=look.upgrade), asked)
        answered = list(zip(asked, answers, strict=True))
        resolved = {
            one.resource.address: found.resolution.resolved
            for one, found in answered
            if isinstance(found, _Found)
        }
        seen.far = is_far(workspace.mirror)
        if not (seen.far and (look.offline or not look.refresh)):
            _look(workspace, state, seen, resolved)
        linked: Once[bool] = Once()
        relayed = pool.map(lambda pair: _relayed(seen, pair[0], pair[1], linked), answered)
        for (one, found), size in zip(answered, relayed, strict=True):
            _take(seen, one, found, look, size)
    seen.diagnostics += _unusable(workspace, seen, look) or _room(workspace, seen)
    return seen


def _unusable(workspace: Workspace, seen: WeightsSeen, look: LookOptions) -> list[Diagnostic]:
    """A mirror that can't take what is missing in it. A warning if the plan isn't applied now: a review needs no right to write."""
    why = seen.mirror.unusable
    if not why or all(one.listing for one in seen.surveys.values()):
        return []
    advice = "Have a directory there that may be written, or name another place in mirror: {url: …}"
    if workspace.mirror.on_a_host:
        advice += " or dir: of its host"
    summary = f"the mirror {workspace.mirror.url} can't be used: {why}"
    made = error if look.applies else warning
    return [made(summary, f"{advice}.", code=StorageError.usual_code)]


def _room(workspace: Workspace, seen: WeightsSeen) -> list[Diagnostic]:
    """What doesn't fit on the mirror's disk by itself, or else all of it together, which may share content that isn't known to be the same."""
    free = seen.mirror.free
    missing = {address: survey for address, survey in seen.surveys.items() if survey.missing}
    together = _missing(missing.values())
    if free is None or not missing or together + SPARE_BYTES <= free:
        return []
    too_large = {
        address: survey
        for address, survey in missing.items()
        if _missing([survey]) + SPARE_BYTES > free
    }
    size = _missing(too_large.values()) or together
    made = error if too_large else warning
    return [
        made(
            f"the mirror {workspace.mirror.url} needs {format_bytes(size + SPARE_BYTES)} "
            f"and its disk has {format_bytes(free)} free",
            "Free some space (trainctl mirror gc), or name another place in mirror: {url: …}.",
            address=str(*too_large) if len(too_large) == 1 else None,
            code="disk-full",
        )
    ]


def _missing(surveys: Iterable[SourceSurvey]) -> int:
    """Bytes that sources lack; files that are known to be the same count once."""
    surveys = tuple(surveys)
    missing = [row for survey in surveys for row in survey.files if not row[2]]
    unknown = sum(size for sha256, size, _ in missing if sha256 is None)
    known = sum({sha256: size for sha256, size, _ in missing if sha256}.values())
    return max(0, unknown + known - sum(survey.arrived for survey in surveys))


def _look(
    workspace: Workspace,
    state: State,
    seen: WeightsSeen,
    resolved: Mapping[Address, ResolvedSource],
) -> None:
    seen.mirror = look_at_mirror(workspace, state, [*resolved.values()])
    if seen.mirror.problem:
        seen.diagnostics.append(seen.mirror.problem)
    else:
        seen.diagnostics += seen.mirror.warnings
        seen.surveys = dict(zip(resolved, seen.mirror.sources, strict=True))


@dataclass(frozen=True, slots=True)
class _Found:
    """A source, and how to tell a file of it that only this machine can bring into the mirror, without a request and by one."""

    resolution: Resolution
    relays: Callable[[SourceFile], bool]
    has_link: Callable[[SourceFile], bool] = lambda file: True


@dataclass(frozen=True, slots=True)
class _Question:
    resource: Resource
    wanted: Wanted
    locked: LockEntry | None


def _is_asked(question: _Question, state: State, look: LookOptions) -> bool:
    """Whether upstream is asked: always, but offline only this machine, and without refresh only about what is new."""
    if look.offline:
        return question.wanted.source.startswith("file:")
    if look.refresh or look.upgrade:
        return True
    recorded = state.resources.get(question.resource.address)
    known = recorded is not None and question.wanted == wanted_of(
        recorded.weights_spec, question.wanted.directory
    )
    return not known and question.locked is None


def _resolve(
    workspace: Workspace, question: _Question, once: Once[ResolvedSource], *, upgrade: bool
) -> _Found | TrainctlError:
    try:
        credential = credential_of(question.resource.weights_spec, workspace.secrets)
    except TrainctlError as failure:
        return _unopened(workspace, question, failure, upgrade=upgrade)
    try:
        with explained(credential):
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
            return _Found(resolution, lambda file: True)

        found = _Found(resolution, lambda file: source.relays(file, credential))
        if question.wanted.uri.scheme != "hf" or credential is None:
            return found

        def has_link(file: SourceFile) -> bool:
            return source.link(resolution.resolved, file, credential) is not None

        # A Hub may send to its storage for a large file, or hand it out itself: only its answer tells.
        return replace(found, has_link=has_link)
    except TrainctlError as failure:
        return failure


def _unopened(
    workspace: Workspace, question: _Question, why: TrainctlError, *, upgrade: bool
) -> _Found | TrainctlError:
    """What is locked out of the mirror, for want of a credential; ``why`` where nothing can stand in."""
    try:
        resolution = resolve_unopened(
            question.wanted,
            why,
            locked=question.locked,
            upgrade=upgrade,
            store=workspace.mirror.store,
        )
    except TrainctlError as failure:
        return failure
    return _Found(resolution, lambda file: True)


def _take(
    seen: WeightsSeen,
    question: _Question,
    answer: _Found | TrainctlError,
    look: LookOptions,
    relayed: int,
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
        relayed,
        survey.listing if survey else None,
        locked,
        unmatched_patterns=resolution.unmatched,
    )
    seen.diagnostics += [replace(one, address=str(resource.address)) for one in resolution.warnings]


def _relayed(
    seen: WeightsSeen, question: _Question, found: _Found | TrainctlError, linked: Once[bool]
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
        if found.relays(file):
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
