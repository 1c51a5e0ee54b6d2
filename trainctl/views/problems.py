"""Errors and diagnostics for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trainctl.errors import ManifestError, TrainctlError
from trainctl.model.diagnostics import Diagnostic, Severity
from trainctl.views.output import Output

_COLORS = {Severity.ERROR: "red", Severity.WARNING: "yellow"}


def problem_lines(error: TrainctlError, output: Output) -> list[str]:
    """An error as it is shown on standard error: what and where, then what to do."""
    if isinstance(error, ManifestError):
        found = [one for one in error.diagnostics if isinstance(one, Diagnostic)]
        return [*diagnostic_lines(found, output), count_line(found)]
    where = f"{error.address}: " if error.address else ""
    label = output.style("error:", "red", error=True)
    return [f"{label} {where}{error.summary}", *_indented(error.detail)]


def diagnostic_lines(diagnostics: Iterable[Diagnostic], output: Output) -> list[str]:
    """Every diagnostic: ``file:line:column: error: summary``, then the detail."""
    lines: list[str] = []
    for one in diagnostics:
        where = f"{one.where}: " if one.where else ""
        label = output.style(f"{one.severity}:", _COLORS[one.severity], error=True)
        address = f"{one.address}: " if one.address and one.address not in one.summary else ""
        lines += [f"{where}{label} {address}{one.summary}", *_indented(one.detail)]
    return lines


def count_line(diagnostics: Sequence[Diagnostic]) -> str:
    """How many there are of each kind."""
    counts = [(sum(one.severity is kind for one in diagnostics), kind.value) for kind in Severity]
    return ", ".join(f"{n} {word}{'s' if n != 1 else ''}" for n, word in counts if n)


def _indented(text: str) -> list[str]:
    return [f"  {line}" for line in text.splitlines()]
