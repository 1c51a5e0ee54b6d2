"""Format plans as Markdown; draw their graph as Mermaid, DOT and SVG."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from html import escape as escape_html

from trainctl.base.lazy_pattern import compile_lazily
from trainctl.model.address import Address
from trainctl.plan.values import OUTPUT_MARK, Plan
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
SIGN_CLASS = {"+": "add", "=": "add", "~": "change", "-": "take", "-/+": "take"}
"""Classes of the symbols of actions, for colours."""

_LETTER, _ROW, _STEP, _MARGIN = 8, 36, 28, 12


def resource_graph(
    needs: Mapping[Address, Iterable[Address]], signs: Mapping[Address, str] | None = None
) -> Graph:
    """Return a graph in which the jobs of a matrix are one, with all of their signs: ``+ job.sweep[*]``."""
    graph: dict[str, dict[str, None]] = {}
    names = {at: str(at) if at.key is None else f"{at.group}[*]" for at in needs}
    marks: dict[str, dict[str, None]] = {}
    for address, name in names.items():
        marks.setdefault(name, {})[(signs or {}).get(address, "")] = None
    labels = {at: " ".join(filter(None, [*marks[name], name])) for at, name in names.items()}
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
    quoted = {label: json.dumps(escape(label), ensure_ascii=False) for label in graph}
    edges = [f"  {quoted[a]} -> {quoted[b]};" for a, b in _edges(graph)]
    head = ["digraph {", '  rankdir = "RL";', '  node [shape = rect, fontname = "sans-serif"];']
    return [*head, *(f"  {label};" for label in quoted.values()), *edges, "}"]


def _edges(graph: Graph) -> list[tuple[str, str]]:
    return [(label, other) for label, others in graph.items() for other in others]


def graph_svg(graph: Graph) -> list[str]:
    """Return a drawing in steps: arrows lead up to what a resource needs, and past all other resources."""
    try:
        order = [*TopologicalSorter(graph).static_order()]
    except CycleError:  # possible in records only
        order = [*graph]
    needed = {other for others in graph.values() for other in others}
    places: dict[str, tuple[int, int]] = {}
    x, right, boxes = _MARGIN, 0, []
    for label in order:
        y, width = _MARGIN + len(places) * _ROW, _LETTER * display_width(label) + 20
        places[label], right = (x, y), max(right, x + width)
        mark = SIGN_CLASS.get(label.partition(" ")[0], "same")
        boxes += [
            f'<rect x="{x}" y="{y}" width="{width}" height="26" rx="4" class="{mark}"/>',
            f'<text x="{x + 10}" y="{y + 18}" fill="currentColor" stroke="none">{escape_html(escape(label))}</text>',
        ]
        x += _STEP if label in needed else 0
    arrows = [(*places[label], *places[other]) for label, other in _edges(graph)]
    paths = [
        f'<path d="M{x} {y + 13}H{to + 14}V{top + 26}m-4 7l4 -7l4 7"/>' for x, y, to, top in arrows
    ]
    width, height = right + _MARGIN, _MARGIN + len(places) * _ROW
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    style = 'font-family="monospace" font-size="13" fill="none" stroke="currentColor"'
    return [f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>', *paths, *boxes, "</svg>"]


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
