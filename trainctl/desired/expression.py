"""Expressions (``${{ … }}``), and the places in shell commands where a quoted word can be inserted."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from trainctl.base.lazy_dataclass import dataclass, field
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.manifest.tree import Scalar
from trainctl.model.diagnostics import did_you_mean, nearest

OPEN = "${{"
PATTERN = compile_lazily(r"\$\{\{(.*?)\}\}", re.DOTALL)
_RAW = compile_lazily(r"raw\((.*)\)", re.DOTALL)
_WEIGHTS = compile_lazily(r"weights\.(.+)\.([a-z_]+)")
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


_COMPLETE = compile_lazily(
    r"""
    \\.
    | (?<!\$)'[^']*'
    | "(?: [^"\\`$] | \\. | \$(?![({])
        | \$\{[^{}'"`$\\]*\}
        | \$\(\([^()'"`\\#{}<]*\)\)
        | \$\( (?: [^()'"`\\#{}<] | "[^()'"`\\#{}<]*" )* \) )*"
    | \$\{[^{}'"`$\\]*\}
    | \$\(\([^()'"`\\#{}<]*\)\)
    | `[^()'"`\\#{}<$]*`
    | (?:^|(?<=[ \t\n;&|()<>]))\#[^\n]*\n
    """,
    re.VERBOSE | re.DOTALL,
)
"""Complete parts of a command: escapes, quoted text, ``${…}``, simple ``$((…))`` and backquotes, comments."""
_SPLIT = compile_lazily(r"\$\\\n|\\[ \t\n;&|()<>]\#")
_CASE = compile_lazily(r"\bcase\b.*\$\(|\$\(.*\bcase\b", re.DOTALL)
_REFUSED = {
    compile_lazily(r"\$'"): "in a command with $'…', which sh and bash read differently",
    compile_lazily("'"): "inside single quotes",
    compile_lazily(r'"[^"]*\$\('): "inside or after $(…) in double quotes",
    compile_lazily('"'): "inside double quotes",
    compile_lazily("`"): "inside or after backquotes",
    compile_lazily(r"\$\{"): "inside ${…}",
    compile_lazily(r"\(\(|\$\["): "in or after arithmetic",
    compile_lazily("(?<!<)<<(?!<)"): "in or after a here-document",
    compile_lazily(r"(?:^|[ \t\n;&|()<>])\#"): "in a comment",
    compile_lazily(r"\\\Z"): "after a backslash",
    compile_lazily(r"\$\Z"): "after '$'",
}
"""Why a quoted word can't follow what remains without the complete parts."""


def refusal(before: str) -> str | None:
    """Reason why no quoted word can be inserted after this text of a command; None if it certainly can."""
    if _SPLIT.search(before):
        return "after a backslash before '#' or a line's end"
    if _CASE.search(before):
        return "in a command with both 'case' and $(…)"
    remaining = _COMPLETE.sub(_replacement, before)
    return next((why for pattern, why in _REFUSED.items() if pattern.search(remaining)), None)


def _replacement(part: re.Match[str]) -> str:
    return "" if part[0] == "\\\n" else "\n" if part[0][0] == "#" else "_"
