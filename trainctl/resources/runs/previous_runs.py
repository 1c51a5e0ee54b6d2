"""Earlier runs: those of attempts, those to repeat, those that block a new run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from trainctl.base.lazy_dataclass import dataclass, replace
from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.base.parallel import each
from trainctl.base.protocol.runs import STATUS, RunReport, StatusRequest
from trainctl.errors import NodeError, TrainctlError, UnknownOnNode
from trainctl.ledger.state import Intent, Lookup, RecordedResource, State
from trainctl.model.address import Address, Kind
from trainctl.model.run import RankRecord, RunRecord, RunStatus, run_id
from trainctl.model.specs.job_spec import JobSpec
from trainctl.model.specs.runtime import CheckpointSelector, LoadCheckpointSpec
from trainctl.plugin_api.provider import Node
from trainctl.resources.agents import Agents, nodes_of
from trainctl.resources.runs.run_control import (
    QUERY_SECONDS,
    ObservedRun,
    RunControl,
    RunReports,
    runs_of,
    with_status,
)

if TYPE_CHECKING:
    from trainctl.apply.step import ApplyStep
    from trainctl.store.store import MirrorStore

_AT_ONCE = 16
_NEW_RUN = frozenset({"create", "replace"})

LocateStore = Callable[[Address, str, RunRecord], Mapping[str, Any]]
"""Return the checkpoint store of a run, by job address and project."""


class AttemptedRun(NamedTuple):
    """An attempt, its run if a node has it, and an unreachable node's error."""

    attempt: Intent
    run: RunRecord | None
    node_error: NodeError | None

    @property
    def did_start(self) -> bool:
        """Whether its run is live, or has executed anything."""
        return self.run is not None and (self.run.status.live or self.run.started_at is not None)


def unrecorded_attempts(state: State) -> list[Intent]:
    """Return attempts to start a run that have no outcome, oldest first."""
    jobs = sorted({*state.orphaned_intents, *state.open_intents})
    return [
        attempt for job in jobs for attempt in reversed(state.attempts(job)) if starts_run(attempt)
    ]


def starts_run(attempt: Intent) -> bool:
    """Whether an attempt starts a new run of a job."""
    return attempt.address.kind is Kind.JOB and attempt.action in _NEW_RUN


def find_attempted_runs(
    agents: Agents, lookup: Lookup, attempts: Iterable[Intent], place: LocateStore
) -> tuple[AttemptedRun, ...]:
    """Query the runs of attempts; each node is queried once."""
    from trainctl.resources.runs.batch_runs import BatchCluster

    def query(provider: str, keys: list[str], node: Node) -> RunReports | NodeError:
        request = StatusRequest(root=node.root, keys=keys)
        try:
            agent = agents.of(provider, node, ephemeral=True)
            return agent.call(STATUS, request, timeout=QUERY_SECONDS)["runs"]
        except NodeError as error:
            return error

    by_cluster: dict[Address, list[Intent]] = {}
    for attempt in attempts:
        address = Address(Kind.CLUSTER, str(attempt.inputs.get("cluster")))
        by_cluster.setdefault(address, []).append(attempt)
    runs: list[AttemptedRun] = []
    for address, of_cluster in by_cluster.items():
        cluster = lookup(address)
        replies: list[tuple[str, RunReports | NodeError]] = []
        if cluster and (batch := BatchCluster.of(agents, cluster)):
            jobs = (
                (attempt.key, JobSpec.from_attributes(attempt.attributes)) for attempt in of_cluster
            )
            reports = batch.reports({key: job.compute.node_count for key, job in jobs})
            of_ranks = (
                [reports]
                if isinstance(reports, NodeError)
                else [{key: report} for key, ranks in reports.items() for report in ranks]
            )
            replies = [(batch.node.id, reply) for reply in of_ranks]
        elif cluster:
            keys = sorted({attempt.key for attempt in of_cluster})
            nodes = nodes_of(cluster)
            names = (node.id for node in nodes)
            of_nodes = each(partial(query, cluster.provider, keys), nodes, _AT_ONCE)
            replies = list(zip(names, of_nodes, strict=True))
        error = next((reply for _, reply in replies if isinstance(reply, NodeError)), None)
        for attempt in of_cluster:
            found = [
                (node, report)
                for node, reply in replies
                if not isinstance(reply, NodeError) and (report := reply.get(attempt.key))
            ]
            found.sort(key=lambda pair: pair[1]["rank"])
            runs.append(AttemptedRun(attempt, _run_of_ranks(attempt, found, place), error))
    return tuple(runs)


