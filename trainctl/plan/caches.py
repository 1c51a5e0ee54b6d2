"""Training caches in a plan: which stay, what goes with one, which are too full, and jobs that leave theirs behind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from trainctl.base.units import format_bytes, parse_size
from trainctl.ledger.state import RecordedResource
from trainctl.model.action import Action
from trainctl.model.address import Address, Kind
from trainctl.model.diagnostics import Diagnostic, error, warning
from trainctl.model.specs.resource import CacheSpec
from trainctl.plan.placement import rank_placements, starting_changes
from trainctl.plan.resource_context import ResourceContext
from trainctl.plan.values import CacheFacts, Change, PlanInputs

_GOES = frozenset({Action.DELETE, Action.REPLACE})


def outlives_its_jobs(inputs: PlanInputs, one: ResourceContext) -> bool:
    """Whether a recorded cache that no block declares stays: it came with a job, and goes with its project or cluster."""
    if one.address.kind is not Kind.CACHE or one.destroying or one.recorded is None:
        return False
    of = one.recorded.cache_spec
    named = one.address.name == f"{of.project}-{of.cluster}"
    declared = of.dir or of.size or not named
    needs = (Address(Kind.PROJECT, str(of.project)), of.cluster_address)
    return not declared and all(address in inputs.desired.resources for address in needs)


def keep_cache(one: ResourceContext) -> Change:
    """No change of such a cache."""
    found = one.remove(Action.NOOP, note="no job uses it; deleted with its project")
    return replace(found, after=one.before, outputs_after=one.outputs)


def describe_removals(inputs: PlanInputs, changes: Iterable[Change]) -> list[Change]:
    """The changes, those of caches that go with what goes with them."""
    found = list(changes)
    going = [one for one in found if one.address.kind is Kind.CACHE and one.action in _GOES]
    names = frozenset(f"{inputs.state.lineage}+{one.address.name}" for one in going)
    addresses = {one.address for one in going}
    return [
        _describe_removal(inputs, one, names) if one.address in addresses else one for one in found
    ]


def _describe_removal(inputs: PlanInputs, change: Change, going: frozenset[str]) -> Change:
    lines = [_fate(facts, going) for facts in inputs.caches.get(change.address, ())]
    note = "; ".join(line for line in (*lines, change.note) if line)
    return replace(change, note=note)


def content_text(facts: CacheFacts) -> str:
    """What a cache holds, in words: ``1.2 GB in 34 files``."""
    files = f"{facts.files} file{'' if facts.files == 1 else 's'}"
    return f"{'' if facts.whole else 'more than '}{format_bytes(facts.bytes)} in {files}"


def cache_full_warning(address: Address, size: str | int | None, facts: CacheFacts) -> str | None:
    """What is said of a cache that holds more than it is meant to."""
    if size is None or facts.bytes <= parse_size(size):
        return None
    return f"{address} contains {content_text(facts)}, more than its size limit of {size}"


def cache_problems(inputs: PlanInputs, changes: Iterable[Change]) -> Iterator[Diagnostic]:
    """Caches that hold more than they are meant to; starting jobs that would not find theirs."""
    found = list(changes)
    if not inputs.options.destroy:
        yield from _cache_full_warnings(inputs, found)
    for job in starting_changes(found):
        config = job.job_spec.runtime.cache_config
        if config.enabled:
            yield from _cache_on_other_cluster(inputs, job, must_stay=config.require_cache_affinity)
        if config.enable_legacy_hf_mount:
            yield from _no_mount_at_home(inputs, job)


def _fate(facts: CacheFacts, going: frozenset[str]) -> str:
    others = len(frozenset(facts.others) - going)
    if others:
        return f"{facts.directory} is kept for {others} other{'s' if others > 1 else ''}"
    if not facts.ours:
        return f"{facts.directory} is kept: trainctl did not create it"
    if not facts.files and facts.whole:
        return ""
    return f"{facts.directory} is deleted with {content_text(facts)}"


def _cache_full_warnings(inputs: PlanInputs, changes: Iterable[Change]) -> Iterator[Diagnostic]:
    for change in changes:
        if change.address.kind is not Kind.CACHE or change.after is None:
            continue
        cache = CacheSpec.from_attributes(change.after)
        facts = next(iter(inputs.caches.get(change.address, ())), None)
        excess = cache_full_warning(change.address, cache.size, facts) if facts else None
        if excess is None:
            continue
        yield warning(
            excess,
            f"Jobs continue. To free disk space, run: {_clear_command(cache)}.",
            code="cache-too-full",
            address=str(change.address),
        )


def _clear_command(of: CacheSpec) -> str:
    """The command that deletes old files from a cache."""
    if of.scope == "team":
        return f"trainctl cache clear PROJECT --team --cluster {of.cluster} --older-than 30d"
    return f"trainctl cache clear {of.project} --older-than 30d"


def _cache_on_other_cluster(
    inputs: PlanInputs, job: Change, *, must_stay: bool
) -> Iterator[Diagnostic]:
    """A job that starts where its project has no cache yet, though it has one elsewhere that holds something."""
    project, cluster = job.job_spec.project, job.job_spec.cluster
    caches = _caches_of(inputs, project)
    if not caches or any(cache.cache_spec.cluster == cluster for cache in caches):
        return
    cache = caches[0]
    facts = next(iter(inputs.caches.get(cache.address, ())), None)
    if facts is not None and facts.whole and not facts.files:
        return
    where = f"{cache.address} on cluster.{cache.cache_spec.cluster}"
    what = f"{content_text(facts)} in {facts.directory}" if facts else "size unknown"
    moved = job.before is not None and job.before.get("cluster") != cluster
    if moved and must_stay:
        yield error(
            f"{job.address} would not use the training cache of {project}: {where} ({what})",
            f"To start with an empty cache on cluster.{cluster}, set runtime.cache_config.require_cache_affinity: false. To move the cache, declare a cache of {project} for {cluster} under 'caches', apply it with --target, and copy the files there.",
            code="cache-on-other-cluster",
            address=str(job.address),
        )
    else:
        yield warning(
            f"the training cache of {project} will be empty on cluster.{cluster}",
            f"The existing cache is kept in {where} ({what}).",
            code="cache-empty",
            address=str(job.address),
        )


def _caches_of(inputs: PlanInputs, project: str) -> list[RecordedResource]:
    return [
        recorded
        for address, recorded in sorted(inputs.state.resources.items())
        if address.kind is Kind.CACHE and recorded.cache_spec.project == project
    ]


def _no_mount_at_home(inputs: PlanInputs, job: Change) -> Iterator[Diagnostic]:
    for seat in rank_placements(inputs, job):
        if seat.facts and seat.facts.mount == "link":
            yield warning(
                f"~/.cache/huggingface can't be mounted on {seat.node}: HF_HOME is set to the cache directory instead",
                "Programs that ignore HF_HOME use the home directory there.",
                code="no-home-mount",
                address=str(job.address),
            )
