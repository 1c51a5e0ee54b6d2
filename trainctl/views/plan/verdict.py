"""Format the verdict of a plan: what its runs use and cost, and what is lost."""

from __future__ import annotations

from collections.abc import Sequence

from trainctl.base.units import format_bytes, format_duration
from trainctl.model.action import Action
from trainctl.model.address import Address
from trainctl.model.diagnostics import Severity
from trainctl.plan.losses import lost_checkpoints
from trainctl.plan.values import Change, Plan, RunForecast, WeightsRow
from trainctl.views.plan.changes import headline
from trainctl.views.plan.rows import format_path
from trainctl.views.terminal.text import escape, pluralize


def verdict(plan: Plan) -> str:
    """Return runs, GPU hours, cost, bytes from upstream, policies and digest; empty without changes."""
    if not plan.has_changes:
        return ""
    stops = sum(change.stops is not None for change in plan.changes)
    reused = sum(change.reuses is not None for change in plan.changes)
    facts = [
        pluralize(len(plan.runs), "new run") if plan.runs else "",
        f"stops {pluralize(stops, 'live run')}" if stops else "",
        f"reuses {pluralize(reused, 'run')}" if reused else "",
        _gpu_hours(list(plan.runs.values())),
        _cost(plan),
        _upstream(plan),
        _policies(plan),
        f"digest {plan.digest.removeprefix('sha256:')[:12]}",
    ]
    text = ", ".join(filter(None, facts))
    return f"{text[:1].upper()}{text[1:]}."


def _gpu_hours(runs: Sequence[RunForecast]) -> str:
    runs = [run for run in runs if run.gpus != 0]
    known = [run for run in runs if run.gpus and run.seconds]
    if not runs:
        return ""
    least, most = (sum(run.gpu_hours(of(run.seconds)) for run in known) for of in (min, max))
    text = (
        f"{_range(least, most, '.1f')} GPU hours by earlier runs" if known else "GPU hours unknown"
    )
    if 0 < len(known) < len(runs):
        text += f" of {len(known)} of {len(runs)} jobs"
    limits = [run.gpu_hours(run.max_seconds) for run in runs if run.gpus and run.max_seconds]
    if len(limits) == len(runs):
        text += f" (at most {sum(limits):.1f} by max_duration)"
    return text


def _range(least: float, most: float, form: str) -> str:
    first, last = f"{least:{form}}", f"{most:{form}}"
    return first if first == last else f"{first} to {last}"


def _cost(plan: Plan) -> str:
    if not plan.hourly_cost:
        return ""
    hourly, runs = f"{plan.hourly_cost:.2f} USD per hour", plan.runs.values()
    if not all(run.seconds or not run.hourly_cost for run in runs):
        return hourly
    least, most = (
        sum(run.hourly_cost * of(run.seconds or (0,)) / 3600 for run in runs) for of in (min, max)
    )
    return f"{_range(least, most, '.2f')} USD ({hourly})"


def used_weights(plan: Plan) -> list[WeightsRow]:
    """Return the rows of weights that the plan changes or delivers."""
    used = {change.address for change in plan.changes if change.action is not Action.NOOP}
    used |= {line.weights for line in plan.deliveries}
    return [row for row in plan.weights if row.address in used]


def _upstream(plan: Plan) -> str:
    sizes = [row.bytes_upstream for row in used_weights(plan)]
    if not sizes:
        return ""
    known = sum(size for size in sizes if size is not None)
    at_least = "at least " if None in sizes else ""
    return (
        f"{at_least}{format_bytes(known)} from upstream"
        if at_least or known
        else "nothing from upstream"
    )


def _policies(plan: Plan) -> str:
    violations = sum(
        problem.code == "policy" and problem.severity is Severity.ERROR
        for problem in plan.diagnostics
    )
    if violations:
        return pluralize(violations, "policy violation")
    return "policies pass" if plan.policies else ""


def _cause(change: Change) -> str:
    words = headline(change)
    return words.partition(": ")[2] or words


ItemRow = tuple[Address, str, str]
"""An address, words, and names that aren't ours."""


def run_items(plan: Plan) -> list[ItemRow]:
    """Return why each new run starts, how long it takes, and the attributes that changed."""
    items = []
    for change in plan.changes:
        if (forecast := plan.runs.get(change.address)) is not None:
            is_first = change.action is Action.CREATE and change.reason is None
            words = [*run_facts(forecast), "first run" if is_first else _cause(change)]
            paths = escape(", ".join(map(format_path, change.replace_paths)))
            items.append((change.address, "; ".join(words), paths))
    return items


def run_facts(forecast: RunForecast) -> list[str]:
    """Return GPUs, durations of earlier runs and the limit."""
    took, most = forecast.seconds, forecast.max_seconds
    durations = " to ".join(dict.fromkeys(format_duration(of(took)) for of in (min, max) if took))
    return [
        *([pluralize(forecast.gpus, "GPU")] if forecast.gpus else []),
        *([f"took {durations} in {pluralize(len(took), 'run')}"] if took else []),
        *([f"at most {format_duration(most)}"] if most else []),
    ]


def lost_items(plan: Plan) -> list[ItemRow]:
    """Return checkpoints that are deleted and exist nowhere else, by run."""
    return [
        (
            lost.job,
            f"run {lost.run}" if lost.names else f"all of run {lost.run}",
            escape(", ".join(lost.names)),
        )
        for lost in lost_checkpoints(plan)
    ]
