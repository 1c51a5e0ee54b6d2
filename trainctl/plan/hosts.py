"""What jobs that are to start need of their hosts and don't find there; whether they survive a logout."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from trainctl.model.diagnostics import Diagnostic, error, warning
from trainctl.plan.seats import seats, starting
from trainctl.plan.values import Change, Inputs

_INSTALL = "Install or create it there, or correct the manifest. Nothing was moved yet."


def host_problems(inputs: Inputs, changes: Iterable[Change]) -> Iterator[Diagnostic]:
    """What each starting job lacks, and a warning for each node whose logout rules would end it."""
    told = set[str]()
    for job in starting(changes):
        resource = inputs.desired.resources.get(job.address)
        where = resource.where if resource else None
        address = str(job.address)
        for text in inputs.lacks.get(job.address, ()):
            yield error(
                text,
                "Add the file, or correct its name.",
                address=address,
                where=where,
                code="missing-on-host",
            )
        for seat in seats(inputs, job):
            facts = seat.facts
            for lack in facts.lacks.get(job.address, ()) if facts else ():
                said = f"{seat.node}: {lack}"
                yield error(said, _INSTALL, address=address, where=where, code="missing-on-host")
            if facts and facts.mount == "link":
                yield from _advisory(job)
            if facts and facts.logout and facts.id not in told:
                told.add(facts.id)
                yield warning(
                    f"runs on {facts.id} would end when their user logs out",
                    facts.logout,
                    code="ends-at-logout",
                )


def _advisory(job: Change) -> Iterator[Diagnostic]:
    """Directories of the host that a job could write to although they are meant to be read-only."""
    for mount in job.job_spec.mounts:
        if mount.read_only and not mount.mount_location.startswith("/"):
            yield warning(
                f"{mount.host_path} is linked, not mounted: nothing keeps the job from writing to it",
                "Private mounts don't work on its node.",
                address=str(job.address),
                code="writable-mount",
            )
