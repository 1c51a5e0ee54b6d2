"""Format the verdict of a plan: what its runs use and cost, and what is lost."""

from __future__ import annotations

from collections.abc import Sequence

from trainctl.base.units import format_bytes, format_duration
from trainctl.model.action import Action
from trainctl.model.address import Address, Kind
from trainctl.model.run import RunRecord
from trainctl.model.trust import PolicyResult, PolicyStatus
from trainctl.plan.values import Plan, RunForecast, WeightsRow
from trainctl.views.plan.changes import headline
from trainctl.views.plan.rows import format_path
from trainctl.views.terminal.text import escape, pluralize


def verdict(plan: Plan) -> str:
    """Return runs, GPU hours, cost, bytes from upstream, policies and digest; empty without changes."""
    stops = sum(change.stops is not None for change in plan.changes)
    reused = sum(change.reuses is not None for change in plan.changes)
    facts = (
        pluralize(len(plan.runs), "new run") if plan.runs else "",
        f"stops {pluralize(stops, 'live run')}" if stops else "",
        f"reuses {pluralize(reused, 'run')}" if reused else "",
        _gpu_hours(list(plan.runs.values())),
        _cost(plan),
        _upstream(plan),
        _policies(plan),
        f"digest {plan.digest.removeprefix('sha256:')[:12]}",
    )
    text = ", ".join(filter(None, facts))
    return f"{text[:1].upper()}{text[1:]}." if plan.has_changes else ""


def _gpu_hours(runs: Sequence[RunForecast]) -> str:
    runs = [run for run in runs if run.gpus != 0]
    known = [run for run in runs if run.gpus and run.seconds]
    capped = [run.gpu_hours(run.max_seconds) for run in runs if run.gpus and run.max_seconds]
    if not runs:
        return ""
    least, most = (sum(run.gpu_hours(of(run.seconds)) for run in known) for of in (min, max))
    text = (
        f"{_range(least, most, '.1f')} GPU hours by earlier runs" if known else "GPU hours unknown"
    )
    part = f" of {len(known)} of {len(runs)} jobs" if 0 < len(known) < len(runs) else ""
    limit = f" (at most {sum(capped):.1f} by max_duration)" if len(capped) == len(runs) else ""
    return f"{text}{part}{limit}"


def _range(least: float, most: float, form: str) -> str:
    return " to ".join(dict.fromkeys((f"{least:{form}}", f"{most:{form}}")))


def _cost(plan: Plan) -> str:
    hourly, priced = f"{plan.hourly_cost:.2f} USD per hour", plan.runs.values()
    if not plan.hourly_cost or not all(run.seconds for run in priced):
        return hourly if plan.hourly_cost else ""
    least, most = (
        sum(run.hourly_cost * of(run.seconds) / 3600 for run in priced) for of in (min, max)
    )
    return f"{_range(least, most, '.2f')} USD ({hourly})"


def used_weights(plan: Plan) -> list[WeightsRow]:
    """Return the rows of weights that the plan changes or delivers."""
    used = {change.address for change in plan.changes if change.action is not Action.NOOP}
    used |= {line.weights for line in plan.deliveries}
    return [row for row in plan.weights if row.address in used]


def _upstream(plan: Plan) -> str:
    sizes = [row.bytes_upstream for row in used_weights(plan)]
    known = format_bytes(sum(filter(None, sizes)))
    if None in sizes:
        return f"at least {known} from upstream"
    return f"{known if any(sizes) else 'nothing'} from upstream" if sizes else ""


def _policies(plan: Plan) -> str:
    results = plan.policy_results
    if failing := sum(result.forbids for result in results):
        return f"{pluralize(failing, 'policy fails', 'policies fail')}"
    waived = sum(result.status is PolicyStatus.WAIVED for result in results)
    return f"policies pass{f', {waived} waived' if waived else ''}" if results else ""


def policy_lines(results: Sequence[PolicyResult]) -> list[str]:
    """Return a line for each policy that a plan doesn't satisfy, and the number of the others."""
    lines = [
        escape(f"  {result.policy} ({result.level}): {result.waiver or result.status}")
        for result in results
        if result.status is not PolicyStatus.PASSED
    ]
    passed = len(results) - len(lines)
    return [*lines, f"  {pluralize(passed, 'policy', 'policies')} passed"] if passed else lines


ItemRow = tuple[Address, str, str]
"""An address, words, and names that aren't ours."""


def run_items(plan: Plan) -> list[ItemRow]:
    """Return how long each new run takes, why it starts, and the attributes that changed."""
    items = []
    for change in plan.changes:
        if (forecast := plan.runs.get(change.address)) is not None:
            is_first = change.action is Action.CREATE and change.reason is None
            why = "first run" if is_first else headline(change).rpartition(": ")[2]
            paths = escape(", ".join(map(format_path, change.replace_paths)))
            items.append((change.address, "; ".join((*_run_facts(forecast), why)), paths))
    return items


def _run_facts(forecast: RunForecast) -> list[str]:
    """Return GPUs, durations of earlier runs and the limit."""
    took, most = forecast.seconds, forecast.max_seconds
    durations = " to ".join(dict.fromkeys(format_duration(of(took)) for of in (min, max) if took))
    facts = (
        pluralize(forecast.gpus, "GPU") if forecast.gpus else "",
        f"took {durations} in {pluralize(len(took), 'run')}" if took else "",
        f"at most {format_duration(most)}" if most else "",
    )
    return [fact for fact in facts if fact]


def lost_items(plan: Plan) -> list[ItemRow]:
    """Return checkpoints that are deleted, or not uploaded when their job or cluster is removed, by run."""
    removes = (Action.DELETE, Action.REPLACE)
    removed = {change.address for change in plan.changes if change.action in removes}
    rows = []
    for change in plan.changes:
        is_deleted = change.action is Action.DELETE
        is_job = change.address.kind is Kind.JOB
        if is_job and (is_deleted or change.job_spec.cluster_address in removed):
            for run in map(RunRecord.from_json, change.outputs.get("runs") or ()):
                if run.reused_from is not None:
                    continue
                if is_deleted and plan.options.delete_checkpoints:
                    rows.append((change.address, f"all of run {run.number:d}", ""))
                elif names := escape(", ".join(run.reported.get("sync", {}).get("pending") or ())):
                    rows.append((change.address, f"run {run.number:d}", names))
    return rows
