"""A plan as Markdown for a pull request; fences and spans that hold any text."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

from trainctl.plan.values import Plan
from trainctl.views.escape import escape
from trainctl.views.plan_text import (
    PAGE,
    Section,
    changes,
    cost_lines,
    heading,
    in_full,
    sections,
    signed,
)

_TICKS = re.compile(r"`+")


def code(text: str) -> str:
    """A code span on one line that shows the text and nothing else."""
    text = escape(text)
    ticks = "`" * (_longest([text]) + 1)
    space = " " if text.startswith("`") or text.endswith("`") or not text.strip() else ""
    return f"{ticks}{space}{text}{space}{ticks}"


def fenced(lines: Sequence[str], language: str = "text") -> list[str]:
    """A fence around lines, each as it is shown in text."""
    lines = [escape(line) for line in lines]
    ticks = "`" * max(3, _longest(lines) + 1)
    return [f"{ticks}{language}", *lines, ticks]


def fold(title: str, lines: Sequence[str]) -> list[str]:
    """Lines of Markdown below a title, closed at first."""
    summary = f"<details><summary><code>{html.escape(escape(title))}</code></summary>"
    return [summary, "", *lines, "", "</details>"]


def _longest(lines: Sequence[str]) -> int:
    return max((len(run) for line in lines for run in _TICKS.findall(line)), default=0)


LIMIT = 65_536
"""Characters a comment on GitHub may have; other hosts allow more."""

_SECTION = 9_000
"""Characters that each list or table may have, so that all of them leave most of the comment to the changes."""
_FOLD = 16_000
_TAIL = 1_000
"""Kept for what was left out and the digest."""


def plan_markdown(plan: Plan, now: float | None = None, *, concise: bool = False) -> list[str]:
    """The lines of the comment, below GitHub's limit; what did not fit is counted. ``concise`` leaves out the folds."""
    lines = [f"### {heading(plan)}", ""]
    for section in sections(plan, now):
        lines += [f"**{section.title}:**", "", *_content(section), ""]
    lines += [line for cost in cost_lines(plan, PAGE) for line in (cost, "")]
    if not concise:
        lines += _changes(plan, LIMIT - _TAIL - _size(lines))
    return [*lines, f"Plan digest: `{plan.digest}`"]


def _content(section: Section) -> list[str]:
    if section.lines:
        return fenced(_clipped(section.lines, _SECTION))
    items = [f"- {code(one.address)}{one.joint}{one.words}" for one in section.items]
    return _clipped(items, _SECTION, "- ")


def _changes(plan: Plan, room: int) -> list[str]:
    """A fold for each change for as long as there is room."""
    found = changes(plan)
    lines: list[str] = []
    for number, change in enumerate(in_full(one, plan) for one in found):
        text = _clipped([_colored(one) for one in change.lines], _FOLD)
        one = [*fold(change.title, fenced(text, "diff")), ""]
        if _size(lines) + _size(one) > room:
            left = len(found) - number
            return [
                *lines,
                f"**{left} of {len(found)} changes are not shown: a comment has no room for more.**",
                "",
            ]
        lines += one
    return lines


def _colored(line: str) -> str:
    """The line as a diff is coloured: with its sign first, and ``!`` for what is changed."""
    sign, indentation, text = signed(line)
    return f"{sign}{indentation or ' '}{text}" if sign else line


def _clipped(lines: Sequence[str], most: int, before: str = "") -> list[str]:
    """The first lines, and how many there are more where they don't fit."""
    kept: list[str] = []
    size = 0
    for number, line in enumerate(lines):
        size += len(line) + 1
        if size > most:
            return [*kept, f"{before}… and {len(lines) - number} more"]
        kept.append(line)
    return kept


def _size(lines: Iterable[str]) -> int:
    return sum(len(line) + 1 for line in lines)
