"""Runs that attempts have started and not recorded, and runs that start from earlier ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from trainctl.apply.step import ApplyStep, Lookup
from trainctl.base.parallel import each
from trainctl.base.protocol.runs import STATUS, StatusRequest
from trainctl.errors import NodeError, TrainctlError, UnknownOnNode
from trainctl.ledger.state import Intent, RecordedResource, State
from trainctl.model.address import Address, Kind
from trainctl.model.run import RankRecord, RunRecord, RunStatus, run_id
from trainctl.model.specs.job_spec import CheckpointSelector, ImageSpec, JobSpec, LoadCheckpointSpec
from trainctl.plugin_api.provider import Node
from trainctl.resources.agents import Agents, nodes_of
from trainctl.resources.run_control import QUERY_SECONDS, RunControl, RunReports
from trainctl.resources.run_status import with_status
from trainctl.store.store import MirrorStore

_AT_ONCE = 16
_NEW_RUN = frozenset({"create", "replace"})

LocateStore = Callable[[Address, str, RunRecord], Mapping[str, Any]]
"""Where the checkpoints of a run of a job and a project are kept."""


class AttemptedRun(NamedTuple):
    """An attempt and its run, None where no node that answers knows of it; and why others could not be asked."""

    attempt: Intent
    run: RunRecord | None
    node_error: NodeError | None

    @property
    def did_start(self) -> bool:
        """Whether its run goes on, or did something before it ended."""
        return self.run is not None and (self.run.status.live or self.run.started_at is not None)


def unrecorded_attempts(state: State) -> list[Intent]:
    """The attempts at a run whose end nobody recorded, of each job the oldest first."""
    jobs = sorted({*state.orphaned_intents, *state.open_intents})
    return [
        attempt for job in jobs for attempt in reversed(state.attempts(job)) if starts_run(attempt)
    ]


def starts_run(attempt: Intent) -> bool:
    """Whether it is an attempt at a new run of a job."""
    return attempt.address.kind is Kind.JOB and attempt.action in _NEW_RUN


def find_attempted_runs(
    agents: Agents, lookup: Lookup, attempts: Iterable[Intent], place: LocateStore
) -> tuple[AttemptedRun, ...]:
    """What attempts have begun, as their nodes tell it now; each node is asked once."""
    wanted: dict[Address, list[Intent]] = {}
    for one in attempts:
        wanted.setdefault(_attempt_cluster(one), []).append(one)
    found: list[AttemptedRun] = []
    for address, ones in wanted.items():
        cluster = lookup(address)
        nodes = nodes_of(cluster) if cluster else ()
        provider = cluster.provider if cluster else ""
        keys = sorted({one.key for one in ones})
        told = each(lambda node: _query_runs(agents, provider, node, keys), nodes, _AT_ONCE)  # noqa: B023 (ends with the loop's turn)
        node_error = next((one for one in told if isinstance(one, NodeError)), None)
        reports = {
            node.id: one
            for node, one in zip(nodes, told, strict=True)
            if not isinstance(one, NodeError)
        }
        found += [
            AttemptedRun(one, _run_from_reports(one, reports, place), node_error) for one in ones
        ]
    return tuple(found)


def _attempt_cluster(attempt: Intent) -> Address:
    return Address(Kind.CLUSTER, str(attempt.inputs.get("cluster")))


def _query_runs(
    agents: Agents, provider: str, node: Node, keys: Sequence[str]
) -> RunReports | NodeError:
    request = StatusRequest(root=node.root, keys=[*keys])
    try:
        return agents.ephemeral_agent(provider, node).call(STATUS, request, timeout=QUERY_SECONDS)[
            "runs"
        ]
    except NodeError as error:
        return error


def _run_from_reports(
    attempt: Intent, reports: Mapping[str, RunReports], place: LocateStore
) -> RunRecord | None:
    """The run as those of its ranks tell it that were made."""
    told = {node: runs.get(attempt.key) for node, runs in reports.items()}
    answers = {node: answer for node, answer in told.items() if answer}
    if not answers:
        return None
    by_rank = sorted(answers.items(), key=lambda one: one[1]["rank"])
    first = by_rank[0][1]
    job = JobSpec.from_attributes(attempt.attributes)
    run = RunRecord(
        run_id(attempt.key),
        first["number"],
        attempt.key,
        first["generation"],
        ranks=tuple(
            RankRecord(answer["rank"], node, RunStatus.CREATED) for node, answer in by_rank
        ),
        created_at=attempt.time,
        code=job.code.digest,
    )
    run = with_status(run, [answer for _, answer in by_rank])
    return replace(run, store=place(attempt.address, job.project, run))


RERUN, RESUME = "rerun_of", "resume_from"
"""Attributes of a job whose newest run began so: the id of the run that it repeats; ``latest``."""


@dataclass(frozen=True, slots=True)
class PreviousRun:
    """What an earlier run was made of: its job, and listings by weights address."""

    run: RunRecord
    job: JobSpec
    listings: Mapping[str, str]


def load_previous_run(control: RunControl, store: MirrorStore, run: RunRecord) -> PreviousRun:
    """What a run was made of; TrainctlError names what of it is gone."""
    if not run.ranks:
        raise _not_repeatable_error(run, "it never reached a node", "Nothing was stored.")
    node = run.ranks[0].node
    try:
        known = control.previous_run(run)
    except UnknownOnNode as error:
        detail = "Its inputs were deleted from the node."
        raise _not_repeatable_error(run, f"{node} has no record of it", detail) from error
    run_inputs = known.get("run_inputs")
    if not run_inputs:
        raise _not_repeatable_error(run, "it is from an older version of trainctl")
    if not known["code_present"]:
        raise _not_repeatable_error(
            run, f"its code was deleted from {node}", f"It was {known['code']}."
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
        f"run {run.number} ({run.id}) can't be repeated: {why}", detail, code="rerun-inputs-missing"
    )


def rerun_step(step: ApplyStep, previous_run: PreviousRun) -> ApplyStep:
    """The step with the earlier run's attributes, and weights as they were then."""
    require_inputs(previous_run, step.lookup)
    job = replace(previous_run.job, rerun_of=previous_run.run.id)
    if previous_run.run.image_digest and job.image:
        job = replace(job, image=_pin_image(job.image, previous_run.run.image_digest))
    return replace(
        step,
        attributes=job.to_attributes(),
        lookup=_lookup_previous_listings(step.lookup, previous_run),
    )


