"""The code of jobs as it is now, and what it needs of the hosts it runs on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trainctl.errors import TrainctlError
from trainctl.jobs.code import Code, scan
from trainctl.jobs.host_needs import HostNeeds, host_needs
from trainctl.model.address import Address, Kind
from trainctl.model.diagnostics import Diagnostic, of_error
from trainctl.operations.workspace import Workspace
from trainctl.plan.values import CodeTree


@dataclass(slots=True)
class CodeSeen:
    """Of each job its code tree, what it needs of its host, and what is missing in the code itself."""

    trees: dict[Address, CodeTree] = field(default_factory=dict)
    needs: dict[Address, HostNeeds] = field(default_factory=dict)
    lacks: dict[Address, tuple[str, ...]] = field(default_factory=dict)
    problems: list[Diagnostic] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Read:
    """A directory that one or more jobs ship."""

    tree: CodeTree
    files: Mapping[str, str]


def look_at_code(workspace: Workspace) -> CodeSeen:
    """The code of each job; jobs that share a directory share the reading."""
    seen = CodeSeen()
    read: dict[str, _Read | TrainctlError] = {}
    for address, resource in workspace.desired.resources.items():
        if address.kind is not Kind.JOB:
            continue
        path = resource.job_spec.code.path
        if path not in read:
            read[path] = _read(workspace, path)
        found = read[path]
        if isinstance(found, TrainctlError):
            seen.problems.append(of_error(found, str(address)))
            continue
        seen.trees[address] = found.tree
        job = resource.job_spec
        if not job.in_container:
            needs = seen.needs[address] = host_needs(job, found.files)
            seen.lacks[address] = tuple(_lacking(job.runtime.requirements, needs, found.files))
    return seen


def tree_of(workspace: Workspace, path: str) -> CodeTree | TrainctlError:
    """The code tree in a directory as it is now, or why it can't be told."""
    found = _read(workspace, path)
    return found.tree if isinstance(found, _Read) else found


def _read(workspace: Workspace, path: str) -> _Read | TrainctlError:
    try:
        code: Code = scan(workspace.setting.directory, path, workspace.withheld)
    except TrainctlError as failure:
        return failure
    return _Read(code.tree, {file.path: file.kind for file in code.files})


def _lacking(requirements: str | None, needs: HostNeeds, files: Mapping[str, str]) -> list[str]:
    lacks = [needs.problem] if needs.problem else []
    if requirements and requirements not in files:
        lacks.append(f"the code has no file {requirements}, which runtime.requirements names")
    return lacks
