"""Checks of a plan: addresses, protection, dependencies, sources, and requirements of runs on their hosts."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING

from trainctl.desired.values import find_cycle
from trainctl.model.action import Action
from trainctl.model.address import Address, Kind
from trainctl.model.diagnostics import Diagnostic, error, warning
from trainctl.model.run import RunRecord, RunStatus
from trainctl.model.specs.job_spec import JobSpec
from trainctl.plan.changes import REMOVES
from trainctl.plan.placement import rank_placements, starting_changes
from trainctl.plan.resources import ENDED, ResourceContext, merge_observed_outputs
from trainctl.plan.values import Change, ImageRow, ImageSelection, PlanInputs
from trainctl.plugin_api.provider import ResourceStatus

if TYPE_CHECKING:
    pass


_NEW_RUN = frozenset({Action.CREATE, Action.REPLACE})


def selection_errors(inputs: PlanInputs, planned: Collection[Address]) -> Iterator[Diagnostic]:
    """Report unknown addresses in the options, and moves and imports that they leave out: all are done at once."""
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
    for address, edit in inputs.edits.addresses.items():
        if address not in planned:
            yield error(
                f"{address} is {edit}, but not selected",
                "Plan without --target and --exclude first.",
                address=str(address),
                code="invalid-move",
            )


def protection_errors(inputs: PlanInputs, changes: Iterable[Change]) -> Iterator[Diagnostic]:
    """Report changes that destroy resources protected by ``prevent_destroy``."""
    for change in changes:
        is_job = change.address.kind is Kind.JOB
        replaces = change.action is Action.REPLACE and not (is_job and change.stops is None)
        if not change.lifecycle.prevent_destroy or not (change.action in REMOVES or replaces):
            continue
        fate = "removed from the state" if change.action is Action.FORGET else "destroyed"
        if replaces:
            fate = "stopped" if is_job else "replaced"
        declared = inputs.desired.resources.get(change.address)
        advice = (
            f"Exclude it with --exclude '{change.address}', or set lifecycle.prevent_destroy to false."
            if declared
            else f"It was removed from the manifest, but its protection is in the state. To destroy it, restore its block with lifecycle.prevent_destroy: false and apply; to keep it, use --exclude '{change.address}'."
        )
        yield error(
            f"{change.address} is protected and would be {fate}",
            advice,
            address=str(change.address),
            code="prevent-destroy",
        )


def displaced_run_errors(inputs: PlanInputs, changes: Iterable[Change]) -> Iterator[Diagnostic]:
    """Report live runs whose nodes would be removed by a change of the cluster."""
    by_address = {change.address: change for change in changes}
    for address, run in _live_runs(inputs):
        if not run.ranks or (by_address[address].stops if address in by_address else None):
            continue
        cluster = Address(Kind.CLUSTER, run.ranks[0].node.partition("/")[0])
        change, lost = by_address.get(cluster), set[str]()  # lost: recorded nodes that it removes
        if change is not None and change.action is not Action.NOOP:
            lost = {f"{cluster.name}/{node['name']}" for node in change.outputs.get("nodes") or ()}
            if change.action is Action.UPDATE:
                nodes = inputs.planned_nodes.get(cluster)
                lost = set() if nodes is None else lost - {node.id for node in nodes}
        if any(rank.node in lost for rank in run.ranks):
            yield error(
                f"cannot remove {', '.join(sorted(lost))} from {cluster} while {address} runs there",
                f"Run {run.number} is live. Wait until it ends, or stop it: trainctl stop '{address}'.",
                address=str(cluster),
                code="live-run",
            )


def unobserved_warnings(
    inputs: PlanInputs, contexts: Iterable[ResourceContext]
) -> Iterator[Diagnostic]:
    """Warn about recorded resources that could not be refreshed."""
    reported = {diagnostic.summary for diagnostic in inputs.diagnostics}
    for context in contexts:
        observed = context.observed
        if observed is None or observed.status in (ResourceStatus.PRESENT, ResourceStatus.MISSING):
            continue
        if observed.unobserved and inputs.unreachable_nodes.issuperset(observed.unobserved):
            continue
        if context.address.kind is Kind.WEIGHTS and observed.detail in reported:
            continue
        summary, detail = f"{context.address} is {observed.status.value}", observed.detail
        if context.address.kind is Kind.CLUSTER and detail:
            summary, detail = detail, ""
        yield warning(
            summary,
            f"{detail.rstrip('.') + '. ' if detail else ''}The plan uses the recorded state.",
            address=str(context.address),
            code="node-not-observed",
        )


def failed_run_warnings(
    contexts: Iterable[ResourceContext], changes: Mapping[Address, Change]
) -> Iterator[Diagnostic]:
    """Warn about jobs whose newest run failed and that won't run again automatically."""
    for context in contexts:
        continues = changes[context.address].action in (Action.NOOP, Action.UPDATE)
        run = context.newest_run if continues and context.address.kind is Kind.JOB else None
        if run is not None and run.status is RunStatus.FAILED:
            why = f": {run.error}" if run.error else ""
            yield warning(
                f"run {run.number} of {context.address} failed{why}",
                f"Nothing has changed since. To see its output: trainctl logs '{context.address}'. To run it again: trainctl run '{context.address}'.",
                address=str(context.address),
                code="failed-run",
            )


