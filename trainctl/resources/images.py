"""Having a job's image on its node before the run starts there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainctl.apply.step import Step
from trainctl.base.protocol.code import PULL_IMAGE, ImageRequest
from trainctl.base.protocol.spec import Container
from trainctl.base.units import parse_size
from trainctl.jobs.secrets import Secrets
from trainctl.remote.agent import NodeAgent


@dataclass(frozen=True, slots=True)
class PulledImage:
    """The image's digest, and the container as a run's specification describes it."""

    digest: str
    container: Container


def pulled_image(
    step: Step, agent: NodeAgent, root: str, lineage: str, secrets: Secrets
) -> PulledImage | None:
    """Have the image of the step's job on the node; None for a job that runs on the host.

    NodeError says what the registry or the engine objects to.
    """
    job = step.job_spec
    if job.image is None or not job.in_container:
        return None
    began = f"pulling {job.image.base_image}"

    def on_event(event: Mapping[str, Any]) -> None:
        line = str(event["line"])
        step.progress(f"{began}: {line}" if line else began, 0, 0)

    request = ImageRequest(
        root=root,
        lineage=lineage,
        image=job.image.base_image,
        engine=job.runtime.engine,
        login=secrets.registry_login(job.image),
    )
    found = agent.call(PULL_IMAGE, request, on_event=on_event)
    if found["note"]:
        step.progress(found["note"], 0, 0)
    container = Container(
        engine=found["engine"]["name"],
        image=found["id"],
        workdir=found["workdir"],
        shm_size=parse_size(job.runtime.shm_size) if job.runtime.shm_size else None,
        memory=job.compute.memory_bytes,
        cpus=job.compute.cpu_count,
    )
    return PulledImage(found["digest"], container)
