"""Variables: declared in ``vars``, overridden by files and by ``--var``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from trainctl.manifest.credentials import looks_like_credential
from trainctl.manifest.files import UnreadableManifest
from trainctl.manifest.read import read_mapping
from trainctl.manifest.scalars import require_encodable, resolve
from trainctl.manifest.suggestions import did_you_mean
from trainctl.manifest.tree import ManifestNode, Scalar
from trainctl.model.diagnostics import Diagnostic, Position, error, warning

_FLAG = Position("--var")


def values(
    root: ManifestNode,
    overrides: Mapping[str, str],
    files: Sequence[Path],
    problems: list[Diagnostic],
) -> dict[str, Scalar]:
    """The value of every variable: the manifest's, then each file's in order, then the flags'."""
    section = root.entries.get("vars")
    declared = {
        name: entry.value
        for name, entry in (section.entries if section else {}).items()
        if not isinstance(entry.value, dict | list)
    }
    result = dict(declared)
    for file in files:
        result.update(_of_file(file, declared, problems))
    for name, text in overrides.items():
        if name not in declared:
            hint = did_you_mean(name, declared)
            problems.append(
                error(
                    f"undeclared variable {name!r}",
                    f"Declare it under 'vars'. {hint}",
                    where=_FLAG,
                    code="undeclared-variable",
                )
            )
        elif looks_like_credential(text):
            problems.append(_credential(name, _FLAG))
        else:
            result[name] = _read(name, text, declared[name], problems)
    return result


def _read(name: str, text: str, declared: Scalar, problems: list[Diagnostic]) -> Scalar:
    try:
        return require_encodable(text) if isinstance(declared, str) else resolve(text)
    except ValueError as why:
        problems.append(error(f"variable {name}: {why}", where=_FLAG, code="invalid-variable"))
        return declared


def _of_file(
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
