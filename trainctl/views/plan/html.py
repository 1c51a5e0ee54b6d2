"""Format plans as HTML pages, which load nothing and run nothing."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from html import escape as escape_html
from itertools import chain, groupby
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
    """Text that is HTML already."""


def html_text(words: str) -> str:
    """Escape text for HTML, unless it is HTML already."""
    return words if isinstance(words, HtmlLine) else escape_html(escape(words))


def html_code(words: str) -> str:
    """Return inline code."""
    return f"<code>{html_text(words)}</code>"


def preformatted(lines: Iterable[str]) -> str:
    """Return text lines as ``<pre>``, and between them those that are HTML."""
    parts = []
    for is_html, group in groupby(lines, lambda line: isinstance(line, HtmlLine)):
        shown = "\n".join(map(html_text, group))
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
    parts = [_section(section) for section in sections(plan, now, page=_PAGE)]
    if groups := [] if concise else change_groups(plan, PAGE):
        changes = ["<h2>Changes</h2>", *(_change(group, plan, len(groups)) for group in groups)]
        parts.insert(sum(bool(lost.items) for lost in losses(plan, now, None)), changes)
    graph = plan_graph(plan)
    if 0 < len(graph) <= _MOST_DRAWN:
        title = "<h2>Graph</h2><p>Arrows point to what a resource needs.</p>"
        parts.append([title, '<div class="scroll">', *graph_svg(graph), "</div>"])
    said = [f"<p>{html_text(verdict(plan))}</p>"] if plan.has_changes else []
    digest = f"<p>Plan digest: {html_code(plan.digest)}</p>"
    return [*said, *_origin(plan), *chain(*parts), digest]


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


def _table(columns: Mapping[str, Sequence[str]], right: Container[str] = ()) -> list[str]:
    """Return a table without its empty columns."""
    shown = {name: cells for name, cells in columns.items() if any(cells)}
    marks = [' class="n"' * (name in right) for name in shown]

    def line(tag: str, cells: Iterable[str]) -> str:
        marked = zip(marks, map(html_text, cells), strict=True)
        return f"<tr>{''.join(f'<{tag}{mark}>{cell}</{tag}>' for mark, cell in marked)}</tr>"

    body = "".join(line("td", row) for row in zip(*shown.values(), strict=True))
    table = f"<table><thead>{line('th', shown)}</thead><tbody>{body}</tbody></table>"
    return [HtmlLine(f'<div class="scroll">{table}</div>')] if shown else []


def _attributes(
    rows: Sequence[AttributeRow], forced: Sequence[Path], unknown: Mapping[str, Any]
) -> list[str]:
    rows = [*rows, *(AttributeRow("~", (name,), old, UNKNOWN) for name, old in unknown.items())]
    signs = [HtmlLine(f'<b class="{SIGN_CLASS[row.symbol]}">{row.symbol}</b>') for row in rows]
    forces = [" <em>forces replacement</em>" * is_forced(row, forced) for row in rows]
    names = [HtmlLine(html_text(row.name) + mark) for row, mark in zip(rows, forces, strict=True)]
    before = [_value(row, row.before) for row in rows]
    after = [_value(row, row.after) for row in rows]
    title = "After" if any(before) else "Value"
    return _table({"": signs, "Attribute": names, "Before": before, title: after})


def _value(row: AttributeRow, value: Any) -> HtmlLine:
    lines = escape_lines(value) if is_multiline(value) else [value_text(row, value)]
    text = value if value is UNKNOWN else escape_html("\n".join(lines))
    return HtmlLine("" if value is MISSING else f"<code>{text}</code>")


_PAGE = PageStyle(100, plain, _table, _attributes)
