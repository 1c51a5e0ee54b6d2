"""How an apply ended, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainctl.apply.walk import ApplyResult
from trainctl.base.units import format_bytes
from trainctl.model.action import Action
from trainctl.model.address import Address
from trainctl.model.events import Event, EventType
from trainctl.model.reports import RetainedData
from trainctl.model.run import RunRecord, RunStatus
from trainctl.views.problems import error_lines, explain_hint_lines
from trainctl.views.terminal.output import TerminalOutput

FollowedRuns = Mapping[Address, RunRecord]
"""Runs that apply waited for, as they were when it stopped waiting."""

_NONE: FollowedRuns = {}


def counts(result: ApplyResult) -> dict[str, int]:
    """What was done, counted as plans count: a replacement is one added and one destroyed."""
    actions = [change.action for change in result.done]
    replaced = actions.count(Action.REPLACE)
    return {
        "added": actions.count(Action.CREATE) + replaced,
        "changed": actions.count(Action.UPDATE),
        "destroyed": actions.count(Action.DELETE) + replaced,
        "forgotten": actions.count(Action.FORGET),
    }


def failure_lines(result: ApplyResult, output: TerminalOutput) -> list[str]:
    """What failed and what to do about it: for standard error."""
    lines = []
    for address, error in result.failed.items():
        lines += ["", *error_lines(error, str(address), output.error_style)]
    return [*lines, *explain_hint_lines(result.failed.values(), output.error_style)]


def result_lines(
    result: ApplyResult,
    output: TerminalOutput,
    followed: FollowedRuns = _NONE,
    *,
    destroy: bool = False,
) -> list[str]:
    """What was left alone and why, what was not begun, how runs ended, then the counts: for standard output."""
    fell = {address: run for address, run in followed.items() if _is_unsuccessful(run)}
    lines = [_run_line(address, run) for address, run in fell.items()]
    for change in result.left_alone:
        run = change.stops
        what = f"run {run.number} ({run.id}) is live" if run else "its run is live"
        lines.append(f"{change.address}: skipped: {what}. Use --stop-running to stop it.")
    lines += [
        f"{address}: not started. Run the command again when nothing blocks it."
        for address, why in result.deferred.items()
        if why.lapses
    ]
    if not all(why.lapses for why in result.deferred.values()):
        lines.append("To start jobs that wait, apply again later or run: trainctl reconcile")
    if result.not_started:
        lines.append(
            f"Not started: {', '.join(map(str, result.not_started))}. Apply again to continue."
        )
    said = ", ".join(
        f"{count} {word}" for word, count in counts(result).items() if count or word != "forgotten"
    )
    problems = [
        (len(result.failed), "failed"),
        (len(result.skipped), "skipped"),
        (len(result.left_alone), "not stopped"),
        (len(result.deferred), "waiting"),
        (len(fell), "not completed"),
    ]
    said += "".join(f", {count} {word}" for count, word in problems if count)
    what = "Destroy" if destroy else "Apply"
    whole = result.complete and not fell
    headline = f"{what} {'complete' if whole else 'incomplete'}."
    return [
        *lines,
        "",
        output.style(f"{headline} {said}.", "green" if whole else "yellow"),
    ]


def follow_lines(jobs: Sequence[Address]) -> list[str]:
    """How to watch the runs that go on after the command."""
    if not jobs:
        return []
    which = jobs[0].shell_quoted
    if len(jobs) == 1:
        return [f"To follow the run: trainctl logs {which} --follow"]
    return [f"To list the runs: trainctl status. To follow one: trainctl logs {which} --follow"]


def summary_event(result: ApplyResult, exit_code: int, followed: FollowedRuns = _NONE) -> Event:
    """The last line of ``apply --format json``."""
    data = {
        **counts(result),
        "failed": [
            {"address": str(a), "code": e.code, "summary": e.summary, "detail": e.detail}
            for a, e in result.failed.items()
        ],
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
    whole = result.complete and not any(_is_unsuccessful(run) for run in followed.values())
    return Event(EventType.SUMMARY, "complete" if whole else "incomplete", None, data)


def _is_unsuccessful(run: RunRecord) -> bool:
    return not run.status.live and run.status is not RunStatus.COMPLETED


def _run_line(address: Address, run: RunRecord) -> str:
    return f"{address}: run {run.number} ({run.id}) did not complete. See its output with: trainctl logs {address.shell_quoted}"


def retained_lines(remains: Sequence[RetainedData]) -> list[str]:
    """One line for each directory that stays, and how to be rid of checkpoints."""
    if not remains:
        return []
    lines = ["", "Kept:"]
    lines += [
        f"  {remain.what:<12} {remain.place}  {format_bytes(remain.bytes)}" for remain in remains
    ]
    if any(remain.what == "checkpoints" for remain in remains):
        lines.append("To delete checkpoints, too, use destroy --delete-checkpoints.")
    if any(remain.what == "mirror" for remain in remains):
        lines.append("To delete unreferenced blobs from the mirror, use trainctl mirror gc.")
    return lines