def _run_of_ranks(
    attempt: Intent, by_rank: Sequence[tuple[str, RunReport]], place: LocateStore
) -> RunRecord | None:
    if not by_rank:
        return None
    first = by_rank[0][1]
    job = JobSpec.from_attributes(attempt.attributes)
    run = RunRecord(
        run_id(attempt.key),
        first["number"],
        attempt.key,
        first["generation"],
        ranks=tuple(
            RankRecord(report["rank"], node, RunStatus.CREATED) for node, report in by_rank
        ),
        created_at=attempt.time,
        code=job.code.digest,
        max_duration_seconds=job.max_duration_seconds,
    )
    run = with_status(run, [report for _, report in by_rank])
    return replace(run, store=place(attempt.address, job.project, run))


RERUN, RESUME = "rerun_of", "resume_from"
"""Job attributes of its newest run: the id of the repeated run; ``latest``."""


@dataclass(frozen=True, slots=True)
class PreviousRun:
    """The inputs of an earlier run: its job, and listing ids by weights address."""

    run: RunRecord
    job: JobSpec
    listings: Mapping[str, str]


def load_previous_run(control: RunControl, store: MirrorStore, run: RunRecord) -> PreviousRun:
    """Load the inputs of a run; TrainctlError names a missing input."""
    if not run.ranks:
        raise _not_repeatable_error(run, "it never reached a node", "Nothing was stored.")
    node = run.ranks[0].node
    try:
        stored = control.previous_run(run)
    except UnknownOnNode as error:
        detail = "Its inputs were deleted from the node."
        raise _not_repeatable_error(run, f"{node} has no record of it", detail) from error
    run_inputs = stored["run_inputs"]
    if not stored["code_present"]:
        raise _not_repeatable_error(
            run, f"its code was deleted from {node}", f"It was {stored['code']}."
        )
    listings: Mapping[str, str] = run_inputs["listings"]
    for address, listing in sorted(listings.items()):
        if store.load_listing(listing) is None:
            raise _not_repeatable_error(
                run,
                f"{address} of that run was deleted from the mirror",
                f"Its listing was {listing[:12]}. To start a new run with the current weights: trainctl run.",
            )
    return PreviousRun(run, JobSpec.from_attributes(run_inputs["attributes"]), listings)


def _not_repeatable_error(run: RunRecord, why: str, detail: str = "") -> TrainctlError:
    return TrainctlError(
        f"{run_name(run)} can't be repeated: {why}", detail, code="rerun-inputs-missing"
    )


def require_inputs(previous_run: PreviousRun, lookup: Lookup) -> None:
    """Raise TrainctlError if the state has no record of an input of the run."""
    needed = [
        previous_run.job.cluster_address,
        *(item.address for item in previous_run.job.weights),
    ]
    gone = [str(address) for address in needed if lookup(address) is None]
    if gone:
        detail = "It was removed from the manifest since."
        raise _not_repeatable_error(previous_run.run, f"{', '.join(gone)} not found", detail)


@dataclass(frozen=True, slots=True)
class RunStart:
    """A step with the inputs of its new run, and the run that it repeats, if any."""

    step: ApplyStep
    repeated_run: RunRecord | None = None


def prepare_start(
    control: RunControl, store: MirrorStore, step: ApplyStep, earlier: Sequence[RunRecord]
) -> RunStart:
    """Return how the step's run starts; TrainctlError if inputs are missing."""
    from trainctl.inputs.image_digests import by_digest

    job = step.job_spec
    pins, loads = job.checkpoint_pins or {}, job.runtime.loads
    if pins:
        loads = tuple(_pinned(load, pins[load.best_of]) if load.metric else load for load in loads)
        step = _with_checkpoints(step, loads)
    if job.resume_from:
        newest = CheckpointSelector(job.project, str(step.address))
        if job.resume_from != "latest":
            newest = _pinned(newest, job.resume_from)
        return RunStart(_with_checkpoints(step, [*loads, newest]))
    repeated = next((run for run in earlier if run.id == job.rerun_of), None)
    if repeated is None:
        return RunStart(step)
    previous = load_previous_run(control, store, repeated)
    require_inputs(previous, step.lookup)
    job = replace(previous.job, rerun_of=repeated.id)
    digest, image = repeated.image_digest, job.image
    # Local images have no name by digest.
    if (
        digest
        and image
        and "@" not in image.base_image
        and not image.base_image.startswith("localhost/")
    ):
        job = replace(job, image=replace(image, base_image=by_digest(image.base_image, digest)))

    def lookup(address: Address) -> RecordedResource | None:
        recorded, listing = step.lookup(address), previous.listings.get(str(address))
        if recorded is None or listing is None:
            return recorded
        return replace(recorded, outputs={**recorded.outputs, "listing": listing})

    again = replace(step, attributes=job.to_attributes(), lookup=lookup)
    loaded = []  # exactly the checkpoints that it started with
    for checkpoint in repeated.reported.get("loaded") or ():
        project, _, folder = str(checkpoint["run"]).split("/")
        run_id, name = folder.partition("-")[2], str(checkpoint["name"])
        loaded.append(CheckpointSelector(project, run=run_id, name=name, force=True))
    if loaded:
        again = _with_checkpoints(again, list(dict.fromkeys(loaded)))
    return RunStart(again, repeated)