def dependency_problems(
    contexts: Iterable[ResourceContext], changes: Mapping[Address, Change]
) -> Iterator[Diagnostic]:
    """Warn about new runs that must wait for runs outside of their node."""
    by_address = {context.address: context for context in contexts}
    reported: set[tuple[Address, Address]] = set()
    for change in changes.values():
        if change.address.kind is not Kind.JOB or change.action not in _NEW_RUN:
            continue
        for needed in change.depends_on:
            pair = (change.address.group, needed.group)
            why = _unmet_dependency(change, by_address.get(needed), changes.get(needed))
            if why and pair not in reported:
                reported.add(pair)
                yield warning(
                    f"{change.address} will wait: {why}",
                    "Apply again after that run has completed.",
                    address=str(change.address),
                    code="waiting-for-run",
                )


def cycle_errors(
    contexts: Iterable[ResourceContext], changes: Mapping[Address, Change]
) -> Iterator[Diagnostic]:
    """Report new runs that wait for each other, for example for checkpoints."""
    pending = {
        context.address
        for context in contexts
        if context.address.kind is Kind.JOB
        and changes[context.address].action in _NEW_RUN
        and not (
            (run := context.newest_run) and (run.status.live or run.status is RunStatus.COMPLETED)
        )
    }
    edges = {
        address: [needed for needed in changes[address].depends_on if needed in pending]
        for address in sorted(pending)
    }
    if cycle := find_cycle(edges):
        steps = " \u2192 ".join(map(str, cycle))
        yield error(
            f"runs would wait for each other: {steps}",
            "Each run needs a checkpoint of another, and none has one yet. Remove load_checkpoint_config from one of the jobs until it has run.",
            address=str(cycle[0]),
            code="dependency-cycle",
        )


def _unmet_dependency(change: Change, needed: ResourceContext | None, its: Change | None) -> str:
    """Return why a dependency is neither complete nor waited for on the node."""
    if needed is None or its is None or its.reuses or needed.address.kind is not Kind.JOB:
        return ""
    run, new = needed.newest_run, its.action in _NEW_RUN
    if not new and run is None:
        return f"{needed.address} has not run yet"
    if new or (run is not None and run.status.live):
        elsewhere = change.job_spec.cluster != its.job_spec.cluster
        return f"{needed.address} runs on cluster {its.job_spec.cluster}" if elsewhere else ""
    is_evaluated = needed.address == change.job_spec.followed_job
    if run is not None and run.status is not RunStatus.COMPLETED and not is_evaluated:
        return f"run {run.number} of {needed.address} {ENDED[run.status]}"
    return ""


def source_problems(inputs: PlanInputs, changes: Collection[Change]) -> Iterator[Diagnostic]:
    """Warn about patterns without match and unpinned sources."""
    unpinned: list[Address] = []
    local: list[Address] = []
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
        if facts.resolved is not None and any(
            file.is_local for file in islice(facts.resolved.files, 1)
        ):
            local.append(change.address)
    if local and any(change.action is not Action.NOOP for change in changes):
        yield warning(
            f"the plan is only for this machine: {', '.join(map(str, local))}",
            "Local files outside the manifest's directory are identified by their times. Move them into the directory, or use another source.",
            address=str(local[0]) if len(local) == 1 else None,
            code="local-source",
        )
    if unpinned:
        names = ", ".join(map(str, unpinned))
        advice = (
            "With --lockfile=readonly the revision is not recorded: the next apply uses the latest revision at that time."
            if inputs.lock_readonly
            else "To pin the revision, apply."
        )
        yield warning(
            f"not pinned in trainctl.lock yet: {names}",
            f"The upstream revision may change before the apply. {advice}",
            address=str(unpinned[0]) if len(unpinned) == 1 else None,
            code="not-locked",
        )


def _unknown(address: Address, label: str, known: Iterable[Address]) -> Diagnostic:
    names = {str(name) for address in known for name in (address, address.group)}
    similar = difflib.get_close_matches(str(address), sorted(names), n=1)
    hint = (
        f"Did you mean {similar[0]}?"
        if similar
        else "Run trainctl state list for the resources in the state."
    )
    return error(f"{label}: resource not found", hint, address=str(address), code="unknown-address")


