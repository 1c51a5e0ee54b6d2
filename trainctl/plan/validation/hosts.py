"""Requirements of new runs on their hosts: files, programs, container engines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from trainctl.model.diagnostics import Diagnostic, error, warning
from trainctl.model.specs.job_spec import JobSpec
from trainctl.plan.placement import RankPlacement, rank_placements, starting_changes
from trainctl.plan.values import Change, ImageRow, ImageSelection, PlanInputs

if TYPE_CHECKING:
    from trainctl.base.protocol.host import ImageAvailability

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
            if facts and facts.reported["mount"] == "link":
                yield from _writable_mount_warnings(job)
            if facts and not facts.reported["logout"]["survives"]:
                yield warning(
                    f"runs on {facts.id} would end when the user logs out",
                    "{why}. {fix}".format(**facts.reported["logout"]),
                    code="stops-at-logout",
                )


def _writable_mount_warnings(job: Change) -> Iterator[Diagnostic]:
    """Warn about read-only directories of the host that a job can write to."""
    for mount in job.job_spec.mounts:
        if mount.read_only and not mount.mount_location.startswith("/"):
            yield warning(
                f"{mount.host_path} is linked, not mounted: read-only access is not enforced",
                "The node doesn't support private mounts.",
                address=str(job.address),
                code="writable-mount",
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


_WITHOUT_SHM_SIZE = ("apptainer",)


def image_of(job: JobSpec) -> ImageSelection | None:
    """Return the image and engine of a job, None if it runs on the host."""
    if job.image is None or not job.in_container:
        return None
    return ImageSelection(job.image.base_image, job.runtime.engine)


def image_rows(inputs: PlanInputs, changes: Iterable[Change]) -> tuple[ImageRow, ...]:
    """Return a row for each rank of each new run in a container."""
    return tuple(
        _image_row(job, selection, placement)
        for job in starting_changes(changes)
        if (selection := image_of(job.job_spec)) is not None
        for placement in rank_placements(inputs, job)
    )


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
            problem = _problem(job, placement, facts) if facts else None
            if problem is not None:
                yield problem
                break


def _problem(job: Change, placement: RankPlacement, facts: ImageAvailability) -> Diagnostic | None:
    if facts["engine"] is None:
        return error(
            f"{job.address} needs a container engine, but on {placement.node} {facts['why']}",
            "Install podman, docker or apptainer there, or set runtime.engine: host.",
            code="no-engine",
            address=str(job.address),
        )
    if facts["engine"] in _WITHOUT_SHM_SIZE and job.job_spec.runtime.shm_size:
        return warning(
            f"shm_size of {job.address} is ignored: {facts['engine']} on {placement.node} doesn't support it",
            "Shared memory is half of the node's memory there. Remove shm_size, or use another engine.",
            code="no-shm-size",
            address=str(job.address),
        )
    return None


def _image_row(job: Change, selection: ImageSelection, placement: RankPlacement) -> ImageRow:
    facts = placement.facts.images.get(selection) if placement.facts else None
    return ImageRow(
        job=job.address,
        rank=placement.rank,
        node=placement.node,
        image=selection.image,
        engine=facts["engine"] if facts else selection.engine,
        present=facts["present"] if facts else None,
        rdma=facts["rdma"] if facts else None,
    )
