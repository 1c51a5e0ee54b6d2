"""Format plans as Markdown and HTML."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from html import escape as escape_html

from trainctl.plan.values import OUTPUT_MARK, Plan
from trainctl.views.plan.text import (
    PAGE,
    PlanSection,
    changes,
    cost_lines,
    full_change,
    heading,
    parse_diff_line,
    sections,
)
from trainctl.views.terminal.text import escape

_TICKS = re.compile(r"`+")


def code_span(text: str) -> str:
    """Return a Markdown code span of a text."""
    text = escape(text)
    ticks = "`" * (_longest_run([text]) + 1)
    space = " " if text.startswith("`") or text.endswith("`") or not text.strip() else ""
    return f"{ticks}{space}{text}{space}{ticks}"


def code_block(lines: Sequence[str], language: str = "text") -> list[str]:
    """Return a Markdown code block."""
    lines = [escape(line) for line in lines]
    ticks = "`" * max(3, _longest_run(lines) + 1)
    return [f"{ticks}{language}", *lines, ticks]


def collapsible(title: str, lines: Sequence[str]) -> list[str]:
    """Return Markdown lines in a closed ``<details>`` element."""
    summary = f"<details><summary><code>{html.escape(escape(title))}</code></summary>"
    return [summary, "", *lines, "", "</details>"]


def _longest_run(lines: Sequence[str]) -> int:
    return max((len(run) for line in lines for run in _TICKS.findall(line)), default=0)


HTML_MARK = f"<!-- {OUTPUT_MARK} -->"
LIMIT = 65_536
"""GitHub's limit of a comment, in characters."""

_SECTION = 9_000
"""Characters of each list or table, so that most of the comment is left for changes."""
_MAX_COLLAPSIBLE = 16_000
_TAIL = 1_000
"""Characters reserved for the end of the comment."""


def plan_markdown(plan: Plan, now: float | None = None, *, concise: bool = False) -> list[str]:
    """Return Markdown below GitHub's size limit; ``concise`` omits the changes."""
    lines = [HTML_MARK, "", f"### {heading(plan, PAGE)}", ""]
    for section in sections(plan, now):
        lines += [f"**{section.title}:**", "", *_content(section), ""]
    lines += [line for cost in cost_lines(plan, PAGE) for line in (cost, "")]
    if not concise:
        lines += _changes(plan, LIMIT - _TAIL - _size(lines))
    return [*lines, f"Plan digest: `{plan.digest}`"]


def _content(section: PlanSection) -> list[str]:
    if section.lines:
        return code_block(_truncate(section.lines, _SECTION))
    items = [f"- {code_span(item.address)}{item.joint}{item.words}" for item in section.items]
    return _truncate(items, _SECTION, "- ")


def _changes(plan: Plan, available: int) -> list[str]:
    """Return a collapsible block per change, as many as fit."""
    in_order = changes(plan)
    lines: list[str] = []
    for number, change in enumerate(full_change(block, plan) for block in in_order):
        text = _truncate([_colored(line) for line in change.lines], _MAX_COLLAPSIBLE)
        block = [*collapsible(change.title, code_block(text, "diff")), ""]
        if _size(lines) + _size(block) > available:
            left = len(in_order) - number
            return [
                *lines,
                f"**{left} of {len(in_order)} changes are not shown: the comment size limit is reached.**",
                "",
            ]
        lines += block
    return lines


def _colored(line: str) -> str:
    """Format a line for diff highlighting: sign first, ``!`` for changes."""
    sign, indentation, text = parse_diff_line(line)
    return f"{sign}{indentation or ' '}{text}" if sign else line


def _truncate(lines: Sequence[str], most: int, before: str = "") -> list[str]:
    """Return the first lines that fit, and the number of the others."""
    shown: list[str] = []
    size = 0
    for number, line in enumerate(lines):
        size += len(line) + 1
        if size > most:
            return [*shown, f"{before}… and {len(lines) - number} more"]
        shown.append(line)
    return shown


def _size(lines: Iterable[str]) -> int:
    return sum(len(line) + 1 for line in lines)


_STYLE = """\
:root { color-scheme: light dark; --text: #1f2328; --ground: #fff; --box: #f6f8fa; --line: #d1d9e0; --add: #116329; --take: #a40e26; --change: #7d4e00; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6edf3; --ground: #0d1117; --box: #161b22; --line: #30363d; --add: #56d364; --take: #ff7b72; --change: #e3b341; }
}
body { margin: 0 auto; max-width: 72rem; padding: 1.5rem; color: var(--text); background: var(--ground); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; }
h2 { font-size: 1.1rem; margin: 1.5rem 0 .5rem; }
code, pre { font: 14px/1.45 ui-monospace, monospace; }
pre { margin: 0; padding: .75rem 1rem; overflow-x: auto; background: var(--box); border: 1px solid var(--line); border-radius: 6px; }
details { margin: .5rem 0; }
summary { cursor: pointer; padding: .25rem 0; }
.add { color: var(--add); }
.take { color: var(--take); }
.change { color: var(--change); }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def html_text(words: str) -> str:
    """Escape text for HTML."""
    return escape_html(escape(words))


def html_code(words: str) -> str:
    """Return inline code."""
    return f"<code>{html_text(words)}</code>"


def preformatted(lines: Iterable[str], classes: Iterable[str] = ()) -> str:
    """Return lines as ``<pre>``, each with a CSS class or ''."""
    marks = list(classes)
    shown = [html_text(line) for line in lines]
    if marks:
        shown = [
            f'<span class="{mark}">{line}</span>' if mark else line
            for line, mark in zip(shown, marks, strict=True)
        ]
    return "<pre>" + "\n".join(shown) + "</pre>"


def html_page(title: str, body: Sequence[str]) -> list[str]:
    """Return a complete HTML page; ``body`` is HTML."""
    return [
        "<!doctype html>",
        HTML_MARK,
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        f"<title>{html_text(title)}</title>",
        f"<style>\n{_STYLE}</style>",
        "</head>",
        "<body>",
        f"<h1>{html_text(title)}</h1>",
        *body,
        "</body>",
        "</html>",
    ]


_CLASSES = {"+": "add", "-": "take", "!": "change", "": ""}


def plan_html(plan: Plan, now: float | None = None, *, concise: bool = False) -> list[str]:
    """Return the HTML page of a plan; ``concise`` omits the changes."""
    body = [line for section in sections(plan, now) for line in _html_section(section)]
    body += [f"<p>{html_text(line)}</p>" for line in cost_lines(plan, PAGE)]
    if not concise:
        body += [_html_change(full_change(change, plan)) for change in changes(plan)]
    return html_page(heading(plan, PAGE), [*body, f"<p>Plan digest: {html_code(plan.digest)}</p>"])


def _html_section(section: PlanSection) -> list[str]:
    title = f"<h2>{html_text(section.title.replace('`', ''))}</h2>"
    if section.lines:
        return [title, preformatted(section.lines)]
    items = [
        f"<li>{html_code(item.address)}{item.joint}{html_text(item.words)}</li>"
        for item in section.items
    ]
    return [title, "<ul>", *items, "</ul>"]


def _html_change(change: PlanSection) -> str:
    classes = [_CLASSES[parse_diff_line(line).sign] for line in change.lines]
    shown = preformatted(change.lines, classes)
    return f"<details><summary>{html_code(change.title)}</summary>{shown}</details>"
