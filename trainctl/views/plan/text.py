"""Format a plan as text for a terminal; group its addresses and equal changes, so that large plans stay readable."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.base.units import format_bytes
from trainctl.model.action import Action
from trainctl.model.address import Address, Kind
from trainctl.model.contents import ContentChange, ContentDiff
from trainctl.plan.values import BatchRow, Change, Plan
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
from trainctl.views.plan.tables import (
    ItemRow,
    deliveries_table,
    images_table,
    lost_items,
    offer_lines,
    policy_lines,
    run_items,
    unattended_items,
    used_weights,
    verdict,
    weights_table,
)
from trainctl.views.problems import diagnostic_lines
from trainctl.views.terminal.text import Style, escape, format_timestamp, plain, shorten, wrap

_FIRST = (Action.DELETE, Action.REPLACE, Action.FORGET, Action.UPDATE, Action.CREATE, Action.REUSE)
_ATTRIBUTE = compile_lazily(r" {6}[-+~] (\S+?):?(?: |$)")
_ENDINGS = ("$", r"[0-9][^-_.]*$", r"[^A-Za-z].*", ".*")
"""What common prefixes of names lack, from only the keys of a matrix to whole names."""
_WIDEST = 90


def group_labels(addresses: Sequence[Address], most: int) -> list[str]:
    """Return addresses, or if they are more than ``most``, common prefixes with counts."""
    groups = {str(address): [address] for address in addresses}
    for ending in _ENDINGS:
        if len(groups) <= most:
            break
        groups = {}
        for address in addresses:
            stem = re.sub(ending, "", address.name, count=1)
            key = "[*]" if ending == "$" and address.key is not None else "*"
            groups.setdefault(f"{address.kind}.{stem}{key}", []).append(address)
    return [
        f"{label} ({len(group)})" if len(group) > 1 else shorten(escape(str(group[0])), _WIDEST)
        for label, group in groups.items()
    ]


class ChangeGroup(NamedTuple):
    """Changes shown as one: the lines of the first, and the names of the others."""

    title: str
    lines: Sequence[str]
    size: int
    first: Change
    note: str


def change_groups(
    plan: Plan, page: PageStyle, *, similar: bool = False, names: int | None = None, rest: str = ""
) -> list[ChangeGroup]:
    """Return the changes in full, destructive changes first, equal ones as one.

    ``similar``: also those that change the same attributes to other values. If a group has more than ``names``
    resources, the command ``rest`` shows the others.
    """
    shown = [change for change in plan.acting if change.action in _FIRST]
    groups: dict[tuple[object, ...], list[tuple[Change, list[str]]]] = {}
    for change in sorted(shown, key=lambda change: _FIRST.index(change.action)):
        lines = change_lines(change, plan, page)
        same = (
            _attributes(lines)
            if similar
            else (line.replace(str(change.address), "") for line in lines)
        )
        key = (change.address.kind, change.action, headline(change), *same)
        groups.setdefault(key, []).append((change, lines))
    what = "Also, with their own values" if similar else "The same for"
    shown_groups = []
    for (first, lines), *others in groups.values():
        name, note = str(first.address), ""
        if others:
            is_matrix = {change.address.group for change, _ in others} == {first.address.group}
            label = f"{first.address.group}[*]" if is_matrix else f"{first.address.kind}.*"
            name = f"{label} ({len(others) + 1})"
            named = ", ".join(escape(str(change.address)) for change, _ in others[:names])
            more = len(others) - names if names is not None else 0
            left = f" and {more} more: {rest}" if more > 0 else ""
            note = f"{what}: {named}{left}"
            lines = [*lines, *wrap(f"        # {note}", page.width)]
        if first.action in (Action.UPDATE, Action.REPLACE) and (changed := _attributes(lines)):
            name += f": {shorten(', '.join(changed), _WIDEST)}"
        title = f"{LEGEND[first.action][0]} {name}"
        shown_groups.append(ChangeGroup(title, lines, len(others) + 1, first, note))
    return shown_groups


def _attributes(lines: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(match[1] for match in map(_ATTRIBUTE.match, lines) if match))


PAGE = PageStyle(100, plain)
_SIGN = compile_lazily(r"( {0,10})(-/\+|[-+~]) ")
"""Deeper indentation is a line of a multi-line text, where a dash is not a sign."""


MOST_NAMED = 80
"""Resources to name in a list; more are counted by prefix, so that a list is never cut."""
_MOST_CHANGES = 12
"""Changes to show of each group; the JSON form has more."""
_CONTENT_SIGNS = {"added": "+", "removed": "-", "changed": "~"}


class SectionItem(NamedTuple):
    """An address, our words after it, and names in parentheses that aren't ours."""

    address: str
    words: str = ""
    names: str = ""

    def format(self, code: Callable[[str], str] = str, prose: Callable[[str], str] = str) -> str:
        """Join them; ``code`` and ``prose`` mark up what isn't ours, and what is."""
        words = f": {prose(self.words)}" if self.words else ""
        return f"{code(self.address)}{words}" + (f" ({code(self.names)})" if self.names else "")


