"""Scan the code of jobs, and determine its requirements of hosts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trainctl.base.lazy_dataclass import dataclass, field
from trainctl.errors import TrainctlError
from trainctl.inputs.code import CodeSource, scan_code
from trainctl.inputs.environment import host_requirements
from trainctl.manifest.checkout import is_from_checkout
from trainctl.model.address import Address
from trainctl.model.diagnostics import Diagnostic, of_error, warning
from trainctl.model.specs.job_spec import CodeSpec
from trainctl.operations.workspace import Workspace
from trainctl.plan.values import CodeTree


@dataclass(slots=True)
class CodeSurveyResult:
    """Code trees, programs of the host and missing files, by job."""

    trees: dict[Address, CodeTree] = field(default_factory=dict)
    programs: dict[Address, tuple[str | None, str]] = field(default_factory=dict)
    """Virtual environment and program of jobs without a container that install nothing."""
    missing_requirements: dict[Address, tuple[str, ...]] = field(default_factory=dict)
    files: dict[str, Mapping[str, str]] = field(default_factory=dict)
    """Files by the digest of their tree, with kind and git id."""
    problems: list[Diagnostic] = field(default_factory=list)


def survey_code(workspace: Workspace) -> CodeSurveyResult:
    """Scan the code of each job, each directory once."""
    result = CodeSurveyResult()
    scans: dict[CodeSpec, CodeSource | TrainctlError] = {}
    for resource in workspace.desired.jobs():
        address, spec = resource.address, resource.job_spec.code
        if spec not in scans:
            scans[spec] = survey_directory(workspace, spec)
        code = scans[spec]
        if isinstance(code, TrainctlError):
            result.problems.append(of_error(code, str(address)))
            continue
        result.problems += [
            warning(
                f"the submodule {path} in the code is empty",
                "Check it out: git submodule update --init. Or exclude it with .trainctlignore.",
                address=str(address),
                code="empty-submodule",
            )
            for path in code.empty_submodules()
        ]
        result.trees[address] = code.tree
        if len(code.blobs) <= _MOST_LISTED:
            result.files[code.tree.digest] = code.blobs
        job = resource.job_spec
        if not job.in_container:
            requirements, venv = job.runtime.requirements, job.runtime.venv
            needs = host_requirements(job, code.kinds)
            problems = [needs.problem] if needs.problem else []
            if requirements and requirements not in code.kinds:
                problems.append(f"requirements file {requirements} not found in the code")
            result.missing_requirements[address] = tuple(problems)
            if not requirements:
                directory = workspace.settings.directory
                own = venv and is_from_checkout(Path(venv).expanduser(), directory)
                # A plan does not execute an interpreter that came with the manifest.
                result.programs[address] = venv, "" if own else needs.program
    return result


_MOST_LISTED = 5_000
"""Larger trees are not listed in plan files, and their changes are not named."""


def survey_directory(workspace: Workspace, spec: CodeSpec) -> CodeSource | TrainctlError:
    """Return the current code of a job, or the error of scanning it."""
    try:
        return scan_code(workspace.settings.directory, spec, workspace.excluded_paths)
    except TrainctlError as failure:
        return failure
