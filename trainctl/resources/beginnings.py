"""Runs that attempts have started and not recorded, and runs that start from earlier ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from trainctl.apply.step import Lookup, Step
from trainctl.base.parallel import each
from trainctl.base.protocol.runs import STATUS, StatusRequest
from trainctl.errors import NodeError, NodeForgot, TrainctlError
from trainctl.ledger.state import Intent, Recorded, State
from trainctl.model.address import Address, Kind
from trainctl.model.job_spec import CheckpointReference, Image, JobSpec, LoadCheckpointConfig
from trainctl.model.run import RankRecord, RunRecord, RunStatus, run_id
from trainctl.resources.agents import Agents, nodes_of
from trainctl.resources.run_control import LOOK_SECONDS, Answer, RunControl
from trainctl.resources.runs import with_status
from trainctl.spi.provider import Node
from trainctl.store.store import Store

_AT_ONCE = 16
_NEW_RUN = frozenset({"create", "replace"})

Place = Callable[[Address, str, RunRecord], Mapping[str, Any]]
"""Where the checkpoints of a run of a job and a project are kept."""


class Begun(NamedTuple):
    """An attempt and its run, None where no node that answers knows of it; and why others could not be asked."""

    attempt: Intent
    run: RunRecord | None
    silent: NodeError | None

    @property
    def counts(self) -> bool:
        """Whether its run goes on, or did something before it ended."""
        return self.run is not None and (self.run.status.live or self.run.started_at is not None)


def attempts_of(state: State) -> list[Intent]:
    """The attempts at a run whose end nobody recorded, of each job the oldest first."""
    jobs = sorted({*state.unfinished, *state.open_intents})
    return [one for job in jobs for one in reversed(state.attempts(job)) if starts_run(one)]


def starts_run(attempt: Intent) -> bool:
    """Whether it is an attempt at a new run of a job."""
    return attempt.address.kind is Kind.JOB and attempt.action in _NEW_RUN


def begun(
    agents: Agents, lookup: Lookup, attempts: Iterable[Intent], place: Place
) -> tuple[Begun, ...]:
    """What attempts have begun, as their nodes tell it now; each node is asked once."""
    wanted: dict[Address, list[Intent]] = {}
    for one in attempts:
        wanted.setdefault(_cluster(one), []).append(one)
    found: list[Begun] = []
    for address, ones in wanted.items():
        cluster = lookup(address)
        nodes = nodes_of(cluster) if cluster else ()
        provider = cluster.provider if cluster else ""
        keys = sorted({one.key for one in ones})
        told = each(lambda node: _ask(agents, provider, node, keys), nodes, _AT_ONCE)  # noqa: B023 (ends with the loop's turn)
        silent = next((one for one in told if isinstance(one, NodeError)), None)
        heard = {
            node.id: one
            for node, one in zip(nodes, told, strict=True)
            if not isinstance(one, NodeError)
        }
        found += [Begun(one, _run(one, heard, place), silent) for one in ones]
    return tuple(found)


def _cluster(attempt: Intent) -> Address:
    return Address(Kind.CLUSTER, str(attempt.inputs.get("cluster")))


def _ask(agents: Agents, provider: str, node: Node, keys: Sequence[str]) -> Answer | NodeError:
    request = StatusRequest(root=node.root, keys=[*keys])
    try:
        return agents.to_look(provider, node).call(STATUS, request, timeout=LOOK_SECONDS)["runs"]
    except NodeError as error:
        return error


def _run(attempt: Intent, heard: Mapping[str, Answer], place: Place) -> RunRecord | None:
    """The run as those of its ranks tell it that were made."""
    told = {node: runs.get(attempt.key) for node, runs in heard.items()}
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
class Past:
    """What an earlier run was made of: its job, and listings by weights address."""

    run: RunRecord
    job: JobSpec
    listings: Mapping[str, str]


def past_of(control: RunControl, store: Store, run: RunRecord) -> Past:
    """What a run was made of; TrainctlError names what of it is gone."""
    if not run.ranks:
        raise _unrepeatable(run, "it never reached a node", "Nothing of it was kept.")
    node = run.ranks[0].node
    try:
        known = control.past(run)
    except NodeForgot as error:
        detail = "What it was made of went with what was deleted there."
        raise _unrepeatable(run, f"{node} knows nothing of it any more", detail) from error
    made_of = known.get("made_of")
    if not made_of:
        raise _unrepeatable(run, "it is from an older version of trainctl")
    if not known["code_present"]:
        raise _unrepeatable(run, f"its code is gone from {node}", f"It was {known['code']}.")
    listings: Mapping[str, str] = made_of["listings"]
    for address, listing in sorted(listings.items()):
        if store.load_listing(listing) is None:
            raise _unrepeatable(
                run,
                f"{address} as it was then is gone from the mirror",
                f"Its listing was {listing[:12]}. A new run takes today's: trainctl run.",
            )
    return Past(run, JobSpec.from_attributes(made_of["attributes"]), listings)


def _unrepeatable(run: RunRecord, why: str, detail: str = "") -> TrainctlError:
    return TrainctlError(
        f"run {run.number} ({run.id}) can't be repeated: {why}", detail, code="not-repeatable"
    )


def as_it_was(step: Step, past: Past) -> Step:
    """The step with the earlier run's attributes, and weights as they were then."""
    as_it_needs(past, step.lookup)
    job = replace(past.job, rerun_of=past.run.id)
    if past.run.image_digest and job.image:
        job = replace(job, image=_by_digest(job.image, past.run.image_digest))
    return replace(step, attributes=job.to_attributes(), lookup=_as_then(step.lookup, past))