class PlanSection(NamedTuple):
    """A title with items or lines below it; not escaped."""

    title: str
    items: Sequence[SectionItem] = ()
    lines: Sequence[str] = ()
    strong: bool = False


def sections(
    plan: Plan, now: float | None, most: int | None = None, page: PageStyle = PAGE
) -> list[PlanSection]:
    """Return the nonempty sections: losses, problems, runs, tables; ``most`` as for ``losses``."""
    candidates = (
        *losses(plan, now, most),
        _overrides(plan),
        _items("Moves", [(item, "", how) for item, how in plan.edits.addresses.items()], most),
        PlanSection("Problems", lines=diagnostic_lines(plan.diagnostics)),
        _drift(plan, page),
        _items("Runs", run_items(plan), most),
        *_tables(plan, page),
    )
    return [section for section in candidates if section.items or section.lines]


def losses(plan: Plan, now: float | None, most: int | None) -> list[PlanSection]:
    """Return what a plan stops and deletes; more than ``most`` resources are counted by prefix."""
    stops = [
        (change.address, f"stops {live_run_text(change.stops, now)}", "")
        for change in plan.acting
        if change.stops
    ]
    removed = {
        action: [(change.address, "", "") for change in plan.acting if change.action is action]
        for action in (Action.DELETE, Action.REPLACE)
    }
    return [
        _items("Stops live runs (requires `--stop-running` or a saved plan)", stops, most),
        _items("Destroys", removed[Action.DELETE], most),
        _items("Replaces", removed[Action.REPLACE], most),
        _items("Checkpoints that exist nowhere else", lost_items(plan), most),
    ]


