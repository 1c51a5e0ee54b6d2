"""How an apply ended, for people and for programs."""

from __future__ import annotations

from trainctl.apply.result import Result
from trainctl.model.action import Action
from trainctl.model.events import Event, EventType
from trainctl.views.output import Output


def counts(result: Result) -> dict[str, int]:
    """What was done, counted as plans count: a replacement is one added and one destroyed."""
    actions = [change.action for change in result.done]
    replaced = actions.count(Action.REPLACE)
    return {
        "added": actions.count(Action.CREATE) + replaced,
        "changed": actions.count(Action.UPDATE),
        "destroyed": actions.count(Action.DELETE) + replaced,
        "forgotten": actions.count(Action.FORGET),
    }


def failure_lines(result: Result, output: Output) -> list[str]:
    """What failed and what to do about it: for standard error."""
    lines = []
    for address, error in result.failed.items():
        label = output.style("error:", "red", error=True)
        lines += ["", f"{label} {address}: {error.summary}"]
        lines += [f"  {line}" for line in error.detail.splitlines()]
    return lines


def result_lines(result: Result, output: Output, *, destroy: bool = False) -> list[str]:
    """What was left alone and why, what was not begun, then the counts: for standard output."""
    lines = []
    for change in result.left_alone:
        run = change.stops
        what = f"run {run.number} ({run.id}) is live" if run else "it is live"
        lines.append(f"{change.address}: left as it is, as {what}. Pass --stop-running to stop it.")
    if result.not_started:
        lines.append(
            f"Not started: {', '.join(map(str, result.not_started))}. Apply again to go on."
        )
    said = ", ".join(
        f"{count} {word}" for word, count in counts(result).items() if count or word != "forgotten"
    )
    problems = [
        (len(result.failed), "failed"),
        (len(result.skipped), "skipped"),
        (len(result.left_alone), "left alone"),
    ]
    said += "".join(f", {count} {word}" for count, word in problems if count)
    what = "Destroy" if destroy else "Apply"
    headline = f"{what} {'complete' if result.complete else 'incomplete'}."
    return [
        *lines,
        "",
        output.style(f"{headline} {said}.", "green" if result.complete else "yellow"),
    ]


def summary_event(result: Result, exit_code: int) -> Event:
    """The last line of ``apply --format json``."""
    data = {
        **counts(result),
        "failed": [
            {"address": str(a), "summary": e.summary, "detail": e.detail}
            for a, e in result.failed.items()
        ],
        "skipped": [str(address) for address in result.skipped],
        "left_alone": [
            {"address": str(c.address), "reason": "live_run"} for c in result.left_alone
        ],
        "not_started": [str(address) for address in result.not_started],
        "exit_code": exit_code,
    }
    return Event(EventType.SUMMARY, "complete" if result.complete else "incomplete", None, data)
