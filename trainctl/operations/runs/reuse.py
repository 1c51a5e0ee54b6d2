"""Reuse completed runs that equal the new runs of a plan; see docs/concepts/runs.md."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress

from trainctl.base.json import digest
from trainctl.base.lazy_dataclass import dataclass, replace
from trainctl.base.parallel import each
from trainctl.errors import StateMoved, TrainctlError, UsageError
from trainctl.ledger.state import RecordedResource, State
from trainctl.model.address import Address, Kind
from trainctl.model.diagnostics import Diagnostic, warning
from trainctl.model.json_codec import to_json
from trainctl.model.run import ReusedRun, RunRecord, RunStatus
from trainctl.model.specs.job_spec import JobSpec
from trainctl.operations.directories import environments_url, split_environment
from trainctl.operations.workspace import Workspace
from trainctl.plan.placement import starting_changes
from trainctl.plan.values import Change, Plan, PlanInputs
from trainctl.resources.runs.run_control import RunControl, runs_of

_AT_ONCE = 8
"""How many states are read at the same time."""


def plan_with_reuse(
    workspace: Workspace, inputs: PlanInputs, make: Callable[[PlanInputs], Plan], *, queries: bool
) -> Plan:
    """Make a plan that reuses completed runs, and add the identities of its new runs.

    ``queries``: whether to query runs that other states record as live.
    """
    plan = make(inputs)
    identities = run_identities(plan, inputs.state)
    requested = {*plan.options.run, *plan.options.replace}
    wanted = {
        change.address: identity
        for change in starting_changes(plan.acting)
        if (identity := identities[change.address])
        and change.address not in requested
        and may_reuse(change)
    }
    if wanted and inputs.options.reuse:
        sources, problems = _read_states(workspace, inputs.state)
        reusable = _find_runs(workspace, wanted, sources, queries=queries)
        if reusable:
            plan = make(replace(inputs, reusable=reusable))
        plan = replace(plan, diagnostics=(*plan.diagnostics, *problems))
    changes = (replace(change, identity=identities.get(change.address)) for change in plan.changes)
    return replace(plan, changes=tuple(changes)) if identities else plan


def run_identities(plan: Plan, state: State) -> dict[Address, str | None]:
    """Return the identity of each new run of a plan; None if it is unknown."""
    starting = starting_changes(plan.acting)
    changes = {change.address: change for change in plan.changes} if starting else {}
    known: dict[Address, str | None] = {}

    def identity_of(address: Address) -> str | None:
        if address not in known:
            known[address] = None  # while it is computed: a job that loads its own checkpoints
            known[address] = compute(address)
        return known[address]

    def compute(address: Address) -> str | None:
        change = changes.get(address)
        observed = map(RunRecord.from_json, change.outputs.get("runs", ()) if change else ())
        records = [*observed] or runs_of(state.find_record(address))
        newest = records[-1] if records else None
        if change is None or not starting_changes([change]):
            return newest.identity if newest and newest.status is RunStatus.COMPLETED else None
        job = change.job_spec
        if job.followed_job:
            return None  # it depends on checkpoints that are not saved yet
        if job.rerun_of:
            return next((run.identity for run in records if run.id == job.rerun_of), None)
        loaded = []
        for load in job.runtime.loads:
            source = identity_of(Address.parse(load.job)) if load.job and not load.run else load.run
            loaded.append(source and f"{source} {load.name}")
        identity = run_identity(job, change.covers.get("image_digest"), loaded)
        resumes_other = job.resume_from and newest and newest.identity != identity
        return None if resumes_other else identity

    return {change.address: identity_of(change.address) for change in starting}


def may_reuse(change: Change) -> bool:
    """Whether a run neither continues an earlier one nor stops one."""
    job = change.job_spec
    return not (change.stops or change.resumes or job.rerun_of or job.resume_from)


@dataclass(frozen=True, slots=True)
class _StateSource:
    """A state with runs to reuse; ``place`` is its name in messages, empty for the state of the plan."""

    url: str
    place: str
    state: State

    def runs(self, identities: Collection[str]) -> Iterator[tuple[RecordedResource, RunRecord]]:
        """Yield the runs with one of these identities, the newest of each job first."""
        records = {**self.state.forgotten, **self.state.resources}
        for job in (record for address, record in records.items() if address.kind is Kind.JOB):
            for run in reversed(job.outputs.get("runs") or ()):
                if run.get("identity") in identities:
                    yield job, RunRecord.from_json(run)


def _read_states(workspace: Workspace, state: State) -> tuple[list[_StateSource], list[Diagnostic]]:
    """Read the main state, its environments and the states of ``reuse_from``, after the plan's own."""
    main, _ = split_environment(workspace.state_url)
    urls = [main, *workspace.desired.reuse_from]
    with suppress(UsageError):  # states of a plugin can't be listed
        urls[1:1] = workspace.list_states(environments_url(main))
    own = _StateSource(workspace.state_url, "", state)
    places = {}
    for url in urls:
        base, name = split_environment(url)
        if url != own.url:
            places[url] = url if base != main else f"env {name}" if name else "the main state"

    def read(url: str) -> State | TrainctlError:
        try:
            return workspace.ledger_at(url).state()
        except TrainctlError as error:
            return error

    replies = list(zip(places.items(), each(read, places, _AT_ONCE), strict=True))
    others = [
        _StateSource(url, place, reply)
        for (url, place), reply in replies
        if isinstance(reply, State) and reply.lineage not in ("", state.lineage)
    ]
    problems = [
        warning(f"runs of {place} are not reused: {reply.summary}", reply.detail, code=reply.code)
        for (_, place), reply in replies
        if isinstance(reply, TrainctlError) and not isinstance(reply, StateMoved)
    ]
    return [own, *others], problems


