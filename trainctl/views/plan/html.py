"""Format plans as HTML pages, which load nothing and run nothing."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from html import escape as escape_html
from itertools import groupby
from pathlib import Path as FilePath
from typing import Any

from trainctl.model.address import Kind
from trainctl.plan.values import Plan
from trainctl.views.plan.changes import (
    LEGEND,
    MISSING,
    UNKNOWN,
    AttributeRow,
    PageStyle,
    Path,
    change_lines,
    is_forced,
    is_multiline,
    shown_action,
    value_text,
)
from trainctl.views.plan.pages import HTML_MARK, SIGN_CLASS, graph_svg, plan_graph
from trainctl.views.plan.tables import verdict
from trainctl.views.plan.text import (
    PAGE,
    ChangeGroup,
    PlanSection,
    change_groups,
    heading,
    losses,
    sections,
)
from trainctl.views.terminal.text import escape, escape_lines, format_minute, plain

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_MOST_DRAWN, _MOST_OPEN = 150, 12


class HtmlLine(str):
    """A line that is HTML already."""


def html_text(words: str) -> str:
    """Escape text for HTML."""
    return escape_html(escape(words))


def html_code(words: str) -> str:
    """Return inline code."""
    return f"<code>{html_text(words)}</code>"


def preformatted(lines: Iterable[str]) -> str:
    """Return text lines as ``<pre>``, and between them those that are HTML."""
    parts = []
    for is_html, group in groupby(lines, lambda line: isinstance(line, HtmlLine)):
        shown = "\n".join(line if is_html else html_text(line) for line in group)
        parts.append(shown if is_html else f"<pre>{shown}</pre>")
    return "\n".join(parts)


def html_page(title: str, body: Sequence[str]) -> list[str]:
    """Return a complete HTML page; ``body`` is HTML."""
    style = FilePath(__file__).with_name("page.css").read_text()
    head = f"""<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{html_text(title)}</title>
<style>
{style}</style>"""
    start = ["<!doctype html>", HTML_MARK, '<html lang="en">', "<head>", head, "</head>", "<body>"]
    return [*start, f"<h1>{html_text(title)}</h1>", *body, "</body>", "</html>"]


def plan_html(plan: Plan, now: float | None = None, *, concise: bool = False) -> list[str]:
    """Return the HTML page of a plan; ``concise`` omits the changes."""
    return html_page(heading(plan, PAGE), plan_body(plan, now, concise=concise))


def plan_body(plan: Plan, now: float | None = None, *, concise: bool = False) -> list[str]:
    """Return the HTML of a plan below its heading."""
    body = [f"<p>{html_text(verdict(plan))}</p>"] if plan.has_changes else []
    body += _origin(plan)
    groups = [] if concise else change_groups(plan, PAGE)
    lost = sum(bool(section.items) for section in losses(plan, now, None))
    parts = [_section(section) for section in sections(plan, now, page=_PAGE)]
    for part in parts[:lost]:
        body += part
    if groups:
        body += ["<h2>Changes</h2>", *(_change(group, plan, len(groups)) for group in groups)]
    for part in parts[lost:]:
        body += part
    graph = plan_graph(plan)
    if 0 < len(graph) <= _MOST_DRAWN:
        body += ["<h2>Graph</h2>", "<p>Arrows point to what a resource needs.</p>"]
        body += ['<div class="scroll">', *graph_svg(graph), "</div>"]
    return [*body, f"<p>Plan digest: {html_code(plan.digest)}</p>"]


def _section(section: PlanSection) -> list[str]:
    title = f"<h2>{html_text(section.title.replace('`', ''))}</h2>"
    if section.lines:
        return [title, preformatted(section.lines)]
    items = [f"<li>{item.format(html_code, html_text)}</li>" for item in section.items]
    return [title, '<ul class="take">' if section.strong else "<ul>", *items, "</ul>"]


def _origin(plan: Plan) -> list[str]:
    projects = [item.address.name for item in plan.changes if item.address.kind is Kind.PROJECT]
    facts = {
        "Project": ", ".join(projects),
        "Author": plan.author,
        "Commit": plan.commit or "",
        "Made (UTC)": format_minute(plan.created_at),
    }
    pairs = [f"<div><dt>{k}</dt><dd>{html_text(v)}</dd></div>" for k, v in facts.items() if v]
    return ["<dl>", *pairs, "</dl>"] if pairs else []


def _change(group: ChangeGroup, plan: Plan, count: int) -> str:
    """Return a change with a table of its attributes, and the names of the others of its group."""
    sign, word = LEGEND[shown_action(group.first)]
    mark, name = SIGN_CLASS.get(sign, "same"), group.title.removeprefix(f"{sign} ")
    lines = [
        line if isinstance(line, HtmlLine) else f'<p class="note">{html_text(line.strip(" #"))}</p>'
        for line in [*change_lines(group.first, plan, _PAGE), group.note]
        if line.strip() not in ("", f"{sign} {group.first.address}")
    ]
    summary = f"<summary><b>{sign} {word}</b> {html_code(name)}</summary>"
    opened = " open" if count <= _MOST_OPEN else ""
    return f'<details class="{mark}"{opened}>{summary}{"".join(lines)}</details>'


def _table(columns: Mapping[str, Sequence[str]], right: Container[str]) -> list[str]:
    shown = {name: cells for name, cells in columns.items() if any(cells)}
    classes = {name: ' class="n"' if name in right else "" for name in shown}
    head = "".join(f"<th{classes[name]}>{html_text(name)}</th>" for name in shown)
    rows = (
        "".join(
            f"<td{classes[name]}>{html_text(cell)}</td>"
            for name, cell in zip(shown, row, strict=True)
        )
        for row in zip(*shown.values(), strict=True)
    )
    return [_html_table(head, rows)]


def _attributes(
    rows: Sequence[AttributeRow], forced: Sequence[Path], unknown: Mapping[str, Any]
) -> list[str]:
    rows = [*rows, *(AttributeRow("~", (name,), old, _LATER) for name, old in unknown.items())]
    has_before = any(row.before is not MISSING for row in rows)
    head = ("", "Attribute", *(["Before", "After"] if has_before else ["Value"]))
    cells = []
    for row in rows:
        mark = " <em>forces replacement</em>" if is_forced(row, forced) else ""
        values = [*([_value(row, row.before)] if has_before else []), _value(row, row.after)]
        shown = "".join(f'<td class="value">{value}</td>' for value in values)
        sign = f'<td class="{SIGN_CLASS[row.symbol]}">{row.symbol}</td>'
        cells.append(f"{sign}<td>{html_text(row.name)}{mark}</td>{shown}")
    return [_html_table("".join(f"<th>{name}</th>" for name in head), cells)] if cells else []


_LATER = object()


def _value(row: AttributeRow, value: Any) -> str:
    if value is _LATER:
        return UNKNOWN
    lines = escape_lines(value) if is_multiline(value) else [value_text(row, value)]
    return escape_html("\n".join(lines))


def _html_table(head: str, rows: Iterable[str]) -> HtmlLine:
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return HtmlLine(f'<div class="scroll">{table}</div>')


_PAGE = PageStyle(100, plain, _table, _attributes)
