"""Declared names and references between jobs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from trainctl.base.lazy_dataclass import dataclass, field
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.desired.values import find_cycle
from trainctl.manifest.check import address_of, key_position, path_text
from trainctl.manifest.tree import ManifestNode, Path, node_at, position_of
from trainctl.model.address import Address, Kind, slug
from trainctl.model.diagnostics import Diagnostic, Position, did_you_mean, error
from trainctl.model.specs.job_spec import Job
from trainctl.model.specs.runtime import (
    CheckpointReference,
    CheckpointSelector,
    LoadCheckpointConfig,
    LoadCheckpointSpec,
    RuntimeSpec,
)


@dataclass(frozen=True, slots=True)
class DeclaredNames:
    """Declared names by section, and the problems with undeclared names.

    ``root`` is the tree of the manifest after invalid values were removed, ``text`` the tree before. Names of invalid
    sections count as declared. ``reported`` are the positions of earlier problems; no others are added there.
    """

    root: ManifestNode
    text: ManifestNode
    projects: Collection[str]
    clusters: Collection[str]
    weights: Collection[str]
    secrets: Collection[str]
    jobs: Collection[str]
    reported: Collection[Position | None] = ()
    problems: list[Diagnostic] = field(default_factory=list)

    def place(self, path: Path) -> Position:
        """Return the position of the value at a path."""
        return position_of(self.root, path)

    def report_problem(
        self, summary: str, detail: str, path: Path, *, code: str, at_key: bool = False
    ) -> None:
        """Add a problem with the value at a path, or with its key."""
        where = key_position(self.root, path) if at_key else self.place(path)
        if where not in self.reported:
            self.problems.append(
                error(summary, detail, address=address_of(path), where=where, code=code)
            )

    def known(self, kind: str, name: str, path: Path) -> bool:
        """Check whether a name is declared; report a problem if not."""
        declared: Collection[str] = getattr(self, _SECTIONS[kind])
        if name in declared:
            return True
        hint = did_you_mean(name, declared)
        self.report_problem(
            f"{path_text(path[:-1] if isinstance(path[-1], int) else path)}: undeclared {kind} {name!r}",
            f"Declare it under {_SECTIONS[kind]!r}. {hint}".strip(),
            path,
            code="undeclared-name",
        )
        return False

    def chosen(self, kind: str, name: str | None, path: Path) -> str:
        """Return the name, or the only declared one; report a problem if ambiguous."""
        declared: Collection[str] = getattr(self, _SECTIONS[kind])
        if name is not None:
            name = slug(name) if kind == "project" else name
            self.known(kind, name, path)
            return name
        if len(declared) == 1:
            return next(iter(declared))
        if node_at(self.text, path) is None:  # else the value is invalid, and already reported
            self.report_problem(
                f"{path_text(path)} is missing",
                f"Set it to one of the {_SECTIONS[kind]}: {', '.join(sorted(declared)[:10])}.",
                path,
                code="ambiguous-default",
            )
        return ""


_SECTIONS: Mapping[str, str] = {
    "project": "projects",
    "cluster": "clusters",
    "weights": "weights",
    "secret": "secrets",
    "job": "jobs",
}


def resolve_dependencies(
    entries: Sequence[str], path: Path, names: DeclaredNames, of_matrix: Mapping[str, list[Address]]
) -> list[Address]:
    """Return the addresses in ``depends_on``, for a matrix those of all its jobs."""
    dependencies: list[Address] = []
    for index, text in enumerate(entries):
        here = (*path, "depends_on", index)
        address = _parse_job(text)
        if address is None:
            names.report_problem(
                f"depends_on: {text!r} is not the address of a job",
                "Use job.NAME. A job depends on its weights and caches automatically.",
                here,
                code="invalid-dependency",
            )
        elif names.known("job", address.name, here):
            matrix_jobs = of_matrix.get(address.name, [])
            if address.key is None:
                dependencies += matrix_jobs or [address]
            elif address in matrix_jobs:
                dependencies.append(address)
            else:
                hint = did_you_mean(str(address), list(map(str, matrix_jobs)))
                names.report_problem(
                    f"depends_on: {address} not found", hint, here, code="undeclared-name"
                )
    return dependencies


def find_cycles(jobs: Mapping[str, Job], names: DeclaredNames) -> Iterator[Diagnostic]:
    """Report a cycle in ``depends_on``; the jobs of a matrix count as one job."""
    places: dict[str, Path] = {}
    edges: dict[str, list[str]] = {}
    for tree_key, job in jobs.items():
        name = tree_key.partition("[")[0]
        places.setdefault(name, ("jobs", tree_key, "depends_on"))
        dependencies = filter(None, map(_parse_job, job.depends_on))
        edges.setdefault(name, []).extend(address.name for address in dependencies)
    cycle = find_cycle(edges)
    if cycle:
        steps = " \u2192 ".join(f"job.{name}" for name in cycle)
        yield error(
            f"depends_on has a cycle: {steps}",
            "Remove one of these dependencies.",
            address=f"job.{cycle[0]}",
            where=names.place(places[cycle[0]]),
            code="dependency-cycle",
        )


def _parse_job(text: str) -> Address | None:
    try:
        address = Address.parse(text)
    except ValueError:
        return None
    return address if address.kind is Kind.JOB else None


_RUN = compile_lazily(r"[a-z2-7]{7}")


@dataclass(frozen=True, slots=True)
class ReferringJob:
    """The job with a reference, its project and the jobs that it can refer to.

    ``jobs`` has the projects of all declared jobs; ``of_matrix`` the jobs of each matrix by name.
    """

    address: Address
    project: str
    jobs: Mapping[Address, str]
    of_matrix: Mapping[str, list[Address]]


def resolve_load_config(
    section: LoadCheckpointConfig | None, by: ReferringJob, names: DeclaredNames, path: Path
) -> LoadCheckpointSpec | None:
    """Resolve all references of the section.

    Checkpoints that only the job itself may save are ``optional``, so that its first run can start.
    """
    if section is None:
        return None
    references = (
        _resolve(reference, by, names, (*path, "checkpoints", index))
        for index, reference in enumerate(section.checkpoints)
    )
    return LoadCheckpointSpec(section.enabled, section.download_folder, tuple(references))


def find_followed(
    text: str, by: ReferringJob, saving: Collection[Address], names: DeclaredNames, path: Path
) -> Address | None:
    """Return the job whose checkpoints another one evaluates; None, with a problem, if it saves none."""
    job = _find_job(text, by, names, path)
    if (job and job != by.address and job in saving) or not (job or _RUN.fullmatch(text)):
        return job
    summary = f"job: {text} is not another job that saves checkpoints"
    names.report_problem(summary, "Enable its checkpointing_config.", path, code="no-checkpoints")
    return None


def loaded_jobs(
    runtime: RuntimeSpec, own: Address, of_matrix: Mapping[str, list[Address]]
) -> list[Address]:
    """Return the declared jobs whose checkpoints a job starts from."""
    jobs = (Address.parse(load.job) for load in runtime.loads if load.job)
    every = (of_matrix.get(job.name, [job]) if job.key is None else [job] for job in jobs)
    return [address for addresses in every for address in addresses if address != own]


def _resolve(
    reference: CheckpointReference, by: ReferringJob, names: DeclaredNames, path: Path
) -> CheckpointSelector:
    job_id, name = reference.job_id, reference.checkpoint_name
    is_best = reference.typ == "best"
    sweep = (job_id or "").removesuffix("[*]").removeprefix("job.")
    if is_best and sweep in by.of_matrix:  # all of its jobs
        job: Address | None = by.of_matrix[sweep][0].group
        project = by.jobs[by.of_matrix[sweep][0]]
    else:
        job = _find_job(job_id, by, names, (*path, "job_id")) if job_id else None
        project = by.jobs.get(job, by.project) if job else by.project
    run = job_id if job is None else None
    project = slug(reference.project_name) if reference.project_name else project
    own = project == by.project and run is None and job in (None, by.address)
    return CheckpointSelector(
        project,
        str(job) if job else None,
        run,
        name,
        name is None and own and not is_best,
        reference.force,
        f"{reference.metric}:{reference.mode}" if is_best else None,
    )


def _find_job(text: str, by: ReferringJob, names: DeclaredNames, path: Path) -> Address | None:
    """Return the declared job, None for the id of a run."""
    try:
        address = Address.parse(text if text.startswith("job.") else f"job.{text}")
    except ValueError:
        address = None
    if address is not None and address in by.jobs:
        return address
    if address is not None and address.key is None and address.name in by.of_matrix:
        # A matrix means the same combination, else its only job.
        jobs = by.of_matrix[address.name]
        same = Address(Kind.JOB, address.name, by.address.key)
        if same in by.jobs:
            return same
        if len(jobs) > 1:
            names.report_problem(
                f"{path[-1]}: {address} has {len(jobs)} jobs",
                f"Use the name of a single job, for example {_job_text(jobs[0])!r}.",
                path,
                code="ambiguous-default",
            )
        return jobs[0]
    if not _RUN.fullmatch(text):
        hint = did_you_mean(text.removeprefix("job."), [_job_text(job) for job in by.jobs])
        names.report_problem(
            f"{path[-1]}: {text!r} is neither a job nor a run ID",
            f"A run ID has seven characters, as shown by trainctl status. {hint}".strip(),
            path,
            code="undeclared-name",
        )
    return None


def _job_text(job: Address) -> str:
    return str(job).removeprefix("job.")
