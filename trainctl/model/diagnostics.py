"""Problems as data: what is wrong, where, and what to write instead."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from importlib.resources import files

from trainctl.errors import PermissionDenied, TrainctlError


class Severity(StrEnum):
    """An error stops the command; a warning is shown and the command goes on."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A place in a manifest file; lines and columns count from 1. In TOML a value may have a key path only.

    ``lines`` is the file as it was read, so that the line that is shown is the one that was judged, whatever became of the file.
    It is no part of the value.
    """

    file: str
    line: int | None = None
    column: int | None = None
    key_path: str | None = None
    lines: Sequence[str] | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        if self.line is not None:
            return f"{self.file}:{self.line}:{self.column or 1}"
        return f"{self.file}: {self.key_path}" if self.key_path else self.file


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One problem. ``summary`` is short; ``detail`` says in full sentences what to write instead.

    ``code`` names the kind of problem and never changes; ``trainctl/errors.md`` explains every one. ``forbids`` says that nothing
    failed: a policy or missing trust forbids it.
    """

    severity: Severity
    code: str
    summary: str
    detail: str = ""
    address: str | None = None
    where: Position | None = None
    forbids: bool = False

    def to_json(self) -> dict[str, str | int | None]:
        """The form that ``validate --format json`` and plans print."""
        where = self.where
        return {
            "severity": self.severity.value,
            "code": self.code,
            "summary": self.summary,
            "detail": self.detail,
            "address": self.address,
            "file": where.file if where else None,
            "line": where.line if where else None,
            "column": where.column if where else None,
        }


def error(
    summary: str,
    detail: str = "",
    *,
    code: str,
    address: str | None = None,
    where: Position | None = None,
) -> Diagnostic:
    """An error diagnostic."""
    return Diagnostic(Severity.ERROR, code, summary, detail, address, where)


def warning(
    summary: str,
    detail: str = "",
    *,
    code: str,
    address: str | None = None,
    where: Position | None = None,
) -> Diagnostic:
    """A warning diagnostic."""
    return Diagnostic(Severity.WARNING, code, summary, detail, address, where)


def of_error(
    failure: TrainctlError, address: str | None = None, where: Position | None = None
) -> Diagnostic:
    """The diagnostic of an error that stops what it is about."""
    found = error(failure.summary, failure.detail, code=failure.code, address=address, where=where)
    return replace(found, forbids=isinstance(failure, PermissionDenied))


_HEADING = re.compile(r"^### (\S+)\n", re.MULTILINE)
_GROUP = re.compile(r"^## .*\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Explanation:
    """A code, in one sentence and at length; ``text`` is Markdown in which examples are indented."""

    code: str
    title: str
    text: str


def error_reference() -> str:
    """The whole page, in Markdown."""
    return (files("trainctl") / "errors.md").read_text(encoding="utf-8")


def explanations() -> dict[str, Explanation]:
    """Every code's explanation, in the page's order."""
    parts = _HEADING.split(_GROUP.sub("", error_reference()))[1:]
    return {
        code: _explanation(code, body) for code, body in zip(parts[::2], parts[1::2], strict=True)
    }


def _explanation(code: str, body: str) -> Explanation:
    title, _, text = body.strip().partition("\n\n")
    return Explanation(code, title, text)
