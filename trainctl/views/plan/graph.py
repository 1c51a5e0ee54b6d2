"""Draw what resources need as Mermaid, DOT and SVG, and deliveries over time as SVG."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from html import escape as escape_html

from trainctl.base.units import format_duration
from trainctl.model.address import Address
from trainctl.plan.values import DeliveryRow, Plan
from trainctl.views.plan.changes import LEGEND
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