def _find_runs(
    workspace: Workspace,
    wanted: Mapping[Address, str],
    sources: list[_StateSource],
    *,
    queries: bool,
) -> dict[Address, ReusedRun]:
    """Return the first completed run for each job, of the same job if there is one."""
    found: dict[Address, ReusedRun] = {}
    for source in sources:
        missing = {address: wanted[address] for address in wanted if address not in found}
        matching = list(source.runs(frozenset(missing.values())))
        live = [run for _, run in matching if run.status.live] if queries and source.place else []
        control = RunControl(workspace.agents, source.state.resources.get)
        observed = control.statuses(live) if live else {}
        current = (
            (job, observed[run.key].run if run.key in observed else run) for job, run in matching
        )
        usable = [
            (job, run)
            for job, run in current
            if run.status is RunStatus.COMPLETED and _is_usable(workspace, source, job, run)
        ]
        for address, identity in missing.items():
            runs = [(job, run) for job, run in usable if run.identity == identity]
            named = [pair for pair in runs if pair[0].address == address]
            # Equal jobs of one manifest are separate runs on purpose.
            renamed = [pair for pair in runs if pair[0].address not in workspace.desired.resources]
            for job, run in [*named, *renamed][:1]:
                where = f" in {source.place}" if source.place else ""
                is_own = not source.place and job.address == address
                owner = None if is_own else {"job": str(job.address), "state": source.url}
                reused = replace(run, reused_from=run.reused_from or owner)
                found[address] = ReusedRun(reused, f"run {run.number} of {job.address}{where}")
    return found


def _is_usable(
    workspace: Workspace, source: _StateSource, job: RecordedResource, run: RunRecord
) -> bool:
    """Whether the run's checkpoints are in the manifest's store, on the same nodes if it is theirs."""
    store, own = run.store or {}, workspace.checkpoints.place(lambda _: None, job.address, "", run)
    if any(store.get(key) != own[key] for key in ("url", "endpoint_url")):
        return False
    if own["secret"]:  # a bucket
        return True
    address = job.job_spec.cluster_address
    recorded, declared = source.state.find_record(address), workspace.desired.resources.get(address)
    if recorded is None or declared is None or recorded.provider != declared.provider:
        return False
    creates_machines = workspace.provider(declared.provider).capabilities.creates_machines
    return not creates_machines and recorded.cluster_spec.settings == declared.cluster_spec.settings


def run_identity(
    job: JobSpec, image_digest: str | None, loaded: Sequence[str | None]
) -> str | None:
    """Return the identity of a run, without names of jobs and projects; None if something is unknown.

    ``loaded`` identifies the checkpoints that it starts from. Secrets count by name and version.
    """
    pins = job.weight_pins or {}
    # of weights the source, files and version count, the name only where it is their location
    weights = [
        [
            item.mount_location or str(item.address),
            item.source.partition("@")[0],
            [list(item.allow_patterns or ()), list(item.ignore_patterns or ())],
            pins.get(str(item.address)),
        ]
        for item in job.weights
    ]
    needed = [
        job.code.digest,
        *loaded,
        *(pins.get(str(item.address)) for item in job.weights),
        image_digest if job.in_container else "host",
    ]
    if None in needed:
        return None
    runtime = to_json(job.runtime)
    load = job.runtime.load_checkpoint_config
    runtime["load_checkpoint_config"] = load and [load.enabled, load.download_folder]
    return digest(
        {
            "code": job.code.digest,
            "image": image_digest if job.in_container else None,
            "cluster": job.cluster,
            "compute": [job.compute.node_count, job.compute.accelerator],
            "runtime": runtime,
            "weights": weights,
            "mounts": to_json(job.mounts),
            "secrets": to_json(job.secrets),
            "loaded": list(loaded),
        }
    )