def _pinned(load: CheckpointSelector, pin: str) -> CheckpointSelector:
    run, _, name = pin.partition("/")
    return CheckpointSelector(load.project, run=run, name=name)


def _with_checkpoints(step: ApplyStep, references: Sequence[CheckpointSelector]) -> ApplyStep:
    """Return the step with checkpoints to load, which the node selects."""
    job = step.job_spec
    before = job.runtime.load_checkpoint_config or LoadCheckpointSpec()
    config = replace(before, enabled=True, checkpoints=tuple(references))
    job = replace(job, runtime=replace(job.runtime, load_checkpoint_config=config))
    return replace(step, attributes=job.to_attributes())


@dataclass(frozen=True, slots=True)
class BlockingRuns:
    """Live runs to wait for, and the only possible node's id; or why to defer."""

    follows: tuple[tuple[Address, RunRecord], ...] = ()
    node: str | None = None
    blocked_reason: str = ""


def find_blocking_runs(
    control: RunControl, lookup: Lookup, depends_on: Iterable[Address], job: JobSpec
) -> BlockingRuns:
    """Query the dependencies of a job that may run on any suitable node of its cluster.

    A run whose checkpoints the job evaluates may have ended in any way.
    """
    possible = set(_possible_nodes(lookup(job.cluster_address), job))
    jobs = [address for address in depends_on if address.kind is Kind.JOB]
    newest = {address: next(reversed(runs_of(lookup(address))), None) for address in jobs}
    observed = control.statuses([run for run in newest.values() if run and run.status.live])
    follows: list[tuple[Address, RunRecord]] = []
    blockers: list[str] = []
    for address, recorded in newest.items():
        if recorded is None:
            blockers.append(f"{address} has not run yet")
            continue
        run, problem = observed.get(recorded.key, ObservedRun(recorded, None))
        is_evaluated = address == job.followed_job
        # the checkpoints are those that rank 0 sees
        nodes_of_run = {rank.node for rank in (run.ranks[:1] if is_evaluated else run.ranks)}
        if problem is not None:
            blockers.append(f"{address}: {problem.summary}")
        elif not (run.status.live or is_evaluated):
            if run.status is not RunStatus.COMPLETED:
                blockers.append(f"run {run.number} of {address}: {run.status.words}")
        elif len(nodes_of_run) == 1 and nodes_of_run <= possible:
            possible = nodes_of_run
            follows.append((address, run))
        else:
            live = "live " if run.status.live else ""
            nodes = ", ".join(rank.node for rank in run.ranks)
            blockers.append(f"run {run.number} of {address} is {live}on {nodes}")
    if not blockers:
        return BlockingRuns(tuple(follows), next(iter(possible)) if follows else None)
    more = f", and {len(blockers) - 1} more" if len(blockers) > 1 else ""
    return BlockingRuns(blocked_reason=f"waits: {blockers[0]}{more}")


def _possible_nodes(cluster: RecordedResource | None, job: JobSpec) -> list[str]:
    """Return the ids of nodes where a run may wait; none for a job on several."""
    nodes = nodes_of(cluster)
    return [node.id for node in nodes] if 1 in (job.compute.node_count, len(nodes)) else []


class ReplacedRun:
    """Earlier runs of a job; the newest may be live."""

    def __init__(self, step: ApplyStep, control: RunControl, earlier: Sequence[RunRecord]) -> None:
        self.earlier = tuple(earlier)
        self._step = step
        self._control = control
        self.live = self.earlier[-1] if earlier and is_active(earlier[-1]) else None

    def stop(self) -> bool:
        """Stop the live run and log it; return whether there was one."""
        if self.live is None:
            return False
        self._step.notify(f"stops {run_name(self.live)}")
        self.earlier = (*self.earlier[:-1], self._control.stop(self.live))
        self.live = None
        return True


def is_active(run: RunRecord) -> bool:
    """Whether any rank may be live, though another rank was lost."""
    return run.status.live or any(rank.status.live for rank in run.ranks)


def run_name(run: RunRecord) -> str:
    """Return the number and id of a run, for people."""
    return f"run {run.number} ({run.id})"
