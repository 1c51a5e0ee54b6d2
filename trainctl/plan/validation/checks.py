"""What a plan must not do, and what in it deserves a warning."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping

from trainctl.desired.values import find_cycle
from trainctl.model.action import Action
from trainctl.model.address import Address, Kind
from trainctl.model.diagnostics import Diagnostic, error, warning
from trainctl.model.run import RunRecord, RunStatus
from trainctl.plan.graph import REMOVES
from trainctl.plan.resource_context import ResourceContext, merge_observed_outputs
from trainctl.plan.runs import ENDED
from trainctl.plan.values import Change, PlanInputs
from trainctl.plugin_api.provider import ResourceStatus

_NEW_RUN = frozenset({Action.CREATE, Action.REPLACE})


def unknown_addresses(inputs: PlanInputs) -> Iterator[Diagnostic]:
    """Addresses that the user named and that nothing has."""
    options = inputs.options
    declared = set(inputs.desired.resources)
    known = declared | set(inputs.state.resources) | set(inputs.state.open_intents)
    flags = {"--target": options.targets, "--exclude": options.excludes}
    for flag, addresses in flags.items():
        for address in addresses:
            if address not in known:
                yield _unknown(address, f"{flag} {address}", known)
    for address in (*options.replace, *options.run):
        if address not in declared:
            yield _unknown(address, str(address), declared)
    for address in options.run:
        if address.kind is not Kind.JOB:
            yield error(
                f"{address} is not a job",
                "Name a job: only jobs can run.",
                address=str(address),
                code="not-a-job",
            )


def protection_errors(inputs: PlanInputs, changes: Iterable[Change]) -> Iterator[Diagnostic]:
    """Changes that would destroy what ``prevent_destroy`` protects, also where its block is gone."""
    for change in changes:
        if not change.lifecycle.prevent_destroy or not _destroys(change):
            continue
        declared = inputs.desired.resources.get(change.address)
        how = (
            f"Exclude it with --exclude '{change.address}', or set lifecycle.prevent_destroy to false."
            if declared
            else f"It was removed from the manifest, but its protection is in the state. To destroy it, restore its block with lifecycle.prevent_destroy: false and apply; to keep it, use --exclude '{change.address}'."
        )
        yield error(
            f"{change.address} is protected and would be {_fate(change)}",
            how,
            address=str(change.address),
            code="prevent-destroy",
        )


def displaced_run_errors(inputs: PlanInputs, changes: Iterable[Change]) -> Iterator[Diagnostic]:
    """Live runs whose machine would be taken from under them, by a change that is not theirs."""
    by_address = {change.address: change for change in changes}
    for address, run in _live_runs(inputs):
        if not run.ranks or (by_address[address].stops if address in by_address else None):
            continue
        cluster = Address(Kind.CLUSTER, run.ranks[0].node.partition("/")[0])
        lost = _lost_nodes(inputs, by_address.get(cluster))
        if any(rank.node in lost for rank in run.ranks):
            yield error(
                f"cannot remove {', '.join(sorted(lost))} from {cluster} while {address} runs there",
                f"Run {run.number} is live. Wait until it ends, or stop it: trainctl stop '{address}'.",
                address=str(cluster),
                code="live-run",
            )


def unobserved(inputs: PlanInputs, subjects: Iterable[ResourceContext]) -> Iterator[Diagnostic]:
    """Recorded resources that could not be looked at, but for those of which it was said why: clusters by their nodes, weights by the mirror."""
    said = {diagnostic.summary for diagnostic in inputs.diagnostics}
    for subject in subjects:
        found = subject.observed
        if found is None or found.status in (ResourceStatus.PRESENT, ResourceStatus.MISSING):
            continue
        if found.unobserved and inputs.unreachable_nodes.issuperset(found.unobserved):
            continue
        if subject.address.kind is Kind.WEIGHTS and found.detail in said:
            continue
        summary, detail = f"{subject.address} is {found.status.value}", found.detail
        if subject.address.kind is Kind.CLUSTER and detail:
            summary, detail = detail, ""
        yield warning(
            summary,
            f"{detail.rstrip('.') + '. ' if detail else ''}The plan uses the recorded state.",
            address=str(subject.address),
            code="node-not-observed",
        )


def failed_run_warnings(
    subjects: Iterable[ResourceContext], changes: Mapping[Address, Change]
) -> Iterator[Diagnostic]:
    """Jobs whose newest run failed and that would not run again by themselves."""
    for subject in subjects:
        change = changes[subject.address]
        if subject.address.kind is not Kind.JOB or change.action not in (
            Action.NOOP,
            Action.UPDATE,
        ):
            continue
        run = subject.newest_run
        if run is not None and run.status is RunStatus.FAILED:
            why = f": {run.error}" if run.error else ""
            yield warning(
                f"run {run.number} of {subject.address} failed{why}",
                f"Nothing has changed since. To see its output: trainctl logs '{subject.address}'. To run it again: trainctl run '{subject.address}'.",
                address=str(subject.address),
                code="failed-run",
            )


def dependency_problems(
    inputs: PlanInputs, subjects: Iterable[ResourceContext], changes: Mapping[Address, Change]
) -> Iterator[Diagnostic]:
    """New runs that this plan can't start, as what they follow won't have completed on their node."""
    by_address = {subject.address: subject for subject in subjects}
    told: set[tuple[Address, Address]] = set()
    for change in changes.values():
        if change.address.kind is not Kind.JOB or change.action not in _NEW_RUN:
            continue
        for needed in change.depends_on:
            pair = (change.address.group, needed.group)
            why = _unmet_dependency(change, by_address.get(needed), changes.get(needed))
            if why and pair not in told:
                told.add(pair)
                yield warning(
                    f"{change.address} will wait: {why}",
                    "Apply again after that run has completed.",
                    address=str(change.address),
                    code="waiting-for-run",
                )


def cycle_errors(
    inputs: PlanInputs, subjects: Iterable[ResourceContext], changes: Mapping[Address, Change]
) -> Iterator[Diagnostic]:
    """New runs that would wait for each other for ever, as where jobs begin with each other's checkpoints and none has any."""
    lacking = {
        subject.address
        for subject in subjects
        if subject.address.kind is Kind.JOB
        and changes[subject.address].action in _NEW_RUN
        and not _has_newest_run(subject.newest_run)
    }
    edges = {one: [to for to in changes[one].depends_on if to in lacking] for one in lacking}
    way = find_cycle({address: edges[address] for address in sorted(edges)})
    if way:
        steps = " \u2192 ".join(map(str, way))
        yield error(
            f"runs would wait for each other: {steps}",
            "Each run needs a checkpoint of another, and none has one yet. Remove load_checkpoint_config from one of the jobs until it has run.",
            address=str(way[0]),
            code="dependency-cycle",
        )


