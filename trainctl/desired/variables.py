"""Values given for one command: variables (``--var``, ``--var-file``) and those of ``--set``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from trainctl.desired.values import VARIABLE_PREFIX, JobOverrides
from trainctl.manifest.files import UnreadableManifest
from trainctl.manifest.read import read_mapping
from trainctl.manifest.text import parse_yaml
from trainctl.manifest.tree import (
    ManifestNode,
    Scalar,
    require_encodable,
    resolve_scalar,
    scalar_node,
    with_edits,
)
from trainctl.model.credentials import looks_like_credential
from trainctl.model.diagnostics import Diagnostic, Position, did_you_mean, error, warning


def read_variables(
    root: ManifestNode,
    overrides: Mapping[str, str],
    files: Sequence[Path],
    problems: list[Diagnostic],
    environ: Mapping[str, str],
) -> dict[str, Scalar]:
    """Return all variables: declared values, overridden by the environment, then files in order, then flags.

    Undeclared variables of the environment are ignored: they may be for another manifest.
    """
    section = root.entries.get("vars")
    declared = {
        name: entry.value
        for name, entry in (section.entries if section else {}).items()
        if not isinstance(entry.value, dict | list)
    }
    result = dict(declared)
    for name in declared:
        source = f"{VARIABLE_PREFIX}{name}"
        if source in environ:
            result[name] = _read_text(name, environ[source], declared[name], source, problems)
    for file in files:
        result.update(_read_file(file, declared, problems))
    for name, text in overrides.items():
        if name not in declared:
            hint = did_you_mean(name, declared)
            problems.append(
                error(
                    f"undeclared variable {name!r}",
                    f"Declare it under 'vars'. {hint}",
                    where=Position("--var"),
                    code="undeclared-variable",
                )
            )
        else:
            result[name] = _read_text(name, text, declared[name], "--var", problems)
    return result


def _read_text(
    name: str, text: str, declared: Scalar, source: str, problems: list[Diagnostic]
) -> Scalar:
    where = Position(source)
    if looks_like_credential(text):
        problems.append(_credential(name, where))
        return declared
    try:
        return require_encodable(text) if isinstance(declared, str) else resolve_scalar(text)
    except ValueError as why:
        problems.append(error(f"variable {name}: {why}", where=where, code="invalid-variable"))
        return declared


def _read_file(
    file: Path, declared: Mapping[str, Scalar], problems: list[Diagnostic]
) -> dict[str, Scalar]:
    try:
        root = read_mapping(file, str(file), problems)
    except UnreadableManifest as stop:
        problems.append(stop.diagnostic)
        return {}
    result: dict[str, Scalar] = {}
    for name, entry in root.entries.items():
        if name not in declared:
            problems.append(
                warning(
                    f"undeclared variable {name!r}",
                    f"Declare it under 'vars'. {did_you_mean(name, declared)}".strip(),
                    where=root.key_position(name),
                    code="undeclared-variable",
                )
            )
        elif isinstance(entry.value, dict | list) or entry.value is None:
            problems.append(
                error(
                    f"variable {name}: expected text, a number, true or false",
                    where=entry.where,
                    code="invalid-variable",
                )
            )
        elif isinstance(entry.value, str) and looks_like_credential(entry.value):
            problems.append(_credential(name, entry.where))
        else:
            result[name] = entry.value
    return result


def _credential(name: str, where: Position) -> Diagnostic:
    return error(
        f"variable {name}: this looks like a credential",
        "Declare it under 'secrets' and use it with environment_variables: {NAME: {secret: …}}.",
        where=where,
        code="credential",
    )


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
