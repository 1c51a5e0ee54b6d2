"""Format a plan as text for a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from trainctl.base.units import format_duration
from trainctl.model.action import Action
from trainctl.model.address import Address, Kind
from trainctl.plan.batch_facts import BatchRow
from trainctl.plan.values import Change, Plan
from trainctl.views.plan.changes import (
    COLOURS,
    LEGEND,
    PageStyle,
    change_lines,
    drift_lines,
    headline,
    live_run_text,
    shown_action,
    similar_lines,
)
from trainctl.views.plan.json import PlanCounts
from trainctl.views.plan.offers import offer_lines
from trainctl.views.plan.tables import deliveries_table, images_table, weights_table
from trainctl.views.problems import diagnostic_lines
from trainctl.views.terminal.text import Style, escape, format_timestamp, plain

PAGE = PageStyle(100, plain)
_SIGN = re.compile(r"( {0,10})(-/\+|[-+~]) ")
"""Deeper indentation is a line of a multi-line text, where a dash is not a sign."""
_FIRST = (Action.DELETE, Action.REPLACE, Action.FORGET, Action.UPDATE, Action.CREATE)


class SectionItem(NamedTuple):
    """An address, and the text after it."""

    address: str
    words: str
    joint: str = " "


class PlanSection(NamedTuple):
    """A title with items or lines below it; not escaped."""

    title: str
    items: Sequence[SectionItem] = ()
    lines: Sequence[str] = ()


class DiffLine(NamedTuple):
    """A line of a change: sign (``+``, ``-``, ``!`` or ''), indentation, text."""

    sign: str
    indentation: str
    text: str


def sections(plan: Plan, now: float | None) -> list[PlanSection]:
    """Return the nonempty sections: stops and deletions, problems, tables."""
    edits = plan.edits.addresses
    candidates = (
        _stop_items(plan.changes, now),
        _named_items("Destroys", plan.changes, Action.DELETE),
        _named_items("Replaces", plan.changes, Action.REPLACE),
        PlanSection("Moves", [SectionItem(str(item), text) for item, text in edits.items()]),
        PlanSection("Problems", lines=diagnostic_lines(plan.diagnostics)),
        _drift(plan, PAGE),
        *_tables(plan, PAGE),
    )
    return [section for section in candidates if section.items or section.lines]


def _drift(plan: Plan, page: PageStyle) -> PlanSection:
    lines = [line for drift in plan.drift for line in drift_lines(drift, page)]
    return PlanSection("Changed outside of trainctl", lines=lines)


def _tables(plan: Plan, page: PageStyle) -> tuple[PlanSection, ...]:
    """Return the sections of unchanged resources and of the tables."""
    touched = {change.address for change in plan.changes if change.action is not Action.NOOP}
    touched |= {line.weights for line in plan.deliveries}
    weights = [line for line in plan.weights if line.address in touched]
    deliveries = deliveries_table(plan.deliveries, page) if plan.deliveries else ()
    return (
        PlanSection("Not changed", lines=_unchanged_lines(plan.changes, page)),
        PlanSection("Weights", lines=weights_table(weights, page) if weights else ()),
        PlanSection("Deliveries", lines=deliveries),
        PlanSection("Batch systems", lines=_batch_lines(plan.batch_systems)),
        PlanSection("Images", lines=images_table(plan.images, page) if plan.images else ()),
        PlanSection("Offers", lines=offer_lines(plan, page)),
    )


def changes(plan: Plan) -> list[Change]:
    """Return the changes to show in full, destructive changes first."""
    shown = [change for change in plan.changes if change.action in _FIRST]
    return sorted(shown, key=lambda change: _FIRST.index(change.action))


def full_change(change: Change, plan: Plan) -> PlanSection:
    """Return the section of a change."""
    title = f"{LEGEND[change.action][0]} {change.address}"
    return PlanSection(title, lines=change_lines(change, plan, PAGE))


def parse_diff_line(line: str) -> DiffLine:
    """Parse a line of a change."""
    sign = _SIGN.match(line)
    if sign is None:
        return DiffLine("", "", line)
    return DiffLine(sign[2] if sign[2] in "+-" else "!", sign[1], line[sign.end() :])


def _stop_items(changes: Iterable[Change], now: float | None) -> PlanSection:
    items = [
        SectionItem(str(change.address), live_run_text(change.stops, now), ": ")
        for change in changes
        if change.stops is not None
    ]
    return PlanSection("Stops live runs (requires `--stop-running` or a saved plan)", items)


def _named_items(title: str, changes: Iterable[Change], action: Action) -> PlanSection:
    items = [
        SectionItem(str(change.address), headline(change))
        for change in changes
        if change.action is action
    ]
    return PlanSection(title, items)


def plan_text(
    plan: Plan,
    *,
    style: Style = plain,
    width: int = 80,
    now: float | None = None,
    concise: bool = False,
) -> list[str]:
    """Return the lines of a plan, without diagnostics.

    ``now`` (Unix seconds) is for the age of live runs. ``concise`` omits the changes in full.
    """
    page = PageStyle(width, style)
    blocks = [
        _section_lines(_drift(plan, page), page),
        _legend(plan, page),
        _destruction_lines(plan.changes, page, now, concise=concise),
        [] if concise else _changes(plan, page),
        *(_section_lines(section, page) for section in _tables(plan, page)),
        cost_lines(plan, page),
        [heading(plan, page)],
    ]
    lines: list[str] = []
    for block in blocks:
        if block:
            lines += ["", *block] if lines else block
    return lines


def _section_lines(section: PlanSection, page: PageStyle) -> list[str]:
    return [page.style(f"{section.title}:", "bold"), *section.lines] if section.lines else []


def _legend(plan: Plan, page: PageStyle) -> list[str]:
    """Return the legend of the symbols in the plan."""
    present = {shown_action(change) for change in plan.changes}
    signs = [LEGEND[action] for action in LEGEND if action in present]
    if not signs:
        return []
    return ["   ".join(f"{page.style(sign, COLOURS[sign])} {word}" for sign, word in signs)]


def _destruction_lines(
    changes: Iterable[Change], page: PageStyle, now: float | None, *, concise: bool
) -> list[str]:
    """Return live runs to be stopped, resources to be destroyed, and if ``concise`` replaced ones."""
    in_order = list(changes)
    lines: list[str] = []
    for change in in_order:
        if change.stops is not None:
            sign = LEGEND[change.action][0]
            lines.append(f"  {sign} {change.address} stops {live_run_text(change.stops, now)}")
    if lines:
        lines = [
            page.style("Stops live runs (requires --stop-running or a saved plan):", "bold"),
            *lines,
        ]
    named = (Action.DELETE, Action.REPLACE) if concise else (Action.DELETE,)
    destroyed = [change for change in in_order if change.action in named]
    effective = [change for change in in_order if change.action is not Action.NOOP]
    if destroyed and (concise or len(destroyed) < len(effective)):
        title = "Destroys or replaces:" if concise else "Destroys:"
        lines += [*([""] if lines else []), page.style(title, "bold")]
        lines += [f"  {LEGEND[change.action][0]} {change.address}" for change in destroyed]
    return [page.style(line, "red") if line.startswith("  ") else line for line in lines]


def _changes(plan: Plan, page: PageStyle) -> list[str]:
    """Return the changes in full; similar new jobs of a matrix are shortened."""
    lines: list[str] = []
    full: dict[Address, Change] = {}
    last: Action | None = None
    for change in plan.changes:
        if not change.acts:
            continue
        is_new_matrix_job = change.action is Action.CREATE and change.address.key is not None
        first = full.setdefault(change.address.group, change) if is_new_matrix_job else change
        if first is not change:
            lines += similar_lines(change, first, page)
        else:
            follows = change.action is Action.NOOP and last is Action.NOOP
            lines += [*([""] if lines and not follows else []), *change_lines(change, plan, page)]
        last = change.action
    return lines


def _batch_lines(rows: Iterable[BatchRow]) -> list[str]:
    """Return what is free in each partition, and when each new run would start."""
    lines: list[str] = []
    for row in rows:
        for partition in row.partitions:
            free = f"{partition.gpus_free} of {partition.gpus_total} GPUs free"
            nodes = f"{partition.nodes} node{'s' if partition.nodes != 1 else ''}"
            limits = f", {partition.limits}" if partition.limits else ""
            lines.append(f"  {row.cluster.name}/{partition.name}: {free} on {nodes}{limits}")
        for job, start in row.jobs:
            at = (format_timestamp(start) or "")[:16].replace("T", " ")
            when = f"would start at {at} UTC" if at else "start unknown"
            lines.append(f"  {job}: {when}")
    return lines


def _unchanged_lines(changes: Iterable[Change], page: PageStyle) -> list[str]:
    """Return unchanged resources that have a note, such as ended runs."""
    noted = [change for change in changes if change.action is Action.NOOP and change.note]
    lines = [f"  {change.address}: {escape(change.note)}" for change in noted]
    if not lines:
        return []
    jobs = [
        change for change in noted if change.reason is not None and change.address.kind is Kind.JOB
    ]
    if jobs:
        hint = f"  To run it with the current code and weights: trainctl run {jobs[0].address.shell_quoted}"
        lines.append(page.style(hint, "dim"))
    return lines


_MOST_NAMED = 3


def cost_lines(plan: Plan, page: PageStyle) -> list[str]:
    """Return the hourly cost of new runs."""
    if not plan.hourly_cost:
        return []
    price = page.style(f"{plan.hourly_cost:.2f} USD per hour", "bold")
    lines = [f"Cost: {price} while the new runs are live. Mirroring is not billed."]
    took = [f"{job} {format_duration(s)}" for job, s in plan.expected_seconds.items()]
    if took:
        more = f" and {len(took) - _MOST_NAMED} more" if len(took) > _MOST_NAMED else ""
        lines.append(f"Their last completed runs took: {', '.join(took[:_MOST_NAMED])}{more}.")
    return lines


def heading(plan: Plan, page: PageStyle) -> str:
    """Return the counts, or the reason why nothing changes."""
    if not plan.usable:
        return page.style(
            f"{PlanCounts.of(plan)} The plan has errors and can't be applied.", "bold"
        )
    if plan.has_changes:
        return page.style(str(PlanCounts.of(plan)), "bold")
    return page.style("No changes. ", "bold") + _no_changes_text(plan)


def _no_changes_text(plan: Plan) -> str:
    if plan.options.destroy:
        return "There is nothing to destroy."
    if plan.options.refresh_only:
        return "Applying would update the state." if plan.drift else "The state is up to date."
    if any(change.reason for change in plan.changes):
        return "No job is run again automatically."
    return "The resources match the manifest."
