"""The specification of a run: what the node of one rank gets."""

from __future__ import annotations

from collections.abc import Mapping

from trainctl.base.protocol.spec import Order, RunSpec, Slots, Surroundings
from trainctl.base.units import parse_duration
from trainctl.jobs.environment import caches, environment, links
from trainctl.model.address import Address
from trainctl.model.job_spec import JobSpec
from trainctl.model.resource import Specified
from trainctl.model.run import RunRecord
from trainctl.resources.starting import Equipped

_GRACE_SECONDS = 30


def specification(
    resource: Specified,
    run: RunRecord,
    equipped: Equipped,
    lineage: str,
    listings: Mapping[str, str],
    surroundings: Surroundings,
) -> RunSpec:
    """Return all that a node needs to run one rank, except secret values. ``listings`` are by weights address."""
    job, rank = resource.job_spec, equipped.rank
    plain = environment(
        resource.address, job, run, rank.where, lineage, rank.node.gpus, rank.number
    )
    secret = job.runtime.secret_environment
    cache = job.runtime.cache_config
    prepare = cache.prepare_commands if cache.enabled else None
    return {
        "key": run.key,
        "id": run.id,
        "number": run.number,
        "generation": run.generation,
        "lineage": lineage,
        "address": str(resource.address),
        "project": job.project,
        "job": resource.address.name,
        "rank": rank.number,
        "group_size": len(run.ranks),
        "nodes": [one.node for one in run.ranks],
        "code": job.code.digest or "",
        "commands": [*job.runtime.start_commands],
        "environment": plain,
        "secret_environment": {name: secret[name] for name in secret if name not in plain},
        "weights": [
            {
                "name": str(weights.address),
                "listing": listings[str(weights.address)],
                "mount_location": weights.mount_location,
            }
            for weights in job.weights
        ],
        "links": links(job, rank.where),
        "mounts": [
            {
                "host_path": mount.host_path,
                "mount_location": mount.mount_location,
                "read_only": mount.read_only,
            }
            for mount in job.mounts
        ],
        "host": {"venv": equipped.venv or job.runtime.venv},
        "grace_seconds": _GRACE_SECONDS,
        "gpus": {
            "count": job.compute.gpus,
            "kind": job.compute.gpu_kind,
            "declared": rank.node.gpus,
        },
        **order(resource.address, job, lineage),
        **surroundings,
        "keeps_secrets": bool(job.kept_secrets),
        "made_of": {"attributes": resource.attributes, "listings": listings},
        "caches": caches(job, rank.where),
        "prepare": {"commands": [*prepare], "directory": rank.where.project_cache}
        if prepare
        else None,
        "retry": {
            "max_attempts": job.retry.max_attempts,
            "delay_seconds": parse_duration(job.retry.delay),
        },
        "max_duration_seconds": job.max_duration_seconds,
    }


def order(address: Address, job: JobSpec, lineage: str) -> Order:
    """Who goes first where runs wait, and how many of a sweep go on at once: what may change while a run waits."""
    slots: Slots | None = None
    if job.max_parallel is not None:
        slots = {"name": f"{lineage} job.{address.name}", "count": job.max_parallel}
    return {"priority": job.priority, "slots": slots}
