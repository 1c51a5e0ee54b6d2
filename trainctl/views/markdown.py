"""Text that isn't ours in Markdown: always as code, where nothing is a link, a mention, HTML or a command.

Fences and spans are longer than any run of backticks inside, as CommonMark has it (spec 0.31, 4.5 and 6.1).
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from trainctl.views.escape import escape

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
