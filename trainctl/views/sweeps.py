"""A sweep: the runs of a matrix as a table of its values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from trainctl.base.checkpoints.ranking import standing
from trainctl.base.units import format_duration
from trainctl.model.status import Checkpoint, JobStatus
from trainctl.views.escape import escape
from trainctl.views.statuses import NARROWEST_STATE, counts_by_state, state_words
from trainctl.views.text import table

_TOLD = 5
"""So many reasons are told of runs that failed."""


def sweep_lines(statuses: Sequence[JobStatus], now: float, width: int | None = None) -> list[str]:
    """What all jobs of a matrix have in common, each by its other values, in numeric order where they are numbers, and the counts by state."""
    if not statuses:
        return ["No job of it has run yet."]
    values = [dict(one.matrix) for one in statuses]
    all_names = list(dict.fromkeys(name for one in values for name in one))
    names = [name for name in all_names if len({one.get(name) for one in values}) > 1]
    shared = [f"{name}={values[0][name]}" for name in all_names if name not in names]
    ordered = sorted(statuses, key=lambda one: [_order(dict(one.matrix).get(n, "")) for n in names])
    rows = [
        [
            *(escape(dict(one.matrix).get(name, "")) for name in names),
            state_words(one),
            f"{one.run.number} ({one.run.id})",
            _ran(one, now),
            _newest(one.checkpoints),
        ]
        for one in ordered
    ]
    headers = [*(escape(name) for name in names), "STATUS", "RUN", "RAN", "CHECKPOINT"]
    narrowest = {"STATUS": NARROWEST_STATE}
    lines = table(
        headers,
        rows,
        width=width,
        shrinks=frozenset(narrowest),
        narrowest=narrowest,
        drops=("RUN", "RAN"),
    )
    head = [f"All with {escape(', '.join(shared))}", ""] if shared else []
    group = statuses[0].address.group
    return [*head, *lines, "", f"{group}: {counts_by_state(statuses)}", *_reasons(ordered)]


def _reasons(statuses: Sequence[JobStatus]) -> list[str]:
    """Why runs failed, each reason once with how often, the most frequent first: a row has no room for it."""
    said = Counter(
        (one.run.status.words, one.run.error.splitlines()[0]) for one in statuses if one.run.error
    )
    told = [
        f"  {state}{f' ({count})' if count > 1 else ''}: {escape(error)}"
        for (state, error), count in said.most_common(_TOLD)
    ]
    more = len(said) - _TOLD
    return [*told, *([f"  … and {more} more reasons: trainctl status JOB"] if more > 0 else [])]


def _order(value: str) -> tuple[int, float, str]:
    try:
        return 0, float(value), value
    except ValueError:
        return 1, 0.0, value


def _ran(one: JobStatus, now: float) -> str:
    """How long it ran, or has been running by this machine's clock."""
    if "running" in one.run.phases:
        return format_duration(one.run.phases["running"])
    if one.run.started_at is None or not one.run.status.live:
        return ""
    return format_duration(max(0.0, now - one.run.started_at))


def _newest(checkpoints: Sequence[Checkpoint]) -> str:
    """The newest whole checkpoint: its step, or its name where that has none."""
    whole = [one for one in checkpoints if one.complete]
    if not whole:
        return ""
    newest = max(whole, key=lambda one: standing(asdict(one)))
    return escape(newest.name) if newest.step is None else f"step {newest.step}"
