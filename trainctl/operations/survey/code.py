"""The code of jobs as it is now, and what it needs of the hosts it runs on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trainctl.errors import TrainctlError
from trainctl.jobs.code import CodeSource, scan
from trainctl.jobs.host_requirements import HostRequirements, host_requirements
from trainctl.model.address import Address, Kind
from trainctl.model.diagnostics import Diagnostic, of_error
from trainctl.operations.workspace import Workspace
from trainctl.plan.values import CodeTree


@dataclass(slots=True)
class CodeSurveyResult:
    """Of each job its code tree, what it needs of its host, and what is missing in the code itself."""

    trees: dict[Address, CodeTree] = field(default_factory=dict)
    needs: dict[Address, HostRequirements] = field(default_factory=dict)
    missing_requirements: dict[Address, tuple[str, ...]] = field(default_factory=dict)
    problems: list[Diagnostic] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _ScannedCode:
    """A directory that one or more jobs ship."""

    tree: CodeTree
    files: Mapping[str, str]


def survey_code(workspace: Workspace) -> CodeSurveyResult:
    """The code of each job; jobs that share a directory share the reading."""
    seen = CodeSurveyResult()
    read: dict[str, _ScannedCode | TrainctlError] = {}
    for address, resource in workspace.desired.resources.items():
        if address.kind is not Kind.JOB:
            continue
        path = resource.job_spec.code.path
        if path not in read:
            read[path] = _scan(workspace, path)
        found = read[path]
        if isinstance(found, TrainctlError):
            seen.problems.append(of_error(found, str(address)))
            continue
        seen.trees[address] = found.tree
        job = resource.job_spec
        if not job.in_container:
            needs = seen.needs[address] = host_requirements(job, found.files)
            seen.missing_requirements[address] = tuple(
                _missing_files(job.runtime.requirements, needs, found.files)
            )
    return seen


def scan_tree(workspace: Workspace, path: str) -> CodeTree | TrainctlError:
    """The code tree in a directory as it is now, or why it can't be told."""
    found = _scan(workspace, path)
    return found.tree if isinstance(found, _ScannedCode) else found


def _scan(workspace: Workspace, path: str) -> _ScannedCode | TrainctlError:
    try:
        code: CodeSource = scan(workspace.settings.directory, path, workspace.excluded_paths)
    except TrainctlError as failure:
        return failure
    return _ScannedCode(code.tree, {file.path: file.kind for file in code.files})


def _missing_files(
    requirements: str | None, needs: HostRequirements, files: Mapping[str, str]
) -> list[str]:
    missing_requirements = [needs.problem] if needs.problem else []
    if requirements and requirements not in files:
        missing_requirements.append(f"requirements file {requirements} not found in the code")
    return missing_requirements
