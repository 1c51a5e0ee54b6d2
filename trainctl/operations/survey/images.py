"""Resolve the container images of new runs to digests."""

from __future__ import annotations

from trainctl.base.http.client import HttpClient
from trainctl.base.parallel import each
from trainctl.errors import SourceError, TrainctlError
from trainctl.inputs.image_digests import image_digest
from trainctl.model.specs.image import Image
from trainctl.operations.workspace import Workspace
from trainctl.plan.changes import with_images
from trainctl.plan.values import Plan

_PARALLEL = 10
_SECONDS = 10.0


def resolve_images(workspace: Workspace, plan: Plan, *, offline: bool) -> Plan:
    """Return a plan with the digests of its images, each asked for once."""
    jobs = {row.job for row in plan.images}
    images = {
        image.base_image: image
        for change in plan.changes
        if change.address in jobs and (image := change.job_spec.image)
    }
    if not images:
        return plan
    client = HttpClient(read_timeout=_SECONDS)

    def find(image: Image) -> tuple[str, str | TrainctlError]:
        if offline and "@" not in image.base_image:
            return image.base_image, SourceError("offline")
        try:
            return image.base_image, image_digest(image, workspace.secrets, client)
        except TrainctlError as error:
            return image.base_image, error

    return with_images(plan, dict(each(find, images.values(), _PARALLEL)))
