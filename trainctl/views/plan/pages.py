"""Format plans as Markdown and HTML; draw their graph as Mermaid, DOT and SVG."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from html import escape as escape_html

from trainctl.base.lazy_pattern import compile_lazily
from trainctl.base.units import format_duration
from trainctl.model.address import Address
from trainctl.plan.values import OUTPUT_MARK, DeliveryRow, Plan
from trainctl.views.plan.changes import LEGEND
from trainctl.views.plan.tables import verdict
from trainctl.views.plan.text import (
    MOST_NAMED,
    PAGE,
    ChangeGroup,
    PlanSection,
    change_groups,
    heading,
    parse_diff_line,
    sections,
)
from trainctl.views.terminal.text import display_width, escape

Graph = Mapping[str, Sequence[str]]
"""Labels of resources, each with the labels of those that it needs."""

_LETTER, _ROW, _GAP, _BARS = 8, 34, 60, 400
_MOST_DELIVERIES = 40


def resource_graph(
    needs: Mapping[Address, Iterable[Address]], signs: Mapping[Address, str] | None = None
) -> Graph:
    """Return a graph in which jobs of a matrix with the same sign are one: ``+ job.sweep[*]``."""
    graph: dict[str, dict[str, None]] = {}
    labels = {
        address: f"{(signs or {}).get(address, '')} "
        f"{address if address.key is None else f'{address.group}[*]'}".strip()
        for address in needs
    }
    for address, others in needs.items():
        edges = graph.setdefault(labels[address], {})
        edges.update({labels[other]: None for other in others if other in labels})
    return {label: [other for other in edges if other != label] for label, edges in graph.items()}


def plan_graph(plan: Plan) -> Graph:
    """Return the graph of all resources of a plan with the symbols of their actions."""
    signs = {item.address: LEGEND.get(item.action, ("",))[0] for item in plan.changes}
    return resource_graph({item.address: item.depends_on for item in plan.changes}, signs)


def mermaid_lines(graph: Graph) -> list[str]:
    """Return a Mermaid flowchart; characters with a meaning are ``#34;`` in its labels."""
    ids = {label: f"n{number}" for number, label in enumerate(graph)}
    special = re.compile(r"[^\w .*/+-]")
    texts = [special.sub(lambda char: f"#{ord(char[0])};", label) for label in graph]
    nodes = [f'  {name}["{text}"]' for name, text in zip(ids.values(), texts, strict=True)]
    return ["flowchart RL", *nodes, *(f"  {ids[a]} --> {ids[b]}" for a, b in _edges(graph))]


def dot_lines(graph: Graph) -> list[str]:
    """Return the graph in the language of Graphviz."""
    quoted = {
        label: '"' + escape(label).replace("\\", "\\\\").replace('"', '\\"') + '"'
        for label in graph
    }
    edges = [f"  {quoted[a]} -> {quoted[b]};" for a, b in _edges(graph)]
    head = ["digraph {", '  rankdir = "RL";', '  node [shape = rect, fontname = "sans-serif"];']
    return [*head, *(f"  {label};" for label in quoted.values()), *edges, "}"]


def _edges(graph: Graph) -> list[tuple[str, str]]:
    return [(label, other) for label, others in graph.items() for other in others]


def graph_svg(graph: Graph) -> list[str]:
    """Return a drawing in columns: each resource is to the right of all that it needs."""
    try:
        order = list(TopologicalSorter(graph).static_order())
    except CycleError:  # possible in records only
        order = list(graph)
    columns: dict[str, int] = {}
    for label in order:
        columns[label] = max((columns.get(other, 0) + 1 for other in graph[label]), default=0)
    boxes: dict[str, tuple[int, int, int]] = {}
    x = bottom = 0
    for column in sorted(set(columns.values())):
        members = [label for label in graph if columns[label] == column]
        members.sort(key=lambda label: sum(boxes[to][1] for to in graph[label] if to in boxes))
        width = _LETTER * max(map(display_width, members)) + 20
        boxes |= {label: (x, row * _ROW, width) for row, label in enumerate(members)}
        x, bottom = x + width + _GAP, max(bottom, len(members) * _ROW)
    shapes = []
    for label, other in _edges(graph):
        start, top = boxes[label][0], boxes[label][1] + 13
        end, y = boxes[other][0] + boxes[other][2], boxes[other][1] + 13
        curve = f"M{start} {top}C{start - 30} {top} {end + 30} {y} {end} {y}"
        shapes.append(f'<path d="{curve}m6 -4l-6 4l6 4"/>')
    for label, (left, top, width) in boxes.items():
        box = f'x="{left}" y="{top}" width="{width}" height="26" rx="4"'
        shapes += [f'<rect {box} fill="Canvas"/>', _text(left + 10, top + 18, label)]
    return _svg(x, bottom, shapes)


