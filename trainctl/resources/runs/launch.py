"""Start the ranks of a run, all or none; send code, image and run spec."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast

from trainctl.apply.step import ApplyStep
from trainctl.base.lazy_dataclass import dataclass
from trainctl.base.parallel import each
from trainctl.base.protocol.host import (
    HAS_CODE,
    PULL_IMAGE,
    UPLOAD_CODE,
    CodeRequest,
    HasCodeRequest,
    PullImageRequest,
    PullImageResponse,
)
from trainctl.base.protocol.runs import (
    START,
    STOP,
    CheckpointStoreSpec,
    DeploymentSpec,
    QueueOrder,
    RunContainer,
    RunSpec,
    StartRequest,
    StartResponse,
    StopRequest,
    SweepSlots,
)
from trainctl.errors import LockHeld, NodeError, NodeUnreachable, TrainctlError
from trainctl.inputs.environment import directory_links, environment
from trainctl.inputs.image_digests import by_digest
from trainctl.model.address import Address
from trainctl.model.run import RunRecord, RunStatus
from trainctl.model.specs.job_spec import JobSpec
from trainctl.model.specs.resource import ResourceAttributes
from trainctl.remote.agent import NodeAgent
from trainctl.resources.clusters import cache_settings
from trainctl.resources.delivery import PlacedRank
from trainctl.resources.runs.run_control import RunControl, with_status
from trainctl.secrets.resolver import SecretResolver

_BUFFER_BYTES = 2**20

OpenArchive = Callable[[], AbstractContextManager[Iterator[bytes]]]
"""Open a tar archive as an iterator of buffers."""


def send_code(agent: NodeAgent, root: str, digest: str, lineage: str, archive: OpenArchive) -> str:
    """Upload a code tree unless the node has it; return the sha256 of its archive.

    The node keeps the tree for ``lineage``.
    """
    request = CodeRequest(root=root, digest=digest)
    response = agent.call(HAS_CODE, HasCodeRequest(**request, lineage=lineage))
    if response["sha256"] is not None:
        return response["sha256"]
    sha256 = hashlib.sha256()

    def hashed(buffers: Iterator[bytes]) -> Iterator[bytes]:
        for buffer in buffers:
            sha256.update(buffer)
            yield buffer

    with archive() as buffers:
        response = agent.call(UPLOAD_CODE, request, payload=hashed(buffers))
    if response["sha256"] != sha256.hexdigest():
        raise NodeError("the code was corrupted in transfer", "Try again.")
    return sha256.hexdigest()


@contextmanager
def fetch_code(control: RunControl, run: RunRecord, digest: str) -> Iterator[Iterator[bytes]]:
    """Download a code tree from a node of an earlier run; yield buffers."""
    with tempfile.TemporaryFile() as spool:

        def write(data: bytes) -> None:
            spool.write(data)

        control.read_code(run, digest, write)
        spool.seek(0)
        yield iter(lambda: spool.read(_BUFFER_BYTES), b"")


def pull_image(
    step: ApplyStep,
    agent: NodeAgent,
    root: str,
    lineage: str,
    secrets: SecretResolver,
    digest: str | None,
) -> PullImageResponse | None:
    """Pull the job's image on the node; None for a job that runs on the host.

    It has the plan's ``digest``, if that is known. Raise NodeError with the message of the registry or the engine.
    """
    job = step.job_spec
    if job.image is None or not job.in_container:
        return None
    phase = f"pulling {job.image.base_image}"

    def on_event(event: Mapping[str, Any]) -> None:
        line = str(event["line"])
        step.progress(f"{phase}: {line}" if line else phase, 0, 0)

    def pull(image: str) -> PullImageResponse:
        request = PullImageRequest(
            root=root, lineage=lineage, image=image, engine=job.runtime.engine, login=login
        )
        response = agent.call(PULL_IMAGE, request, on_event=on_event)
        if response["note"]:
            step.progress(response["note"], 0, 0)
        return response

    login = secrets.registry_login(job.image)
    response = pull(job.image.base_image)
    if digest not in (None, response["digest"]):  # the tag has moved since the plan was made
        response = pull(by_digest(job.image.base_image, digest))
    return response


_POLL_SECONDS = 0.2
_MAY_CONTINUE = "The run may be live there: check trainctl status. Apply again to resume it."
_LAUNCHING = frozenset({RunStatus.CREATED, RunStatus.DEPLOYING})


@dataclass(frozen=True, slots=True)
class PreparedRank:
    """A rank with its inputs on the node: sha256 of the code archive, environment, image."""

    rank: PlacedRank
    archive: str
    venv: str | None
    image: PullImageResponse | None


def start_together(
    step: ApplyStep,
    control: RunControl,
    run: RunRecord,
    ranks: Sequence[PlacedRank],
    requests: Sequence[StartRequest],
    mask: Callable[[str], str],
) -> RunRecord:
    """Start every rank; return the run's record when all are running, queued or ended.

    Rank 0 starts first, as the others get its rendezvous addresses; ``mask`` redacts its token.
    Idempotent: a rank that was started before is not started again.
    """
    try:
        first = _start(step, ranks[0], requests[0])
        if len(ranks) == 1:
            return with_status(run, [first])
        rendezvous = first["rendezvous"]
        if rendezvous:
            mask(rendezvous["token"])
        others = [
            (rank, StartRequest(**request, rendezvous=rendezvous))
            for rank, request in zip(ranks, requests, strict=True)
        ][1:]
        responses = each(lambda pair: _start(step, *pair), others, len(others))
        run = control.status(with_status(run, [first, *responses]))
        # until the ranks have met and everything before their commands is done
        while any(rank.status in _LAUNCHING for rank in run.ranks) and run.status.live:
            if waiting := run.now.get("waiting"):
                step.progress(waiting, 0, 0)
            step.cancelled.wait(_POLL_SECONDS)
            step.stop_if_cancelled()
            run = control.status(run)
    except NodeUnreachable as error:
        error.detail = f"{error.detail} {_MAY_CONTINUE}".lstrip()
        raise
    except LockHeld:
        raise  # a newer attempt owns the run
    except TrainctlError:
        for rank in ranks:  # each may have started before the error
            request = StopRequest(root=rank.node.root, key=run.key, grace_seconds=0)
            try:
                rank.agent.call(STOP, request)
            except TrainctlError as error:
                raise NodeUnreachable(
                    f"it is unknown whether run {run.id} was started", error.summary
                ) from error
        raise
    return run


def _start(step: ApplyStep, rank: PlacedRank, request: StartRequest) -> StartResponse:
    def on_event(event: Mapping[str, Any]) -> None:
        if event.get("waiting"):
            step.progress(str(event["waiting"]), 0, 0)

    return rank.agent.call(START, request, on_event=on_event)


_GRACE_SECONDS = 30


def build_run_spec(
    resource: ResourceAttributes,
    run: RunRecord,
    prepared: PreparedRank,
    lineage: str,
    listings: Mapping[str, str],
    deployment: DeploymentSpec,
    *,
    in_batch: bool,
) -> RunSpec:
    """Return the run spec of one rank, without secret values."""
    job, rank, image = resource.job_spec, prepared.rank, prepared.image
    paths, uses_cache = rank.paths, job.runtime.cache_config.enabled
    plain = environment(resource.address, job, run, paths, lineage, rank.node.gpus, rank.number)
    return {
        "key": run.key,
        "id": run.id,
        "number": run.number,
        "generation": run.generation,
        "lineage": lineage,
        "address": str(resource.address),
        "project": job.project,
        "job": job.to_attributes(),
        "rank": rank.number,
        "group_size": len(run.ranks),
        "nodes": [record.node for record in run.ranks],
        "code": job.code.digest or "",
        "environment": plain,
        "listings": listings,
        "links": directory_links(job, paths),
        "venv": prepared.venv or job.runtime.venv,
        "grace_seconds": _GRACE_SECONDS,
        "declared_gpus": rank.node.gpus,
        **queue_order(resource.address, job, lineage),
        **deployment,
        "caches": [paths.project_cache, paths.team_cache] if uses_cache else [],
        "project_cache": paths.project_cache,
        "cache": cache_settings(rank.cluster)["dir"],
        "store": cast("CheckpointStoreSpec", run.store or {}),
        "load": [],
        "container": image
        and RunContainer(
            engine=image["engine"]["name"], image=image["id"], workdir=image["workdir"]
        ),
        "batch": {} if in_batch else None,
    }


def queue_order(address: Address, job: JobSpec, lineage: str) -> QueueOrder:
    """Return the settings that may change while a run is queued."""
    slots: SweepSlots | None = None
    if job.max_parallel is not None:
        slots = {"name": f"{lineage} job.{address.name}", "count": job.max_parallel}
    return {"priority": job.priority, "slots": slots}
