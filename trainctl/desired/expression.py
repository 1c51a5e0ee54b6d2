"""Variables (``vars``, ``--var``) and expressions (``${{ … }}``)."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainctl.desired.values import VARIABLE_PREFIX
from trainctl.manifest.files import UnreadableManifest
from trainctl.manifest.read import read_mapping
from trainctl.manifest.suggestions import did_you_mean, nearest
from trainctl.manifest.tree import ManifestNode, Scalar, require_encodable, resolve_scalar
from trainctl.model.credentials import looks_like_credential
from trainctl.model.diagnostics import Diagnostic, Position, error, warning

OPEN = "${{"
PATTERN = re.compile(r"\$\{\{(.*?)\}\}", re.DOTALL)
_RAW = re.compile(r"raw\((.*)\)", re.DOTALL)
_WEIGHTS = re.compile(r"weights\.(.+)\.([a-z_]+)")
_KNOWN = "var.NAME, matrix.NAME, project.name, job.name and weights.NAME.path"


class InvalidExpression(ValueError):
    """An expression without value; ``detail`` says what to write."""

    def __init__(self, summary: str, detail: str = "", *, code: str) -> None:
        super().__init__(summary)
        self.detail = detail
        self.code = code


@dataclass(frozen=True, slots=True)
class ExpressionScope:
    """Values that expressions can refer to in one place; None if not available there.

    ``weights`` has the paths of the job's weights, empty if unknown.
    """

    variables: Mapping[str, Scalar]
    project: str | None = None
    job: str | None = None
    matrix: Mapping[str, Scalar] | None = None
    weights: Mapping[str, str] = field(default_factory=dict)
    declared_weights: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Expression:
    """A reference; ``raw`` inserts its value unquoted."""

    reference: str
    raw: bool

    @classmethod
    def parse(cls, text: str) -> Expression:
        """Parse the text between the braces."""
        inner = text.strip()
        match = _RAW.fullmatch(inner)
        return cls(match[1].strip() if match else inner, match is not None)

    def value(self, scope: ExpressionScope) -> Scalar:
        """Return the value in a scope; raise InvalidExpression if there is none."""
        kind, _, rest = self.reference.partition(".")
        if kind == "var" and rest:
            return _variable(rest, scope)
        if kind == "matrix" and rest:
            return _matrix(rest, scope)
        if kind == "weights" and rest:
            return _weights_path(self.reference, scope)
        if self.reference == "project.name":
            return _require_value(scope.project, "project.name", "there are several projects")
        if self.reference == "job.name":
            return _require_value(scope.job, "job.name", "the expression is not in a job")
        raise _unknown(kind, self.reference)


def _variable(name: str, scope: ExpressionScope) -> Scalar:
    if name not in scope.variables:
        hint = did_you_mean(name, scope.variables)
        raise InvalidExpression(
            f"undeclared variable {name!r}",
            f"Declare it under 'vars'. {hint}".strip(),
            code="undeclared-variable",
        )
    return scope.variables[name]


def _matrix(name: str, scope: ExpressionScope) -> Scalar:
    if scope.matrix is None:
        raise InvalidExpression(
            f"matrix.{name} is not available here",
            "Use it in a job with a 'matrix'.",
            code="reference-without-value",
        )
    if name not in scope.matrix:
        near = nearest(name, scope.matrix)
        hint = f"Did you mean 'matrix.{near}'? " if near else ""
        raise InvalidExpression(
            f"matrix.{name} is not set in every combination",
            f"{hint}Add a list to 'matrix', or a value to each 'include'.",
            code="reference-without-value",
        )
    return scope.matrix[name]


def _weights_path(reference: str, scope: ExpressionScope) -> str:
    match = _WEIGHTS.fullmatch(reference)
    if match is None or match[2] != "path":
        raise InvalidExpression(
            f"unknown reference {reference!r}", "Use weights.NAME.path.", code="unknown-reference"
        )
    name = match[1]
    if scope.job is None:
        raise InvalidExpression(
            "paths of weights are only available in jobs",
            "Use the expression in the job that lists the weights.",
            code="reference-without-value",
        )
    if name in scope.weights:
        return scope.weights[name]
    if name in scope.declared_weights:
        raise InvalidExpression(
            f"job.{scope.job} does not use weights.{name}",
            f"Add {name} to 'weights' of the job.",
            code="reference-without-value",
        )
    raise InvalidExpression(
        f"undeclared weights {name!r}",
        did_you_mean(name, scope.declared_weights),
        code="undeclared-name",
    )


def _require_value(value: str | None, reference: str, why: str) -> str:
    if value is None:
        raise InvalidExpression(
            f"{reference} is not available here",
            f"{why[0].upper()}{why[1:]}.",
            code="reference-without-value",
        )
    return value


def _unknown(kind: str, reference: str) -> InvalidExpression:
    if kind in ("secret", "secrets"):
        return InvalidExpression(
            "secrets can't be used in expressions",
            "Use environment_variables: {NAME: {secret: …}} and $NAME in the command.",
            code="secret-as-text",
        )
    if kind == "env":
        return InvalidExpression(
            "environment variables of the client can't be used in expressions",
            "Use a variable with --var, or $NAME in the job.",
            code="unknown-reference",
        )
    return InvalidExpression(
        f"unknown reference {reference!r}", f"Known: {_KNOWN}.", code="unknown-reference"
    )


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