def timeline_svg(rows: Iterable[DeliveryRow]) -> list[str]:
    """Return bars of the slowest deliveries: mirroring hollow, delivery to the node filled."""
    timed = [(row.forecast_seconds, row) for row in rows if row.forecast_seconds]
    timed = sorted(timed, key=lambda item: -item[0])[:_MOST_DELIVERIES]
    names = [f"{row.job} rank {row.rank}: {row.weights}" for _, row in timed]
    left = _LETTER * max(map(display_width, names), default=0) + 20
    shapes = []
    for y, (seconds, row), name in zip(range(0, 10**6, _ROW), timed, names, strict=False):
        full = _BARS * seconds / timed[0][0]
        last = full if row.last_hop_seconds is None else full * row.last_hop_seconds / seconds
        shapes += [
            f'<rect x="{left}" y="{y}" width="{full:.1f}" height="26"/>',
            f'<rect x="{left + full - last:.1f}" y="{y}" width="{last:.1f}" height="26" fill="currentColor"/>',
            _text(0, y + 18, name),
            _text(left + full + 8, y + 18, format_duration(seconds)),
        ]
    return _svg(left + _BARS + 100, len(timed) * _ROW, shapes) if shapes else []


def _text(x: float, y: float, words: str) -> str:
    shown = escape_html(escape(words))
    return f'<text x="{x:.0f}" y="{y}" fill="currentColor" stroke="none">{shown}</text>'


def _svg(width: int, height: int, shapes: Sequence[str]) -> list[str]:
    size = f'width="{width}" height="{height}" viewBox="-1 -1 {width} {height}"'
    style = 'font-family="monospace" font-size="13" fill="none" stroke="currentColor"'
    return [f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>', *shapes, "</svg>"]


_TICKS = compile_lazily(r"`+")
_PROSE = compile_lazily(r"(?!.*www\.)[\w ,.:;()-]*", re.ASCII | re.IGNORECASE)


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
    summary = f"<details><summary><code>{escape_html(escape(title))}</code></summary>"
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

    def prose(words: str) -> str:
        # words of others may hold links, mentions or HTML
        return f"{bold}{words if _PROSE.fullmatch(words) else code_span(words)}{bold}"

    items = [f"- {item.format(code_span, prose)}" for item in section.items]
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
    lines = []
    for line in group.lines:  # diff highlighting needs the sign first, and has "!" for changes
        sign, indentation, text = parse_diff_line(line)
        lines.append(f"{sign}{indentation or ' '}{text}" if sign else line)
    block = code_block(_truncate(lines, _MAX_COLLAPSIBLE, rest), "diff")
    return [*collapsible(group.title, block), ""]


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
    for section in sections(plan, now):
        body.append(f"<h2>{html_text(section.title.replace('`', ''))}</h2>")
        if section.lines:
            body.append(preformatted(section.lines))
            continue
        items = [f"<li>{item.format(html_code, html_text)}</li>" for item in section.items]
        body += ['<ul class="take">' if section.strong else "<ul>", *items, "</ul>"]
    graph = plan_graph(plan)
    body += _picture("Time of deliveries (hollow: into the mirror)", timeline_svg(plan.deliveries))
    if len(graph) <= _MOST_DRAWN:
        body += _picture("Graph (arrows point to what a resource needs)", graph_svg(graph))
    if not concise:
        for change in change_groups(plan, PAGE):
            classes = [_CLASSES[parse_diff_line(line)[0]] for line in change.lines]
            shown = preformatted(change.lines, classes)
            title = html_code(change.title)
            body.append(f"<details><summary>{title}</summary>{shown}</details>")
    return html_page(heading(plan, PAGE), [*body, f"<p>Plan digest: {html_code(plan.digest)}</p>"])


def _picture(title: str, svg: Sequence[str]) -> list[str]:
    return [f"<h2>{title}</h2>", '<div class="picture">', *svg, "</div>"] if svg else []
