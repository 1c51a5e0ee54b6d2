"""Values of ``--set``, which replace those of jobs in the manifest for one command."""

from __future__ import annotations

from collections.abc import Sequence

from trainctl.desired.values import JobOverrides
from trainctl.manifest.files import UnreadableManifest
from trainctl.manifest.text.yaml_text import parse_yaml
from trainctl.manifest.tree import (
    ManifestNode,
    require_encodable,
    resolve_scalar,
    scalar_node,
    with_edits,
)
from trainctl.model.diagnostics import Diagnostic, Position, error

_TEXTS = frozenset({"environment_variables", "labels"})
"""Mappings of text: a number below them needs no quotes."""


def with_overrides(
    root: ManifestNode, overrides: JobOverrides, problems: list[Diagnostic]
) -> ManifestNode:
    """Return the tree with these values; report paths and values that are invalid."""
    jobs = root.entries["jobs"].entries if "jobs" in root.entries else {}
    names = frozenset(overrides.jobs or jobs)
    if overrides.values and len(names) > 1 and not overrides.jobs:
        summary, advice = "the manifest has several jobs", "Name those to change with --target."
        problems.append(error(summary, advice, where=Position("--set"), code="invalid-override"))
        return root
    for path, text in overrides.values.items():
        where, steps = Position(f"--set {path}"), path.split(".")
        try:
            for name in names & jobs.keys():  # the planner reports others
                value = _value(jobs[name], steps, text, where, problems)
                root = with_edits(root, {("jobs", name, *steps): value})
                jobs = root.entries["jobs"].entries
        except UnreadableManifest as stop:
            problems.append(stop.diagnostic)
        except ValueError as why:
            problems.append(error(str(why), where=where, code="invalid-override"))
    return root


def _value(
    job: ManifestNode,
    steps: Sequence[str],
    text: str,
    where: Position,
    problems: list[Diagnostic],
) -> ManifestNode:
    """Return the value of a text: as YAML, but as text if the manifest quotes such a text there."""
    node: ManifestNode | None = job
    for step in steps:
        if node is not None and not isinstance(node.value, dict):
            raise ValueError(f"{step!r} can't be set: the value above it is not a mapping")
        node = None if node is None else node.entries.get(step)
    if text.startswith(("[", "{", '"', "'")):
        return parse_yaml(text, where.file, problems) or scalar_node(None, where)
    old = node and node.value
    is_quoted = isinstance(old, str) and resolve_scalar(old) != old
    is_text = is_quoted or not _TEXTS.isdisjoint(steps)
    return scalar_node(require_encodable(text) if is_text else resolve_scalar(text), where)