def _items(title: str, rows: Sequence[ItemRow], most: int | None) -> PlanSection:
    if most is None or len(rows) <= most:
        return PlanSection(
            title, [SectionItem(*(escape(str(text)) for text in row)) for row in rows]
        )
    groups: dict[tuple[str, ...], list[Address]] = {}
    for address, *words in rows:
        groups.setdefault(tuple(words), []).append(address)
    if len(groups) > most // 8:  # words such as the age of a run are different each time
        groups = {(): [row[0] for row in rows]}
    return PlanSection(
        title,
        [
            SectionItem(label, *words)
            for words, addresses in groups.items()
            for label in group_labels(addresses, most // len(groups))
        ],
    )


def _overrides(plan: Plan) -> PlanSection:
    items = [SectionItem(escape(item)) for item in plan.options.overrides]
    return PlanSection("Set for this plan", items)


def _drift(plan: Plan, page: PageStyle) -> PlanSection:
    lines = [line for drift in plan.drift for line in drift_lines(drift, page)]
    return PlanSection("Changed outside of trainctl", lines=lines)


def _tables(plan: Plan, page: PageStyle) -> tuple[PlanSection, ...]:
    """Return the sections of unchanged resources and of the tables."""
    weights = used_weights(plan)
    alerts = [
        SectionItem(str(diff.address), what, escape(names))
        for diff in plan.contents
        for what, names in diff.alerts.items()
    ]
    deliveries = deliveries_table(plan.deliveries, page) if plan.deliveries else ()
    noted = [change for change in plan.changes if change.action is Action.NOOP and change.note]
    unchanged = [f"  {change.address}: {escape(change.note)}" for change in noted]
    for change in noted:
        if change.reason is not None and change.address.kind is Kind.JOB:
            command = f"trainctl run {change.address.shell_quoted}"
            hint = f"  To run it with the current code and weights: {command}"
            unchanged.append(page.style(hint, "dim"))
            break  # the first job stands for the others
    return (
        PlanSection("Policies", lines=policy_lines(plan.policy_results)),
        PlanSection("Review in weights", alerts, strong=True),
        PlanSection("Contents", lines=content_lines(plan.contents)),
        PlanSection("Not changed", lines=unchanged),
        PlanSection("Weights", lines=weights_table(weights, page) if weights else ()),
        PlanSection("Deliveries", lines=deliveries),
        PlanSection("Batch systems", lines=_batch_lines(plan.batch_systems)),
        PlanSection("Images", lines=images_table(plan.images, page) if plan.images else ()),
        PlanSection("Offers", lines=offer_lines(plan, page)),
        _items("If no one returns", unattended_items(plan), None),
    )


def parse_diff_line(line: str) -> tuple[str, str, str]:
    """Parse a line of a change: sign (``+``, ``-``, ``!`` or ''), indentation, text."""
    sign = _SIGN.match(line)
    if sign is None:
        return "", "", line
    return sign[2] if sign[2] in "+-" else "!", sign[1], line[sign.end() :]


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
    most = None if concise else MOST_NAMED
    present = {shown_action(change) for change in plan.acting}
    signs = [LEGEND[action] for action in LEGEND if action in present]
    blocks = [
        _section_lines(_drift(plan, page), page),
        ["   ".join(f"{page.style(sign, COLOURS[sign])} {word}" for sign, word in signs)]
        if signs
        else [],
        [] if concise else _changes(plan, page),
        *(_section_lines(each, page, "bold" * each.strong) for each in _tables(plan, page)),
        _section_lines(_overrides(plan), page),
        [heading(plan, page), *filter(None, [verdict(plan)])],
        *(_section_lines(lost, page, "red") for lost in losses(plan, now, most)),
        _section_lines(_items("Runs", run_items(plan), most), page),
    ]
    lines: list[str] = []
    for block in blocks:
        if block:
            lines += ["", *block] if lines else block
    return lines


def _section_lines(section: PlanSection, page: PageStyle, colour: str = "") -> list[str]:
    lines = [f"  {item.format()}" for item in section.items]
    lines = [page.style(line, colour) for line in lines] if colour else lines
    title = page.style(f"{section.title.replace('`', '')}:", "bold")
    return [title, *lines, *section.lines] if lines or section.lines else []


def _changes(plan: Plan, page: PageStyle) -> list[str]:
    """Return the changes in full; similar new jobs of a matrix are shortened."""
    lines: list[str] = []
    full: dict[Address, Change] = {}
    last: Action | None = None
    for change in plan.acting:
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
        for job, forecast in row.jobs:
            at = (format_timestamp(forecast.start) or "")[:16].replace("T", " ")
            unknown = ", ".join(filter(None, ("start unknown", forecast.obstacle)))
            lines.append(f"  {job}: {f'would start at {at} UTC' if at else unknown}")
    return lines


def heading(plan: Plan, page: PageStyle) -> str:
    """Return the counts, or the reason why nothing changes."""
    from trainctl.views.plan.json import counts_text

    if not plan.usable:
        text = f"{counts_text(plan)} The plan has errors and can't be applied."
        return page.style(text, "bold")
    if plan.has_changes:
        return page.style(counts_text(plan), "bold")
    why = "The resources match the manifest."
    if plan.options.destroy:
        why = "There is nothing to destroy."
    elif plan.options.refresh_only:
        why = "Applying would update the state." if plan.drift else "The state is up to date."
    elif any(change.reason for change in plan.changes):
        why = "No job is run again automatically."
    return page.style("No changes. ", "bold") + why


def content_lines(contents: Iterable[ContentDiff]) -> list[str]:
    """Return the changes of all resources: a heading and groups for each."""
    lines: list[str] = []
    for diff in contents:
        if diff.kind == "checkpoints":
            lines.append(f"  {diff.address} loads checkpoints of {diff.after}")
            continue
        what = "" if diff.kind == "weights" else f" {diff.kind}"
        versions = (text.rpartition(":")[2][:12] for text in (diff.before, diff.after))
        lines.append(f"  {diff.address}{what}: {' -> '.join(versions)}")
        for group in diff.groups:
            counts = (f"{count} {name}" for name, count in sorted(group.counts.items()))
            lines.append(f"    {group.title}: {', '.join(counts)}")
            shown = group.changes[:_MOST_CHANGES]
            lines += [f"      {_content_row(diff, group.title, row)}" for row in shown]
            if more := sum(group.counts.values()) - sum(row.count for row in shown):
                lines.append(f"      and {more} more")
        lines += [f"    not known: {note}" for note in diff.notes]
    return list(map(escape, lines))


def _content_row(diff: ContentDiff, title: str, row: ContentChange) -> str:
    values = [value for value in (row.before, row.after) if value is not None]
    texts = [format_bytes(value) if isinstance(value, int) else value for value in values]
    text = " -> ".join(dict.fromkeys(texts))
    if title == "commits":
        return f"{text[:12]} {row.name}"
    if diff.kind == "code":
        signs = zip("+-", (row.after, row.before), strict=True)
        text = " ".join(f"{sign}{count}" for sign, count in signs if count is not None)
    return (
        f"{_CONTENT_SIGNS[row.how]} {row.name}{f' ({row.count})' if row.count > 1 else ''}: {text}"
    )
