"""Errors and diagnostics for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from trainctl.errors import ManifestError, TrainctlError, TrustError
from trainctl.manifest import excerpt as manifest
from trainctl.model.diagnostics import Diagnostic, Position, Severity
from trainctl.views.terminal.sanitize import escape, escape_lines
from trainctl.views.terminal.text import Style, display_width, plain

_COLORS = {Severity.ERROR: "red", Severity.WARNING: "yellow"}
_GENERIC_CODES = frozenset({"failed", "interrupted", "wrong-usage"})
"""Codes about which there is no more to read than the message says."""
_EXCERPTS = 50
"""How many diagnostics are shown with their line."""


def problem_lines(
    error: TrainctlError, style: Style = plain, width: int | None = None
) -> list[str]:
    """An error as it is shown on standard error: what and where, what to do, where to read more."""
    if isinstance(error, ManifestError | TrustError):
        found = [
            diagnostic for diagnostic in error.diagnostics if isinstance(diagnostic, Diagnostic)
        ]
        return [
            *diagnostic_lines(found, style, width),
            count_line(found),
            *explain_hint_lines(found, style),
        ]
    address = str(error.address) if error.address else None
    return [*error_lines(error, address, style), *explain_hint_lines([error], style)]


def error_lines(error: TrainctlError, address: str | None, style: Style = plain) -> list[str]:
    """An error about an address: what is wrong, its code, and below it what to do."""
    label = style("error:", "red")
    where = f"{address}: " if address else ""
    said = escape(where + error.summary)
    return [f"{label} {said}{_code(error.code, style)}", *_indented(error.detail)]


def diagnostic_lines(
    diagnostics: Iterable[Diagnostic], style: Style = plain, width: int | None = None
) -> list[str]:
    """Every diagnostic: ``file:line:column: error: summary [code]``, the line it is about, then the detail.

    A diagnostic that many jobs of a matrix share is printed once, with their number. Source lines are cut to
    ``width`` columns, and to 80.
    """
    lines: list[str] = []
    room = min(width or WIDTH, WIDTH)
    for number, (one, more) in enumerate(_merged(diagnostics)):
        where = f"{escape(str(one.where))}: " if one.where else ""
        label = style(f"{one.severity}:", _COLORS[one.severity])
        also = f" and {more} more" if more else ""
        address = f"{one.address}{also}: " if one.address and one.address not in one.summary else ""
        said = escape(address + one.summary)
        lines.append(f"{where}{label} {said}{_code(one.code, style)}")
        lines += excerpt_lines(one.where, room) if number < _EXCERPTS else ()
        lines += _indented(one.detail)
    return lines


def _merged(diagnostics: Iterable[Diagnostic]) -> Iterator[tuple[Diagnostic, int]]:
    """Each diagnostic with how many jobs of the same matrix have it too."""
    alike: dict[Diagnostic, list[Diagnostic]] = {}
    for diagnostic in diagnostics:
        group = diagnostic.address.partition("[")[0] if diagnostic.address else None
        alike.setdefault(replace(diagnostic, address=group), []).append(diagnostic)
    for first, *others in alike.values():
        yield first, len(others)


def count_line(diagnostics: Sequence[Diagnostic]) -> str:
    """How many there are of each kind."""
    counts = [
        (sum(diagnostic.severity is kind for diagnostic in diagnostics), kind.value)
        for kind in Severity
    ]
    return ", ".join(f"{n} {word}{'s' if n != 1 else ''}" for n, word in counts if n)


def explain_hint_lines(
    problems: Iterable[Diagnostic | TrainctlError], style: Style = plain
) -> list[str]:
    """How to read more about what went wrong, once for all; nothing where only warnings were shown."""
    codes = {
        problem.code
        for problem in problems
        if isinstance(problem, TrainctlError) or problem.severity is Severity.ERROR
    } - _GENERIC_CODES
    if not codes:
        return []
    which = next(iter(codes)) if len(codes) == 1 else "CODE"
    return [style(f"For details, run: trainctl explain {which}", "dim")]


def _code(code: str, style: Style) -> str:
    return " " + style(f"[{code}]", "dim")


def _indented(text: str) -> list[str]:
    return [f"  {line}" for line in escape_lines(text)] if text else []


WIDTH = 80
"""Columns that a line takes at most."""
_NARROWEST = 20
_TAB = "    "


def excerpt_lines(where: Position | None, width: int = WIDTH) -> list[str]:
    """The line with its number and the line with the caret; nothing where there is no line that may be shown.

    Long lines are cut to what stands around the place.
    """
    found = manifest.excerpt(where) if where else None
    if found is None or where is None:
        return []
    line, column = found
    number = str(where.line)
    text, caret = _window(
        _escaped_line(line[:column]),
        _escaped_line(line[column:].rstrip()),
        max(width - len(number) - 5, _NARROWEST),
    )
    return [f"  {number} | {text}", f"  {' ' * len(number)} | {' ' * caret}^"]


def _escaped_line(text: str) -> str:
    return escape(text.replace("\t", _TAB))


def _window(before: str, after: str, width: int) -> tuple[str, int]:
    """Both parts in so many columns, the end of the first kept, and how many columns it takes."""
    if display_width(before) + display_width(after) > width:
        before = _last(before, max(width // 2, width - display_width(after)))
        after = _first(after, width - display_width(before))
    return before + after, display_width(before)


def _first(text: str, width: int) -> str:
    return text if display_width(text) <= width else _cut(text, width) + "…"


def _last(text: str, width: int) -> str:
    return text if display_width(text) <= width else "…" + _cut(text[::-1], width)[::-1]


def _cut(text: str, width: int) -> str:
    """The beginning of a text in fewer columns than that."""
    text = text[:width]
    while display_width(text) >= width:
        text = text[:-1]
    return text
