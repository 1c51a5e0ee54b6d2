"""Format plans as Markdown and HTML."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from html import escape as escape_html

from trainctl.plan.values import OUTPUT_MARK, Plan
from trainctl.views.plan.graph import graph_svg, plan_graph, timeline_svg
from trainctl.views.plan.groups import ChangeGroup, change_groups
from trainctl.views.plan.text import (
    MOST_NAMED,
    PAGE,
    PlanSection,
    heading,
    parse_diff_line,
    sections,
)
from trainctl.views.plan.verdict import verdict
from trainctl.views.terminal.text import escape

_TICKS = re.compile(r"`+")
_PROSE = re.compile(r"(?!.*www\.)[\w ,.:;()-]*", re.ASCII | re.IGNORECASE)


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


def _prose(words: str) -> str:
    """Return words of ours as they are, and others, which may hold links, mentions or HTML, as code."""
    return words if _PROSE.fullmatch(words) else code_span(words)


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
_IN_GROUP = 20
"""Resources to name in a group of changes."""


def plan_markdown(
    plan: Plan, now: float | None = None, *, concise: bool = False, rest: str = "trainctl plan"
) -> list[str]:
    """Return Markdown below GitHub's size limit; ``concise`` omits the changes.

    ``rest`` is the command that shows the parts that are cut.
    """
    lines = [HTML_MARK, "", f"### {heading(plan, PAGE)} {verdict(plan)}".rstrip(), ""]
    for section in sections(plan, now, MOST_NAMED):
        most = min(_SECTION, (LIMIT - _TAIL - _size(lines)) // 2)
        lines += [f"**{section.title}:**", "", *_content(section, most, rest), ""]
    if not concise:
        lines += _changes(plan, LIMIT - _TAIL - _size(lines), rest)
    return [*lines, f"Plan digest: `{plan.digest}`"]


def _content(section: PlanSection, most: int, rest: str) -> list[str]:
    if section.lines:
        return code_block(_truncate(section.lines, most, rest))
    bold = "**" if section.strong else ""
    items = [
        f"- {item.format(code_span, lambda words: f'{bold}{_prose(words)}{bold}')}"
        for item in section.items
    ]
    return _truncate(items, most, code_span(rest), "- ")


def _changes(plan: Plan, available: int, rest: str) -> list[str]:
    """Return a collapsible block for each group of changes, as many as fit."""
    for similar in (False, True):
        groups = change_groups(plan, PAGE, similar=similar, names=_IN_GROUP, rest=rest)
        blocks = [_block(group, rest) for group in groups]
        if sum(map(_size, blocks)) <= available:
            break
    total = left = sum(group.size for group in groups)
    lines: list[str] = []
    for group, block in zip(groups, blocks, strict=True):
        if _size(lines) + _size(block) > available:
            cut = f"{left} of {total} changes are not shown"
            return [*lines, f"**{cut}**, but by: {code_span(rest)}", ""]
        lines += block
        left -= group.size
    return lines


def _block(group: ChangeGroup, rest: str) -> list[str]:
    text = _truncate([_colored(line) for line in group.lines], _MAX_COLLAPSIBLE, rest)
    return [*collapsible(group.title, code_block(text, "diff")), ""]


def _colored(line: str) -> str:
    """Format a line for diff highlighting: sign first, ``!`` for changes."""
    sign, indentation, text = parse_diff_line(line)
    return f"{sign}{indentation or ' '}{text}" if sign else line


def _truncate(lines: Sequence[str], most: int, rest: str, before: str = "") -> list[str]:
    """Return the first lines that fit, the number of the others, and the command that shows them."""
    shown: list[str] = []
    size = 0
    for number, line in enumerate(map(escape, lines)):
        size += len(line) + 1
        if size > most:
            return [*shown, f"{before}… and {len(lines) - number} more: {rest}"]
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
.picture { overflow-x: auto; }
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


_MOST_DRAWN = 150
_CLASSES = {"+": "add", "-": "take", "!": "change", "": ""}


def plan_html(plan: Plan, now: float | None = None, *, concise: bool = False) -> list[str]:
    """Return the HTML page of a plan; ``concise`` omits the changes."""
    body = [f"<p>{html_text(verdict(plan))}</p>"] if plan.has_changes else []
    body += [line for section in sections(plan, now) for line in _html_section(section)]
    graph = plan_graph(plan)
    body += _picture("Time of deliveries (hollow: into the mirror)", timeline_svg(plan.deliveries))
    if len(graph) <= _MOST_DRAWN:
        body += _picture("Graph (arrows point to what a resource needs)", graph_svg(graph))
    if not concise:
        body += map(_html_change, change_groups(plan, PAGE))
    return html_page(heading(plan, PAGE), [*body, f"<p>Plan digest: {html_code(plan.digest)}</p>"])


def _picture(title: str, svg: Sequence[str]) -> list[str]:
    return [f"<h2>{title}</h2>", '<div class="picture">', *svg, "</div>"] if svg else []


def _html_section(section: PlanSection) -> list[str]:
    title = f"<h2>{html_text(section.title.replace('`', ''))}</h2>"
    if section.lines:
        return [title, preformatted(section.lines)]
    items = [f"<li>{item.format(html_code, html_text)}</li>" for item in section.items]
    return [title, '<ul class="take">' if section.strong else "<ul>", *items, "</ul>"]


def _html_change(change: ChangeGroup) -> str:
    classes = [_CLASSES[parse_diff_line(line)[0]] for line in change.lines]
    shown = preformatted(change.lines, classes)
    return f"<details><summary>{html_code(change.title)}</summary>{shown}</details>"
