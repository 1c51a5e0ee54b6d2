"""Format errors, diagnostics, and explanations of codes and manifest fields."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from trainctl.base.lazy_dataclass import replace
from trainctl.errors import ManifestError, TrainctlError, TrustError
from trainctl.model.diagnostics import Diagnostic, Explanation, Position, Severity
from trainctl.views.terminal.text import Style, display_width, escape, escape_lines, pad, plain

if TYPE_CHECKING:
    from trainctl.manifest.fields import ManifestField
    from trainctl.views.terminal.output import TerminalOutput

_COLORS = {Severity.ERROR: "red", Severity.WARNING: "yellow"}
_GENERIC_CODES = frozenset({"failed", "interrupted", "wrong-usage"})
"""Codes without an explanation beyond the message."""
_EXCERPTS = 50
"""How many diagnostics are shown with their source line."""


def problem_lines(
    error: TrainctlError, style: Style = plain, width: int | None = None
) -> list[str]:
    """Return the lines of an error, with hints."""
    if isinstance(error, ManifestError | TrustError):
        diagnostics = [
            diagnostic for diagnostic in error.diagnostics if isinstance(diagnostic, Diagnostic)
        ]
        return counted_lines(diagnostics, style, width)
    address = str(error.address) if error.address else None
    return [*error_lines(error, address, style), *explain_hint_lines([error], style)]


def counted_lines(diagnostics: Sequence[Diagnostic], style: Style, width: int | None) -> list[str]:
    """Return the lines of diagnostics, their number, and hints."""
    lines = diagnostic_lines(diagnostics, style, width)
    return [*lines, count_line(diagnostics), *explain_hint_lines(diagnostics, style)]


def error_lines(error: TrainctlError, address: str | None, style: Style = plain) -> list[str]:
    """Return the lines of an error about an address, which its summary may name."""
    label = style("error:", "red")
    prefix = f"{address}: " if address and address not in error.summary else ""
    summary = escape(prefix + error.summary)
    return [f"{label} {summary}{_code(error.code, style)}", *_indented(error.detail)]


def diagnostic_lines(
    diagnostics: Iterable[Diagnostic], style: Style = plain, width: int | None = None
) -> list[str]:
    """Return lines per diagnostic: summary, source line, detail.

    Diagnostics of several jobs of a matrix are merged. Source lines are cut to ``width`` or 80.
    """
    lines: list[str] = []
    available = min(width or WIDTH, WIDTH)
    for number, (diagnostic, more) in enumerate(_merged(diagnostics)):
        prefix = f"{escape(str(diagnostic.where))}: " if diagnostic.where else ""
        label = style(f"{diagnostic.severity}:", _COLORS[diagnostic.severity])
        others = f" and {more} more" if more else ""
        address = (
            f"{diagnostic.address}{others}: "
            if diagnostic.address and diagnostic.address not in diagnostic.summary
            else ""
        )
        summary = escape(address + diagnostic.summary)
        lines.append(f"{prefix}{label} {summary}{_code(diagnostic.code, style)}")
        lines += excerpt_lines(diagnostic.where, available) if number < _EXCERPTS else ()
        lines += _indented(diagnostic.detail)
    return lines


def _merged(diagnostics: Iterable[Diagnostic]) -> Iterator[tuple[Diagnostic, int]]:
    """Yield each diagnostic, and how many other jobs of a matrix have it."""
    alike: dict[Diagnostic, list[Diagnostic]] = {}
    for diagnostic in diagnostics:
        group = diagnostic.address.partition("[")[0] if diagnostic.address else None
        alike.setdefault(replace(diagnostic, address=group), []).append(diagnostic)
    for first, *others in alike.values():
        yield first, len(others)


def count_line(diagnostics: Sequence[Diagnostic]) -> str:
    """Count diagnostics by severity."""
    counts = [
        (sum(diagnostic.severity is kind for diagnostic in diagnostics), kind.value)
        for kind in Severity
    ]
    return ", ".join(f"{n} {word}{'s' if n != 1 else ''}" for n, word in counts if n)


def explain_hint_lines(
    problems: Iterable[Diagnostic | TrainctlError], style: Style = plain
) -> list[str]:
    """Return the hint to ``trainctl explain``; nothing for warnings."""
    codes = {
        problem.code
        for problem in problems
        if isinstance(problem, TrainctlError) or problem.severity is Severity.ERROR
    } - _GENERIC_CODES
    if not codes:
        return []
    code = next(iter(codes)) if len(codes) == 1 else "CODE"
    return [style(f"For details, run: trainctl explain {code}", "dim")]


def _code(code: str, style: Style) -> str:
    return " " + style(f"[{code}]", "dim")


def _indented(text: str) -> list[str]:
    return [f"  {line}" for line in escape_lines(text)] if text else []


WIDTH = 80
"""Maximum columns of a source line."""
_NARROWEST = 20
_TAB = "    "


def excerpt_lines(where: Position | None, width: int = WIDTH) -> list[str]:
    """Return the source line and a caret, if the line may be shown.

    Long lines are cut around the column.
    """
    from trainctl.manifest import excerpt as manifest

    excerpt = manifest.excerpt(where) if where else None
    if excerpt is None or where is None:
        return []
    line, column = excerpt
    number = str(where.line)
    available = max(width - len(number) - 5, _NARROWEST)
    before, after = (
        escape(part.replace("\t", _TAB)) for part in (line[:column], line[column:].rstrip())
    )
    if display_width(before) + display_width(after) > available:
        most = max(available // 2, available - display_width(after))
        before = _cut(before[::-1], most)[::-1]
        after = _cut(after, available - display_width(before))
    caret = " " * display_width(before)
    return [f"  {number} | {before}{after}", f"  {' ' * len(number)} | {caret}^"]


def _cut(text: str, width: int) -> str:
    """Shorten the end of a text to a width."""
    if display_width(text) <= width:
        return text
    text = text[:width]
    while display_width(text) >= width:
        text = text[:-1]
    return text + "…"


_WIDEST = 100


def code_lines(explanation: Explanation, output: TerminalOutput) -> list[str]:
    """Return an error code's title and text; examples are not wrapped."""
    lines = [f"{output.style(explanation.code, 'bold')}: {explanation.title}"]
    for paragraph in explanation.text.split("\n\n"):
        if not paragraph:
            continue
        is_example = paragraph.startswith("    ")
        lines += ["", *(paragraph.splitlines() if is_example else _wrap_text(paragraph, output))]
    return lines


def field_lines(
    field: ManifestField, children: Sequence[ManifestField], output: TerminalOutput
) -> list[str]:
    """Return a field's type and meaning, and the fields below it."""
    lines = [f"{output.style(field.path, 'bold')}: {_field_type(field)}"]
    lines += [f"  {line}" for line in _wrap_text(field.meaning, output)]
    width = max((len(child.steps[-1]) for child in children), default=0)
    if children:
        lines.append("")
    for child in children:
        lines.append(f"  {pad(child.steps[-1], width)}  {_field_type(child)}")
        lines += [
            f"  {' ' * width}  {line}" for line in _wrap_text(child.meaning, output, width + 4)
        ]
    return lines


def _field_type(field: ManifestField) -> str:
    if field.required:
        return f"{field.type} (required)"
    if field.default in (None, [], ""):
        return field.type
    return f"{field.type} (default: {json.dumps(field.default, ensure_ascii=False)})"


def _wrap_text(text: str, output: TerminalOutput, indent: int = 2) -> list[str]:
    width = min(output.width or _WIDEST, _WIDEST) - indent
    return textwrap.wrap(text, max(width, 20), break_long_words=False, break_on_hyphens=False)
