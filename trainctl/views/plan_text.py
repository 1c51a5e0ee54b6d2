"""A plan as people read it: what stops and goes first, then every change, then data, money and the counts."""

from __future__ import annotations

from collections.abc import Iterable

from trainctl.model.action import Action
from trainctl.model.address import Address, Kind
from trainctl.plan.values import Change, Drift, Plan, WeightsLine
from trainctl.views.counts import Counts
from trainctl.views.escape import escape
from trainctl.views.plan_changes import change_lines, drift_lines, similar_lines
from trainctl.views.plan_tables import deliveries_table, images_table, weights_table
from trainctl.views.plan_values import Page
from trainctl.views.plan_words import COLOURS, LEGEND, live_words
from trainctl.views.text import Style, plain

_ENDS = (Action.DELETE, Action.FORGET)


def plan_text(
    plan: Plan,
    *,
    style: Style = plain,
    width: int = 80,
    now: float | None = None,
    concise: bool = False,
) -> list[str]:
    """The lines of a plan, without its diagnostics. ``now`` in Unix seconds, to say how long a live run has run.

    ``concise`` leaves out what is shown of each change; what stops, what goes and the counts stay.
    """
    page = Page(width, style)
    sections = [
        _drift(plan.drift, page),
        _legend(plan, page),
        _endings(plan.changes, page, now),
        [] if concise else _changes(plan, page),
        _titled("Left as it is:", left_as_it_is(plan.changes, page), page),
        _weights(plan, page),
        _deliveries(plan, page),
        _titled("Images:", images_table(plan.images, page) if plan.images else [], page),
        cost_lines(plan, page),
        [closing_line(plan, page)],
    ]
    lines: list[str] = []
    for section in sections:
        if section:
            lines += ["", *section] if lines else section
    return lines


def _drift(drift: tuple[Drift, ...], page: Page) -> list[str]:
    if not drift:
        return []
    lines = [page.style("Changed outside of trainctl since it was recorded:", "bold")]
    for one in drift:
        lines += drift_lines(one, page)
    return lines


def _legend(plan: Plan, page: Page) -> list[str]:
    """The symbols that occur."""
    present = {change.action for change in plan.changes}
    signs = [LEGEND[action] for action in LEGEND if action in present]
    if not signs:
        return []
    text = "   ".join(f"{page.style(sign, COLOURS[sign])} {word}" for sign, word in signs)
    return [f"{text}"]


def _endings(changes: Iterable[Change], page: Page, now: float | None) -> list[str]:
    """Live runs that would be stopped, and what would be destroyed, before anything else."""
    found = list(changes)
    lines: list[str] = []
    for change in found:
        if change.stops is not None:
            sign = LEGEND[change.action][0]
            lines.append(f"  {sign} {change.address} stops {live_words(change.stops, now)}")
    if lines:
        lines = [
            page.style("Stops live runs (needs --stop-running, or a saved plan):", "bold"),
            *lines,
        ]
    gone = [change for change in found if change.action is Action.DELETE]
    if gone and len(gone) < len([one for one in found if one.action is not Action.NOOP]):
        lines += (
            ["", page.style("Destroys:", "bold")] if lines else [page.style("Destroys:", "bold")]
        )
        lines += [f"  - {change.address}" for change in gone]
    return [page.style(line, "red") if line.startswith("  ") else line for line in lines]


def _changes(plan: Plan, page: Page) -> list[str]:
    """Each in full; of the new jobs of a matrix the first, and of the others what is different."""
    lines: list[str] = []
    full: dict[Address, Change] = {}
    for change in plan.changes:
        if change.action is Action.NOOP:
            continue
        new_of_many = change.action is Action.CREATE and change.address.key is not None
        alike = full.setdefault(change.address.group, change) if new_of_many else change
        if alike is not change:
            lines += similar_lines(change, alike, page)
        else:
            lines += [*([""] if lines else []), *change_lines(change, plan, page)]
    return lines


def left_as_it_is(changes: Iterable[Change], page: Page) -> list[str]:
    """What does nothing and is worth a word: runs that ended, jobs whose code or weights moved on."""
    noted = [change for change in changes if change.action is Action.NOOP and change.note]
    lines = [f"  {change.address}: {escape(change.note)}" for change in noted]
    if not lines:
        return []
    jobs = [one for one in noted if one.reason is not None and one.address.kind is Kind.JOB]
    hint = (
        [page.style(f"  To run it with today's: trainctl run {_quoted(jobs[0])}", "dim")]
        if jobs
        else []
    )
    return [*lines, *hint]


def _weights(plan: Plan, page: Page) -> list[str]:
    lines = of_this_plan(plan)
    return _titled("Weights:", weights_table(lines, page) if lines else [], page)


def of_this_plan(plan: Plan) -> list[WeightsLine]:
    """The weights that change, and those that a new run is given."""
    touched = {one.address for one in plan.changes if one.action is not Action.NOOP}
    touched |= {line.weights for line in plan.deliveries}
    return [line for line in plan.weights if line.address in touched]


def _deliveries(plan: Plan, page: Page) -> list[str]:
    lines = deliveries_table(plan.deliveries, page) if plan.deliveries else []
    return _titled("Deliveries:", lines, page)


def _titled(title: str, lines: list[str], page: Page) -> list[str]:
    return [page.style(title, "bold"), *lines] if lines else []


def cost_lines(plan: Plan, page: Page) -> list[str]:
    """What an hour of the new runs costs, if it costs anything."""
    if not plan.hourly_cost:
        return []
    price = page.style(f"{plan.hourly_cost:.2f} USD an hour", "bold")
    return [f"Cost: {price} while the new runs last; nothing is billed while mirroring."]


def closing_line(plan: Plan, page: Page) -> str:
    """The counts, or that there is nothing to do."""
    if not plan.usable:
        return page.style(f"{Counts.of(plan)} It has errors and can't be applied.", "bold")
    if plan.has_changes:
        return page.style(str(Counts.of(plan)), "bold")
    return page.style("No changes. ", "bold") + _nothing(plan)


def _nothing(plan: Plan) -> str:
    if plan.options.destroy:
        return "There is nothing to destroy."
    if plan.options.refresh_only:
        return "Apply would record what was found." if plan.drift else "Everything is as recorded."
    if any(change.reason for change in plan.changes):
        return "Nothing runs again by itself."
    return "Everything is as the manifest says."


def _quoted(change: Change) -> str:
    return change.address.typed
