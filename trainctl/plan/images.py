"""Which jobs run in a container, what image each of their ranks needs on its node, and whether anything there can run it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from trainctl.model.diagnostics import Diagnostic, error, warning
from trainctl.plan.seats import Seat, seats, starting
from trainctl.plan.values import Change, ImageFacts, ImageLine, ImageWish, Inputs

_WITHOUT_SHM_SIZE = ("apptainer",)


def image_of(attributes: Mapping[str, Any]) -> ImageWish | None:
    """The image that a job runs in, and the engine it insists on; None for a job that runs on the host."""
    image, engine = attributes.get("image"), attributes["runtime"].get("engine")
    if not image or engine == "host":
        return None
    return ImageWish(str(image["base_image"]), engine)


def image_lines(inputs: Inputs, changes: Iterable[Change]) -> tuple[ImageLine, ...]:
    """A row for each rank of each new run in a container."""
    return tuple(
        _line(job, wish, seat)
        for job in starting(changes)
        if (wish := image_of(job.after or {})) is not None
        for seat in seats(inputs, job)
    )


def image_problems(inputs: Inputs, changes: Iterable[Change]) -> Iterator[Diagnostic]:
    """Jobs that need a container on a node where no engine works, or where it can't be as they want it."""
    for job in starting(changes):
        wish = image_of(job.after or {})
        if wish is None and (job.after or {})["runtime"].get("shm_size"):
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
    if found.engine in _WITHOUT_SHM_SIZE and (job.after or {})["runtime"].get("shm_size"):
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