def _live_runs(inputs: PlanInputs) -> Iterator[tuple[Address, RunRecord]]:
    """Yield live runs: the newest of each recorded job and all unrecorded ones."""
    jobs = {address for address in inputs.state.external if address.kind is Kind.JOB}
    for address in sorted(jobs | inputs.unrecorded_runs.keys()):
        recorded, observed = inputs.state.resources.get(address), inputs.observed.get(address)
        records = merge_observed_outputs(recorded, observed).get("runs") or ()
        newest = map(RunRecord.from_json, records[-1:])
        for run in (*newest, *inputs.unrecorded_runs.get(address, ())):
            if run.status.live:
                yield address, run


_INSTALL = "Install or create it there, or correct the manifest. Nothing was transferred yet."


def host_problems(inputs: PlanInputs, changes: Iterable[Change]) -> Iterator[Diagnostic]:
    """Report missing requirements, and nodes where a logout would end runs."""
    for job in starting_changes(changes):
        address = str(job.address)
        for text in inputs.missing_requirements.get(job.address, ()):
            yield error(
                text,
                "Add the file, or correct the name.",
                address=address,
                code="missing-on-host",
            )
        for placement in rank_placements(inputs, job):
            facts = placement.facts
            for lack in facts.missing_requirements.get(job.address, ()) if facts else ():
                summary = f"{placement.node}: {lack}"
                yield error(summary, _INSTALL, address=address, code="missing-on-host")
            is_linked = facts is not None and facts.reported["mount"] == "link"
            for mount in job.job_spec.mounts if is_linked else ():
                if mount.read_only and not mount.mount_location.startswith("/"):
                    yield warning(
                        f"{mount.host_path} is linked, not mounted: read-only access is not enforced",
                        "The node doesn't support private mounts.",
                        address=address,
                        code="writable-mount",
                    )
            if facts and not facts.reported["logout"]["survives"]:
                yield warning(
                    f"runs on {facts.id} would end when the user logs out",
                    "{why}. {fix}".format(**facts.reported["logout"]),
                    code="stops-at-logout",
                )


def spot_warnings(inputs: PlanInputs, changes: Iterable[Change]) -> Iterator[Diagnostic]:
    """Warn about jobs that ask for spot nodes of a cluster that has none."""
    for job in starting_changes(changes):
        cluster = inputs.desired.resources.get(job.job_spec.cluster_address)
        model = cluster and cluster.cluster_spec.settings.get("availability_model")
        if job.job_spec.compute.availability_model == "spot" and model != "spot":
            yield warning(
                f"{job.job_spec.cluster_address} has no spot nodes",
                f"{job.address} runs on the nodes that the cluster has. Remove availability_model, or create spot nodes.",
                address=str(job.address),
                code="no-spot-nodes",
            )


def image_of(job: JobSpec) -> ImageSelection | None:
    """Return the image and engine of a job, None if it runs on the host."""
    if job.image is None or not job.in_container:
        return None
    return ImageSelection(job.image.base_image, job.runtime.engine)


def image_rows(inputs: PlanInputs, changes: Iterable[Change]) -> tuple[ImageRow, ...]:
    """Return a row for each rank of each new run in a container."""
    rows: list[ImageRow] = []
    for job in starting_changes(changes):
        if (selection := image_of(job.job_spec)) is None:
            continue
        for at in rank_placements(inputs, job):
            facts = at.facts.images.get(selection) if at.facts else None
            engine = facts["engine"] if facts else selection.engine
            present, rdma = (facts["present"], facts["rdma"]) if facts else (None, None)
            rows.append(
                ImageRow(job.address, at.rank, at.node, selection.image, engine, present, rdma=rdma)
            )
    return tuple(rows)


def image_problems(inputs: PlanInputs, changes: Iterable[Change]) -> Iterator[Diagnostic]:
    """Report nodes without a working container engine, and unsupported settings."""
    for job in starting_changes(changes):
        selection = image_of(job.job_spec)
        if selection is None and job.job_spec.runtime.shm_size:
            yield warning(
                f"shm_size of {job.address} is ignored: the job doesn't run in a container",
                "The job uses the shared memory of its node. Remove shm_size, or set an image.",
                address=str(job.address),
                code="no-shm-size",
            )
        for placement in rank_placements(inputs, job) if selection is not None else ():
            facts = placement.facts.images.get(selection) if placement.facts and selection else None
            if facts and facts["engine"] is None:
                yield error(
                    f"{job.address} needs a container engine, but on {placement.node} {facts['why']}",
                    "Install podman, docker or apptainer there, or set runtime.engine: host.",
                    code="no-engine",
                    address=str(job.address),
                )
                break
