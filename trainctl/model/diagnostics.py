"""Diagnostics: problems with severity, code, position and advice."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from enum import StrEnum
from pathlib import Path

from trainctl.base.lazy_dataclass import dataclass, field
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.errors import PermissionDenied, TrainctlError
from trainctl.model.json_codec import to_json


class Severity(StrEnum):
    """An error stops the command; a warning is only printed."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A position in a manifest file; lines and columns count from 1.

    TOML values have only a key path. ``lines`` is the parsed text: excerpts match it even if the file has changed since.
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
    """One problem: a short ``summary`` and advice in ``detail``.

    ``code`` is stable and explained in ``trainctl/errors.md``. ``forbids``: a policy or missing trust is the reason.
    """

    severity: Severity
    code: str
    summary: str
    detail: str = ""
    address: str | None = None
    where: Position | None = None
    forbids: bool = False

    def to_json(self) -> dict[str, str | int | None]:
        """JSON form in ``validate --format json`` and plans."""
        form: dict[str, str | int | None] = to_json(self)
        del form["where"], form["forbids"]
        position = ("file", "line", "column")
        return {**form, **{name: getattr(self.where, name, None) for name in position}}


def error(
    summary: str,
    detail: str = "",
    *,
    code: str,
    address: str | None = None,
    where: Position | None = None,
) -> Diagnostic:
    """Create an error."""
    return Diagnostic(Severity.ERROR, code, summary, detail, address, where)


def warning(
    summary: str,
    detail: str = "",
    *,
    code: str,
    address: str | None = None,
    where: Position | None = None,
) -> Diagnostic:
    """Create a warning."""
    return Diagnostic(Severity.WARNING, code, summary, detail, address, where)


def of_error(
    failure: TrainctlError, address: str | None = None, where: Position | None = None
) -> Diagnostic:
    """Convert an exception to an error diagnostic."""
    forbids = isinstance(failure, PermissionDenied)
    return Diagnostic(
        severity=Severity.ERROR,
        code=failure.code,
        summary=failure.summary,
        detail=failure.detail,
        address=address,
        where=where,
        forbids=forbids,
    )


_HEADING = compile_lazily(r"^### (\S+)\n", re.MULTILINE)
_GROUP = compile_lazily(r"^## .*\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Explanation:
    """Explanation of an error code; ``text`` is Markdown with indented examples."""

    code: str
    title: str
    text: str


def error_reference() -> str:
    """Return the reference of all error codes, in Markdown."""
    return (Path(__file__).parents[1] / "errors.md").read_text(encoding="utf-8")


def explanations() -> dict[str, Explanation]:
    """Return the explanations by code, in the order of the reference."""
    parts = _HEADING.split(_GROUP.sub("", error_reference()))[1:]
    texts = {code: body.strip() for code, body in zip(parts[::2], parts[1::2], strict=True)}
    split = {code: text.partition("\n\n") for code, text in texts.items()}
    return {code: Explanation(code, title, text) for code, (title, _, text) in split.items()}


_MAX_COMPARED = 500
_MAX_LISTED = 12


def nearest(word: str, names: Collection[str]) -> str | None:
    """Return the most similar name; for more than 500 names ignore only case."""
    folded = word.casefold()
    if len(names) > _MAX_COMPARED:
        return next((name for name in names if name.casefold() == folded), None)
    import difflib  # for problems only

    by_fold = {name.casefold(): name for name in names}
    matches = difflib.get_close_matches(folded[:200], by_fold, n=1, cutoff=0.6)
    return by_fold[matches[0]] if matches else None


def did_you_mean(word: str, names: Collection[str]) -> str:
    """Return a sentence with the most similar name, or with all if there are few."""
    near = nearest(word, names)
    if near is not None:
        return f"Did you mean {near!r}?"
    if not names:
        return "None are declared."
    if len(names) <= _MAX_LISTED:
        return f"Known: {', '.join(sorted(names))}."
    return ""
