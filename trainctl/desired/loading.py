"""``load_checkpoint_config``: which job, run or project each reference means."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from trainctl.desired.scope import Names
from trainctl.manifest.nearest import did_you_mean
from trainctl.manifest.tree import Path as ManifestPath
from trainctl.manifest.types.runtime import CheckpointReference, LoadCheckpointConfig
from trainctl.model import job_spec as config
from trainctl.model.address import Address

_RUN = re.compile(r"[a-z2-7]{7}")


@dataclass(frozen=True, slots=True)
class Referrer:
    """The job that refers, its project, the projects of all declared jobs, and those that matrices make, by their name."""

    address: Address
    project: str
    jobs: Mapping[Address, str]
    of_matrix: Mapping[str, list[Address]]


def load_config(
    section: LoadCheckpointConfig | None, by: Referrer, names: Names, path: ManifestPath
) -> config.LoadCheckpointConfig | None:
    """The section with each reference resolved, ``job`` to an address.

    What the job itself may be the first to save is ``optional``: a loop that resumes must be able to begin.
    """
    if section is None:
        return None
    references = (
        _reference(one, by, names, (*path, "checkpoints", at))
        for at, one in enumerate(section.checkpoints)
    )
    return config.LoadCheckpointConfig(section.enabled, section.download_folder, tuple(references))


def jobs_loaded(runtime: config.Runtime, own: Address) -> list[Address]:
    """Declared jobs whose checkpoints a job begins with: they come before it."""
    jobs = (Address.parse(one.job) for one in runtime.loads if one.job)
    return [address for address in jobs if address != own]


def _reference(
    one: CheckpointReference, by: Referrer, names: Names, path: ManifestPath
) -> config.CheckpointReference:
    job = _job(one.job_id, by, names, (*path, "job_id")) if one.job_id else None
    run = one.job_id if job is None else None
    own = by.jobs.get(job, by.project) if job else by.project
    project = one.project_name or own
    return config.CheckpointReference(
        project,
        str(job) if job else None,
        run,
        one.checkpoint_name,
        optional=one.checkpoint_name is None
        and project == by.project
        and run is None
        and (job is None or job == by.address),
    )


def _job(text: str, by: Referrer, names: Names, path: ManifestPath) -> Address | None:
    """The declared job that is meant; None for the id of a run."""
    try:
        address = Address.parse(text if text.startswith("job.") else f"job.{text}")
    except ValueError:
        address = None
    if address is not None and address in by.jobs:
        return address
    if address is not None and address.key is None and address.name in by.of_matrix:
        return _of_matrix(address, by, names, path)
    if not _RUN.fullmatch(text):
        hint = did_you_mean(text.removeprefix("job."), [_written(one) for one in by.jobs])
        names.complain(
            f"job_id: no job is called {text!r}, and it is no run's id",
            f"A run's id has seven characters, as `trainctl status` shows it. {hint}".strip(),
            path,
            code="undeclared-name",
        )
    return None


def _of_matrix(name: Address, by: Referrer, names: Names, path: ManifestPath) -> Address:
    """The one that the name of a matrix means: among its own jobs the very one that refers."""
    if name == by.address.group:
        return by.address
    jobs = by.of_matrix[name.name]
    if len(jobs) > 1:
        names.complain(
            f"job_id: {name} is {len(jobs)} jobs: name one of them",
            f"For example {_written(jobs[0])!r}.",
            path,
            code="ambiguous-default",
        )
    return jobs[0]


def _written(job: Address) -> str:
    return str(job).removeprefix("job.")