def _has_newest_run(run: RunRecord | None) -> bool:
    """Whether who follows a job has its newest run to begin after."""
    return run is not None and (run.status.live or run.status is RunStatus.COMPLETED)


def _unmet_dependency(change: Change, needed: ResourceContext | None, its: Change | None) -> str:
    """Why a job that has to come first neither has completed nor will be waited for on the node."""
    if needed is None or its is None or needed.address.kind is not Kind.JOB:
        return ""
    run, new = needed.newest_run, its.action in _NEW_RUN
    if not new and run is None:
        return f"{needed.address} has not run yet"
    if new or (run is not None and run.status.live):
        elsewhere = change.job_spec.cluster != its.job_spec.cluster
        return f"{needed.address} runs on cluster {its.job_spec.cluster}" if elsewhere else ""
    if run is not None and run.status is not RunStatus.COMPLETED:
        return f"run {run.number} of {needed.address} {ENDED[run.status]}"
    return ""


def source_problems(inputs: PlanInputs, changes: Iterable[Change]) -> Iterator[Diagnostic]:
    """Patterns that match nothing, and sources that nothing pins yet."""
    unpinned: list[Address] = []
    for change in changes:
        facts = inputs.weights.get(change.address)
        if facts is None or change.action in REMOVES:
            continue
        for pattern, nearest in facts.unmatched_patterns.items():
            hint = f"Did you mean {nearest!r}? " if nearest else ""
            yield warning(
                f"the pattern {pattern!r} matches no file",
                f"{hint}Patterns are shell-style globs and match paths inside the source.",
                address=str(change.address),
                code="unmatched-pattern",
            )
        if facts.resolved is not None and not facts.locked:
            unpinned.append(change.address)
    if unpinned:
        names = ", ".join(str(address) for address in unpinned)
        then = (
            "With --lockfile=readonly the revision is not recorded: the next apply uses the latest revision at that time."
            if inputs.lock_readonly
            else "To pin the revision, apply."
        )
        yield warning(
            f"not pinned in trainctl.lock yet: {names}",
            f"The upstream revision may change before the apply. {then}",
            address=str(unpinned[0]) if len(unpinned) == 1 else None,
            code="not-locked",
        )


def _destroys(change: Change) -> bool:
    if change.address.kind is Kind.JOB and change.action is Action.REPLACE:
        return change.stops is not None
    return change.action in REMOVES or change.action is Action.REPLACE


def _fate(change: Change) -> str:
    if change.action is Action.REPLACE:
        return "stopped" if change.address.kind is Kind.JOB else "replaced"
    return "removed from the state" if change.action is Action.FORGET else "destroyed"


def _unknown(address: Address, what: str, known: Iterable[Address]) -> Diagnostic:
    names = {str(one) for each in known for one in (each, each.group)}
    near = difflib.get_close_matches(str(address), sorted(names), n=1)
    hint = (
        f"Did you mean {near[0]}?"
        if near
        else "Run trainctl state list for the resources in the state."
    )
    return error(f"{what}: resource not found", hint, address=str(address), code="unknown-address")


def _live_runs(inputs: PlanInputs) -> Iterator[tuple[Address, RunRecord]]:
    """The newest run of each recorded job and all that attempts have begun, as far as they are live."""
    jobs = {resource for resource in inputs.state.resources if resource.kind is Kind.JOB}
    for address in sorted(jobs | inputs.unrecorded_runs.keys()):
        recorded, observed = inputs.state.resources.get(address), inputs.observed.get(address)
        known = merge_observed_outputs(recorded, observed).get("runs") or ()
        newest = [RunRecord.from_json(one) for one in known[-1:]]
        for run in (*newest, *inputs.unrecorded_runs.get(address, ())):
            if run.status.live:
                yield address, run


def _lost_nodes(inputs: PlanInputs, change: Change | None) -> set[str]:
    """The ids of the recorded nodes that a change of a cluster takes away."""
    if change is None or change.action is Action.NOOP:
        return set()
    name = change.address.name
    recorded = {f"{name}/{node['name']}" for node in change.outputs.get("nodes") or ()}
    if change.action is not Action.UPDATE:
        return recorded
    names = inputs.node_names.get(change.address)
    return set() if names is None else recorded - {f"{name}/{one}" for one in names}
