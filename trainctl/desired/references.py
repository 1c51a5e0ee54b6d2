"""Jobs that a job names: those it follows (``depends_on``), and whose checkpoints it begins with."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from trainctl.desired.names import DeclaredNames
from trainctl.manifest.suggestions import did_you_mean
from trainctl.manifest.tree import Path
from trainctl.manifest.types.job import Job
from trainctl.manifest.types.runtime import CheckpointReference, LoadCheckpointConfig
from trainctl.model.address import Address, Kind
from trainctl.model.cycle import find_cycle
from trainctl.model.diagnostics import Diagnostic, error
from trainctl.model.specs import job_spec as config


def resolve_dependencies(
    entries: list[str], path: Path, names: DeclaredNames, of_matrix: Mapping[str, list[Address]]
) -> list[Address]:
    """The jobs that entries name; the name of a job with a matrix means all of its jobs."""
    found: list[Address] = []
    for at, text in enumerate(entries):
        here = (*path, "depends_on", at)
        address = _parsed(text)
        if address is None:
            names.report_problem(
                f"depends_on: {text!r} is not the address of a job",
                "Use job.NAME. A job depends on its weights and caches automatically.",
                here,
                code="invalid-dependency",
            )
        elif names.known("job", address.name, here):
            all_jobs = of_matrix.get(address.name)
            if address.key is None:
                found += all_jobs or [address]
            elif address in (all_jobs or ()):
                found.append(address)
            else:
                hint = did_you_mean(str(address), [str(all_job) for all_job in all_jobs or ()])
                names.report_problem(
                    f"depends_on: {address} not found", hint, here, code="undeclared-name"
                )
    return found


def find_cycles(jobs: Mapping[str, Job], names: DeclaredNames) -> Iterator[Diagnostic]:
    """An error for jobs that follow themselves, with the way round; jobs of one matrix are one here."""
    places: dict[str, Path] = {}
    edges: dict[str, list[str]] = {}
    for tree_key, job in jobs.items():
        name = tree_key.partition("[")[0]
        places.setdefault(name, ("jobs", tree_key, "depends_on"))
        needed = (_parsed(text) for text in job.depends_on)
        edges.setdefault(name, []).extend(one.name for one in needed if one is not None)
    way = find_cycle(edges)
    if way:
        steps = " \u2192 ".join(f"job.{one}" for one in way)
        yield error(
            f"depends_on has a cycle: {steps}",
            "Remove one of these dependencies.",
            address=f"job.{way[0]}",
            where=names.place(places[way[0]]),
            code="dependency-cycle",
        )


def _parsed(text: str) -> Address | None:
    try:
        address = Address.parse(text)
    except ValueError:
        return None
    return address if address.kind is Kind.JOB else None


_RUN = re.compile(r"[a-z2-7]{7}")


@dataclass(frozen=True, slots=True)
class ReferringJob:
    """The job that refers, its project, the projects of all declared jobs, and those that matrices make, by their name."""

    address: Address
    project: str
    jobs: Mapping[Address, str]
    of_matrix: Mapping[str, list[Address]]


def resolve_load_config(
    section: LoadCheckpointConfig | None, by: ReferringJob, names: DeclaredNames, path: Path
) -> config.LoadCheckpointSpec | None:
    """The section with each reference resolved, ``job`` to an address.

    What the job itself may be the first to save is ``optional``: a loop that resumes must be able to begin.
    """
    if section is None:
        return None
    references = (
        _reference(one, by, names, (*path, "checkpoints", at))
        for at, one in enumerate(section.checkpoints)
    )
    return config.LoadCheckpointSpec(section.enabled, section.download_folder, tuple(references))


def loaded_jobs(runtime: config.RuntimeSpec, own: Address) -> list[Address]:
    """Declared jobs whose checkpoints a job begins with: they come before it."""
    jobs = (Address.parse(load.job) for load in runtime.loads if load.job)
    return [address for address in jobs if address != own]


def _reference(
    one: CheckpointReference, by: ReferringJob, names: DeclaredNames, path: Path
) -> config.CheckpointSelector:
    job = _job(one.job_id, by, names, (*path, "job_id")) if one.job_id else None
    run = one.job_id if job is None else None
    own = by.jobs.get(job, by.project) if job else by.project
    project = one.project_name or own
    return config.CheckpointSelector(
        project,
        str(job) if job else None,
        run,
        one.checkpoint_name,
        optional=one.checkpoint_name is None
        and project == by.project
        and run is None
        and (job is None or job == by.address),
    )


def _job(text: str, by: ReferringJob, names: DeclaredNames, path: Path) -> Address | None:
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
        hint = did_you_mean(text.removeprefix("job."), [_job_text(job) for job in by.jobs])
        names.report_problem(
            f"job_id: {text!r} is neither a job nor a run ID",
            f"A run ID has seven characters, as shown by trainctl status. {hint}".strip(),
            path,
            code="undeclared-name",
        )
    return None


def _of_matrix(name: Address, by: ReferringJob, names: DeclaredNames, path: Path) -> Address:
    """The one that the name of a matrix means: among its own jobs the very one that refers."""
    if name == by.address.group:
        return by.address
    jobs = by.of_matrix[name.name]
    if len(jobs) > 1:
        names.report_problem(
            f"job_id: {name} has {len(jobs)} jobs",
            f"Use the name of a single job, for example {_job_text(jobs[0])!r}.",
            path,
            code="ambiguous-default",
        )
    return jobs[0]


def _job_text(job: Address) -> str:
    return str(job).removeprefix("job.")
