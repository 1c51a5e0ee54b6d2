"""A plan as a page: what the comment on a pull request says, with no limit to its length."""

from __future__ import annotations

from trainctl.plan.values import Plan
from trainctl.views.html import code, page, preformatted, text
from trainctl.views.plan_sections import PAGE, Section, changes, heading, in_full, sections, signed
from trainctl.views.plan_text import cost_lines

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