def _pin_image(image: ImageSpec, digest: str) -> ImageSpec:
    """The image that a tag meant then; one of this machine's own has no name by digest."""
    name = image.base_image
    if "@" in name or name.startswith("localhost/"):
        return image
    folder, slash, last = name.rpartition("/")
    return replace(image, base_image=f"{folder}{slash}{last.partition(':')[0]}@{digest}")


def require_inputs(previous_run: PreviousRun, lookup: Lookup) -> None:
    """TrainctlError names what the run needed and the state has no more."""
    needed = [
        previous_run.job.cluster_address,
        *(item.address for item in previous_run.job.weights),
    ]
    gone = [str(address) for address in needed if lookup(address) is None]
    if gone:
        detail = "It was removed from the manifest since."
        raise _not_repeatable_error(previous_run.run, f"{', '.join(gone)} not found", detail)


def _lookup_previous_listings(lookup: Lookup, previous_run: PreviousRun) -> Lookup:
    def found(address: Address) -> RecordedResource | None:
        recorded, listing = lookup(address), previous_run.listings.get(str(address))
        if recorded is None or listing is None:
            return recorded
        return replace(recorded, outputs={**recorded.outputs, "listing": listing})

    return found


@dataclass(frozen=True, slots=True)
class RunStart:
    """A step as its run is to begin it, and the run that it repeats, if it does."""

    step: ApplyStep
    repeated_run: RunRecord | None = None

    def mark(self, run: RunRecord) -> RunRecord:
        """The new run's record with where it came from."""
        return replace(run, rerun_of=self.repeated_run.id if self.repeated_run else None)


def prepare_start(
    control: RunControl, store: MirrorStore, step: ApplyStep, earlier: Sequence[RunRecord]
) -> RunStart:
    """How the step's run begins; TrainctlError if what it is to begin from is gone."""
    job = step.job_spec
    if job.resume_from:
        newest = CheckpointSelector(job.project, str(step.address))
        return RunStart(_with_checkpoints(step, [*job.runtime.loads, newest]))
    repeated = next((run for run in earlier if run.id == job.rerun_of), None)
    if repeated is None:
        return RunStart(step)
    again = rerun_step(step, load_previous_run(control, store, repeated))
    return RunStart(
        _with_checkpoints(again, _loaded_references(repeated)) if repeated.loaded else again,
        repeated,
    )


def _with_checkpoints(step: ApplyStep, references: Sequence[CheckpointSelector]) -> ApplyStep:
    """The step with other checkpoints to begin with; the node finds them when the run starts."""
    job = step.job_spec
    before = job.runtime.load_checkpoint_config or LoadCheckpointSpec()
    config = replace(before, enabled=True, checkpoints=tuple(references))
    job = replace(job, runtime=replace(job.runtime, load_checkpoint_config=config))
    return replace(step, attributes=job.to_attributes())


def _loaded_references(run: RunRecord) -> list[CheckpointSelector]:
    """The very checkpoints that a run began with, whatever there is by now."""
    found = []
    for one in run.loaded:
        project, _, folder = str(one["run"]).split("/")
        run_id = folder.partition("-")[2]
        found.append(CheckpointSelector(project, run=run_id, name=str(one["name"])))
    return list(dict.fromkeys(found))
