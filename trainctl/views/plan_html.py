"""A plan as one HTML page without scripts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape as escape_html

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


def text(words: str) -> str:
    """Text that isn't ours, as nothing but text."""
    return escape_html(escape(words))


def code(words: str) -> str:
    """Something that is typed."""
    return f"<code>{text(words)}</code>"


def preformatted(lines: Iterable[str], classes: Iterable[str] = ()) -> str:
    """Lines in columns; each has a class, or an empty one."""
    marks = list(classes)
    shown = [text(line) for line in lines]
    if marks:
        shown = [
            f'<span class="{mark}">{line}</span>' if mark else line
            for line, mark in zip(shown, marks, strict=True)
        ]
    return "<pre>" + "\n".join(shown) + "</pre>"


def page(title: str, body: Sequence[str]) -> list[str]:
    """The lines of a whole page below its title; ``body`` is HTML."""
    return [
        "<!doctype html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        f"<title>{text(title)}</title>",
        f"<style>\n{_STYLE}</style>",
        "</head>",
        "<body>",
        f"<h1>{text(title)}</h1>",
        *body,
        "</body>",
        "</html>",
    ]


_CLASSES = {"+": "add", "-": "take", "!": "change", "": ""}


def plan_html(plan: Plan, now: float | None = None, *, concise: bool = False) -> list[str]:
    """The lines of the page. ``concise`` leaves out the changes in full."""
    body = [line for one in sections(plan, now) for line in _section(one)]
    body += [f"<p>{text(line)}</p>" for line in cost_lines(plan, PAGE)]
    if not concise:
        body += [_change(in_full(one, plan)) for one in changes(plan)]
    return page(heading(plan), [*body, f"<p>Plan digest: {code(plan.digest)}</p>"])


def _section(section: Section) -> list[str]:
    title = f"<h2>{text(section.title.replace('`', ''))}</h2>"
    if section.lines:
        return [title, preformatted(section.lines)]
    items = [f"<li>{code(one.address)}{one.joint}{text(one.words)}</li>" for one in section.items]
    return [title, "<ul>", *items, "</ul>"]


def _change(change: Section) -> str:
    classes = [_CLASSES[signed(line).sign] for line in change.lines]
    shown = preformatted(change.lines, classes)
    return f"<details><summary>{code(change.title)}</summary>{shown}</details>"
