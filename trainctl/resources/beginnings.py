"""Runs that begin from earlier ones: as a repetition of one, or from a checkpoint of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from trainctl.apply.step import Lookup, Step
from trainctl.errors import NodeForgot, TrainctlError
from trainctl.ledger.state import Recorded
from trainctl.model.address import Address
from trainctl.model.job_spec import CheckpointReference, Image, JobSpec, LoadCheckpointConfig
from trainctl.model.run import RunRecord
from trainctl.resources.run_control import RunControl
from trainctl.store.store import Store

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
