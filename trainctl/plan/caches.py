"""Training caches in a plan: removal of their directories, and warnings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from trainctl.base.lazy_dataclass import replace
from trainctl.base.units import format_bytes, parse_size
from trainctl.model.action import Action
from trainctl.model.address import Address, Kind
from trainctl.model.diagnostics import Diagnostic, error, warning
from trainctl.model.specs.resource import CacheSpec
from trainctl.plan.placement import rank_placements, starting_changes
from trainctl.plan.resources import ResourceContext
from trainctl.plan.values import Change, PlanInputs

if TYPE_CHECKING:
    from trainctl.model.reports import CacheFacts

_REMOVES_DIRECTORY = frozenset({Action.DELETE, Action.REPLACE})


def outlives_its_jobs(inputs: PlanInputs, context: ResourceContext) -> bool:
    """Whether a recorded, undeclared cache belongs to a declared project and cluster."""
    if context.address.kind is not Kind.CACHE or context.destroying or context.recorded is None:
        return False
    cache = context.recorded.cache_spec
    has_default_name = context.address.name == f"{cache.project}-{cache.cluster}"
    declared = cache.dir or cache.size or not has_default_name
    owners = (Address(Kind.PROJECT, str(cache.project)), cache.cluster_address)
    return not declared and all(address in inputs.desired.resources for address in owners)


def describe_removals(inputs: PlanInputs, changes: Iterable[Change]) -> list[Change]:
    """Add notes about deleted and kept directories to removals of caches."""
    changes = list(changes)
    removals = {
        change.address
        for change in changes
        if change.address.kind is Kind.CACHE and change.action in _REMOVES_DIRECTORY
    }
    removed = frozenset(f"{inputs.state.lineage}+{address.name}" for address in removals)
    for number, change in enumerate(changes):
        if change.address not in removals:
            continue
        notes: list[str] = []
        for facts in inputs.caches.get(change.address, ()):
            others = len(frozenset(facts.others) - removed)
            if others:
                kept_for = f"{others} other{'s' if others > 1 else ''}"
                notes.append(f"{facts.directory} is kept for {kept_for}")
            elif not facts.ours:
                notes.append(f"{facts.directory} is kept: trainctl did not create it")
            elif facts.files or not facts.is_complete:
                notes.append(f"{facts.directory} is deleted with {content_text(facts)}")
        note = "; ".join(filter(None, (*notes, change.note)))
        changes[number] = replace(change, note=note)
    return changes


def content_text(facts: CacheFacts) -> str:
    """Describe the content of a cache: ``1.2 GB in 34 files``."""
    files = f"{facts.files} file{'' if facts.files == 1 else 's'}"
    return f"{'' if facts.is_complete else 'more than '}{format_bytes(facts.bytes)} in {files}"


def cache_full_warning(address: Address, size: str | int | None, facts: CacheFacts) -> str | None:
    """Return a warning if a cache exceeds its size."""
    if size is None or facts.bytes <= parse_size(size):
        return None
    return f"{address} contains {content_text(facts)}, more than its size limit of {size}"


def cache_problems(inputs: PlanInputs, changes: Iterable[Change]) -> Iterator[Diagnostic]:
    """Report caches above their size, and new runs without access to their cache."""
    changes = list(changes)
    declared = {
        change.address: CacheSpec.from_attributes(change.after)
        for change in changes
        if change.address.kind is Kind.CACHE and change.after is not None
    }
    for address, cache in declared.items() if not inputs.options.destroy else ():
        facts = next(iter(inputs.caches.get(address, ())), None)
        if facts and (excess := cache_full_warning(address, cache.size, facts)) is not None:
            is_team = cache.scope == "team"
            owner = f"PROJECT --team --cluster {cache.cluster}" if is_team else cache.project
            yield warning(
                excess,
                f"Jobs continue. To free disk space, run: trainctl cache clear {owner} --older-than 30d.",
                code="cache-too-full",
                address=str(address),
            )
    for job in starting_changes(changes):
        config = job.job_spec.runtime.cache_config
        if config.enabled:
            yield from _cache_on_other_cluster(inputs, job, must_stay=config.require_cache_affinity)
            yield from _cache_per_node(inputs, job, declared.values())
        for placement in rank_placements(inputs, job) if config.enable_legacy_hf_mount else ():
            if placement.facts and placement.facts.reported["mount"] == "link":
                yield warning(
                    f"~/.cache/huggingface can't be mounted on {placement.node}: HF_HOME is set to the cache directory instead",
                    "Programs that ignore HF_HOME use the home directory there.",
                    code="no-home-mount",
                    address=str(job.address),
                )


def _cache_on_other_cluster(
    inputs: PlanInputs, job: Change, *, must_stay: bool
) -> Iterator[Diagnostic]:
    """Report a job whose project has a filled cache only on another cluster."""
    project, cluster = job.job_spec.project, job.job_spec.cluster
    caches = [
        recorded
        for address, recorded in sorted(inputs.state.external.items())
        if address.kind is Kind.CACHE and recorded.cache_spec.project == project
    ]
    if not caches or any(cache.cache_spec.cluster == cluster for cache in caches):
        return
    cache = caches[0]
    facts = next(iter(inputs.caches.get(cache.address, ())), None)
    if facts is not None and facts.is_complete and not facts.files:
        return
    where = f"{cache.address} on cluster.{cache.cache_spec.cluster}"
    content = f"{content_text(facts)} in {facts.directory}" if facts else "size unknown"
    moved = job.before is not None and job.before.get("cluster") != cluster
    if moved and must_stay:
        yield error(
            f"{job.address} would not use the training cache of {project}: {where} ({content})",
            f"To start with an empty cache on cluster.{cluster}, set runtime.cache_config.require_cache_affinity: false. To move the cache, declare a cache of {project} for {cluster} under 'caches', apply it with --target, and copy the files there.",
            code="cache-on-other-cluster",
            address=str(job.address),
        )
    else:
        yield warning(
            f"the training cache of {project} will be empty on cluster.{cluster}",
            f"The existing cache is kept in {where} ({content}).",
            code="cache-empty",
            address=str(job.address),
        )


def _cache_per_node(
    inputs: PlanInputs, job: Change, declared: Iterable[CacheSpec]
) -> Iterator[Diagnostic]:
    """Warn about ranks whose caches are directories of their nodes."""
    spec = job.job_spec
    shared = {
        cache.scope for cache in declared
        if cache.dir and cache.cluster == spec.cluster and cache.project in (None, spec.project)
    }  # fmt: skip
    variables = [
        *(["BT_PROJECT_CACHE_DIR", "BT_RW_CACHE_DIR"] if "project" not in shared else []),
        *(["BT_TEAM_CACHE_DIR"] if "team" not in shared else []),
    ]
    if variables and len(list(rank_placements(inputs, job))) > 1:
        yield warning(
            f"{job.address} runs on {spec.compute.node_count} nodes, and ${', $'.join(variables)} point to a disk of each",
            f"If ranks exchange files there, declare a cache of cluster {spec.cluster} with a directory that the nodes share: caches.NAME.dir. Without url, $BT_CHECKPOINT_DIR is on each node, too.",
            code="cache-per-node",
            address=str(job.address),
        )
