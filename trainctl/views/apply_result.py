"""Format the result of an apply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainctl.apply.walk import ApplyResult, effective_changes
from trainctl.base.units import format_bytes
from trainctl.model.action import Action
from trainctl.model.address import Address
from trainctl.model.events import Event, EventType
from trainctl.model.reports import RetainedData
from trainctl.model.run import RunRecord, RunStatus
from trainctl.plan.values import Plan
from trainctl.views.terminal.output import TerminalOutput
from trainctl.views.terminal.text import pluralize

FollowedRuns = Mapping[Address, RunRecord]
"""Runs that apply followed, as last observed."""


def counts(result: ApplyResult) -> dict[str, int]:
    """Count changes of this command as plans do: a replacement adds and destroys."""
    actions = [change.action for change in result.done if change.address not in result.by_others]
    replaced = actions.count(Action.REPLACE)
    return {
        "added": actions.count(Action.CREATE) + replaced,
        "changed": actions.count(Action.UPDATE),
        "destroyed": actions.count(Action.DELETE) + replaced,
        "forgotten": actions.count(Action.FORGET),
        "reused": actions.count(Action.REUSE),
    }


def resumption_text(plan: Plan) -> str:
    """Return how much an approved plan leaves to do after an earlier apply of it."""
    left = len(effective_changes(plan.acting))
    if not left:
        return "The plan is already applied."
    return f"Resuming the plan: {pluralize(left, 'change')} left."


def result_lines(
    result: ApplyResult,
    output: TerminalOutput,
    followed: FollowedRuns,
    *,
    destroy: bool,
) -> list[str]:
    """Return skipped changes, unsuccessful runs and counts, for standard output."""
    unsuccessful = {address: run for address, run in followed.items() if _is_unsuccessful(run)}
    lines = [
        f"{address}: run {run.number} ({run.id}) did not complete. See its output with: trainctl logs {address.shell_quoted}"
        for address, run in unsuccessful.items()
    ]
    for change in result.left_alone:
        run = change.stops
        name = f"run {run.number} ({run.id})" if run else "its run"
        lines.append(f"{change.address}: skipped: {name} is live. Use --stop-running to stop it.")
    lines += [
        f"{address}: not started. Run the command again when nothing blocks it."
        for address, reason in result.deferred.items()
        if reason.lapses
    ]
    if not all(reason.lapses for reason in result.deferred.values()):
        lines.append("To start jobs that wait, apply again later or run: trainctl reconcile")
    if result.failed:
        lines.append(f"Failed: {', '.join(map(str, result.failed))}. The errors are above.")
    if result.not_started:
        lines.append(
            f"Not started: {', '.join(map(str, result.not_started))}. Apply again to continue."
        )
    text = ", ".join(
        f"{count} {word}"
        for word, count in counts(result).items()
        if count or word not in ("forgotten", "reused")
    )
    others = [
        (len(result.by_others), "done by others"),
        (len(result.failed), "failed"),
        (len(result.skipped), "skipped"),
        (len(result.left_alone), "not stopped"),
        (len(result.deferred), "waiting"),
        (len(unsuccessful), "not completed"),
    ]
    text += "".join(f", {count} {word}" for count, word in others if count)
    complete = result.complete and not unsuccessful
    headline = f"{'Destroy' if destroy else 'Apply'} {'complete' if complete else 'incomplete'}."
    return [*lines, "", output.style(f"{headline} {text}.", "green" if complete else "yellow")]


def follow_lines(jobs: Sequence[Address]) -> list[str]:
    """Return the hint to follow runs that are still live."""
    if not jobs:
        return []
    job = jobs[0].shell_quoted
    if len(jobs) == 1:
        return [f"To follow the run: trainctl logs {job} --follow"]
    return [f"To list the runs: trainctl status. To follow one: trainctl logs {job} --follow"]


def summary_event(result: ApplyResult, exit_code: int, followed: FollowedRuns) -> Event:
    """Return the last event of ``apply --format json``."""
    data = {
        **counts(result),
        "failed": [
            {"address": str(a), "code": e.code, "summary": e.summary, "detail": e.detail}
            for a, e in result.failed.items()
        ],
        "by_others": [{"address": str(a), "actor": actor} for a, actor in result.by_others.items()],
        "skipped": [str(address) for address in result.skipped],
        "left_alone": [
            *({"address": str(c.address), "reason": "live_run"} for c in result.left_alone),
            *(
                {"address": str(address), "reason": "waits", "detail": error.summary}
                for address, error in result.deferred.items()
            ),
        ],
        "not_started": [str(address) for address in result.not_started],
        "runs": [
            {"address": str(address), "run": run.id, "status": run.status.value, "error": run.error}
            for address, run in followed.items()
        ],
        "exit_code": exit_code,
    }
    complete = result.complete and not any(_is_unsuccessful(run) for run in followed.values())
    return Event(EventType.SUMMARY, "complete" if complete else "incomplete", None, data)


def _is_unsuccessful(run: RunRecord) -> bool:
    return not run.status.live and run.status is not RunStatus.COMPLETED


def retained_lines(retained: Sequence[RetainedData]) -> list[str]:
    """Return a line for each kept directory, and how to delete it."""
    if not retained:
        return []
    lines = ["", "Kept:"]
    lines += [f"  {data.what:<12} {data.place}  {format_bytes(data.bytes)}" for data in retained]
    kinds = {data.what for data in retained}
    if "checkpoints" in kinds:
        lines.append("To list checkpoints, use trainctl checkpoints list --kept.")
        lines.append("To delete checkpoints, too, use destroy --delete-checkpoints.")
    if "mirror" in kinds:
        lines.append("To delete unreferenced blobs from the mirror, use trainctl mirror gc.")
    return lines
