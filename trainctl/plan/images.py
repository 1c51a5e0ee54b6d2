"""Which jobs run in a container, what image each of their ranks needs on its node, and whether anything there can run it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from trainctl.model.diagnostics import Diagnostic, error, warning
from trainctl.model.job_spec import JobSpec
from trainctl.plan.seats import Seat, seats, starting
from trainctl.plan.values import Change, ImageFacts, ImageLine, ImageWish, Inputs

_WITHOUT_SHM_SIZE = ("apptainer",)


def image_of(job: JobSpec) -> ImageWish | None:
    """The image that a job runs in, and the engine it insists on; None for a job that runs on the host."""
    if job.image is None or not job.in_container:
        return None
    return ImageWish(job.image.base_image, job.runtime.engine)


def image_lines(inputs: Inputs, changes: Iterable[Change]) -> tuple[ImageLine, ...]:
    """A row for each rank of each new run in a container."""
    return tuple(
        _line(job, wish, seat)
        for job in starting(changes)
        if (wish := image_of(job.job_spec)) is not None
        for seat in seats(inputs, job)
    )


def image_problems(inputs: Inputs, changes: Iterable[Change]) -> Iterator[Diagnostic]:
    """Jobs that need a container on a node where no engine works, or where it can't be as they want it."""
    for job in starting(changes):
        wish = image_of(job.job_spec)
        if wish is None and job.job_spec.runtime.shm_size:
            yield _on_the_host(inputs, job)
        for seat in seats(inputs, job) if wish is not None else ():
            found = seat.facts.images.get(wish) if seat.facts and wish else None
            problem = _problem(inputs, job, seat, found) if found else None
            if problem is not None:
                yield problem
                break


def _problem(inputs: Inputs, job: Change, seat: Seat, found: ImageFacts) -> Diagnostic | None:
    resource = inputs.desired.resources.get(job.address)
    at: Any = {"address": str(job.address), "where": resource.where if resource else None}
    if found.engine is None:
        return error(
            f"{job.address} runs in an image, and on {seat.node} {found.why}",
            "Install podman, docker or apptainer there, or set runtime.engine: host.",
            code="no-engine",
            **at,
        )
    if found.engine in _WITHOUT_SHM_SIZE and job.job_spec.runtime.shm_size:
        return warning(
            f"{job.address} asks for a shm_size, which {found.engine} on {seat.node} knows nothing of",
            "Shared memory is half of the node's memory there. Leave shm_size out, or name another engine.",
            code="no-shm-size",
            **at,
        )
    return None


def _on_the_host(inputs: Inputs, job: Change) -> Diagnostic:
    resource = inputs.desired.resources.get(job.address)
    return warning(
        f"{job.address} asks for a shm_size, and runs in no container",
        "It has the shared memory of its node. Leave shm_size out, or name an image.",
        address=str(job.address),
        where=resource.where if resource else None,
        code="no-shm-size",
    )


def _line(job: Change, wish: ImageWish, seat: Seat) -> ImageLine:
    found = seat.facts.images.get(wish) if seat.facts else None
    return ImageLine(
        job=job.address,
        rank=seat.rank,
        node=seat.node,
        image=wish.image,
        engine=found.engine if found else wish.engine,
        present=found.present if found else None,
    )