def _by_digest(image: Image, digest: str) -> Image:
    """The image that a tag meant then; one of this machine's own has no name by digest."""
    name = image.base_image
    if "@" in name or name.startswith("localhost/"):
        return image
    folder, slash, last = name.rpartition("/")
    return replace(image, base_image=f"{folder}{slash}{last.partition(':')[0]}@{digest}")


def as_it_needs(past: Past, lookup: Lookup) -> None:
    """TrainctlError names what the run needed and the state has no more."""
    needed = [past.job.cluster_address, *(one.address for one in past.job.weights)]
    gone = [str(address) for address in needed if lookup(address) is None]
    if gone:
        detail = "It was taken out of the manifest since."
        raise _unrepeatable(past.run, f"{', '.join(gone)} is gone", detail)


def _as_then(lookup: Lookup, past: Past) -> Lookup:
    def found(address: Address) -> Recorded | None:
        recorded, listing = lookup(address), past.listings.get(str(address))
        if recorded is None or listing is None:
            return recorded
        return replace(recorded, outputs={**recorded.outputs, "listing": listing})

    return found


@dataclass(frozen=True, slots=True)
class Beginning:
    """A step as its run is to begin it, and the run that it repeats, if it does."""

    step: Step
    repeats: RunRecord | None = None

    def mark(self, run: RunRecord) -> RunRecord:
        """The new run's record with where it came from."""
        return replace(run, rerun_of=self.repeats.id if self.repeats else None)


def begin(control: RunControl, store: Store, step: Step, earlier: Sequence[RunRecord]) -> Beginning:
    """How the step's run begins; TrainctlError if what it is to begin from is gone."""
    job = step.job_spec
    if job.resume_from:
        newest = CheckpointReference(job.project, str(step.address))
        return Beginning(_loading(step, [*job.runtime.loads, newest]))
    repeated = next((run for run in earlier if run.id == job.rerun_of), None)
    if repeated is None:
        return Beginning(step)
    again = as_it_was(step, past_of(control, store, repeated))
    return Beginning(_loading(again, _exactly(repeated)) if repeated.loaded else again, repeated)


def _loading(step: Step, references: Sequence[CheckpointReference]) -> Step:
    """The step with other checkpoints to begin with; the node finds them when the run starts."""
    job = step.job_spec
    before = job.runtime.load_checkpoint_config or LoadCheckpointConfig()
    config = replace(before, enabled=True, checkpoints=tuple(references))
    job = replace(job, runtime=replace(job.runtime, load_checkpoint_config=config))
    return replace(step, attributes=job.to_attributes())


def _exactly(run: RunRecord) -> list[CheckpointReference]:
    """The very checkpoints that a run began with, whatever there is by now."""
    found = []
    for one in run.loaded:
        project, _, folder = str(one["run"]).split("/")
        run_id = folder.partition("-")[2]
        found.append(CheckpointReference(project, run=run_id, name=str(one["name"])))
    return list(dict.fromkeys(found))
