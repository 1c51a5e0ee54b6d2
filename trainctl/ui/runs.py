"""Pages of runs: one run, and the comparison of several."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate, chain
from typing import Any

from starlette.datastructures import QueryParams

from trainctl.base.lazy_dataclass import replace
from trainctl.base.points import KeyPoints
from trainctl.errors import NodeError, TrainctlError, UsageError
from trainctl.ledger.history import history_rows
from trainctl.ledger.usage import run_usage
from trainctl.manifest.checkout import run_git
from trainctl.model.address import Address, Kind
from trainctl.model.events import Event, EventType
from trainctl.model.reports import Checkpoint, JobStatus, LogBatch, RankSample, UnreachableNode
from trainctl.model.run import RunRecord
from trainctl.operations.runs.checkpoints import known_checkpoints
from trainctl.operations.runs.control import mask_secrets
from trainctl.operations.runs.logs import LogSelection, LogTime, read_log
from trainctl.operations.runs.lookup import JobRun, run_control
from trainctl.operations.runs.points import ReportedPoints, read_points
from trainctl.operations.runs.results import with_costs
from trainctl.operations.runs.status import brief_statuses
from trainctl.ui.pages import REFRESH, PageRenderer, QueryResult
from trainctl.views.plan.changes import added_rows, brief
from trainctl.views.runs.logs import JsonLogPrinter
from trainctl.views.runs.metrics import usage_of
from trainctl.views.runs.results import keys_of
from trainctl.views.runs.status import status_rows, varying_names

_MOST, _TICKED = 12, 6
"""Runs to compare, and how many are ticked at first."""
_LINES, _SHOWN = 500, 2_000
"""Lines of the log, and characters of each."""
_PARTS = 600
"""Of each part of a line, the lowest and the highest point are drawn."""
Json = dict[str, Any]


def run_page(site: PageRenderer, run_id: str, query: QueryParams) -> str:
    """Return the page of a run; UsageError if the state doesn't have it."""
    run, workspace, ask = _find_run(site, run_id), site.workspace, site.queries.get
    recorded, every = partial(brief_statuses, workspace, [run], refresh=False), _every(run)
    status = ask(("run", run_id), lambda _: brief_statuses(workspace, [run]), recorded, every)
    listed = partial(known_checkpoints, workspace, run)
    saved = ask(("saved", run_id), lambda _: listed()[0], list[Checkpoint], every)
    samples = ask(("samples", run_id), partial(_add_samples, site, run), list, every)
    points, log, others = _points(site, [run]), _log(site, run, query), site.statuses()
    answers: tuple[QueryResult[Any], ...] = (status, saved, samples, points, log, others)
    site.queries.settle(*answers)
    reported = _of_run(points.value, run.record)
    lines = [line_json(key, key, of_key.columns()) for key, of_key in reported.items()]
    return site.render(
        "run",
        *answers,
        depth=1,
        status=status.value[0],
        facts=[*status_rows(status.value[0], time.time())],
        origin=next((row for row in site.fold(history_rows) if row.run == run_id), None),
        checkpoints=saved.value,
        reported=reported,
        evaluated=_evaluated(run.record, others.value),
        log=log.value,
        query=query,
        lines=lines + _usage_lines(samples.value),
        saved=[(row.created_at, row.step) for row in saved.value if row.rank == 0],
    )


def jobs_page(site: PageRenderer, name: str, query: QueryParams) -> str:
    """Return the runs of a job, or the newest of a sweep or of all jobs, and compare those that are ticked."""
    group = Address(Kind.JOB, name) if name else None
    statuses = site.statuses(group)
    site.queries.settle(statuses)
    found = with_costs(statuses.value, site.fold(run_usage))
    results = {result.status.run.id: result for result in found}
    matrices = [dict(status.matrix) for status in statuses.value]
    ticked = [run for run in query.getlist("run") or [*results][-_TICKED:] if run in results]
    ids, ask = ticked[:_MOST], site.queries.get
    runs = [_find_run(site, run) for run in ids]
    labels = {
        run.record.id: (run.job.address.key if group else str(run.job.address)) or run.record.id
        for run in runs
    }
    points, compare = _points(site, runs), partial(_differences, site, runs)
    differences = ask(("differences", *ids), compare, dict, math.inf)
    site.queries.settle(points, differences)
    lines = [
        line_json(key, labels[run.record.id], of_key.columns(), run.record.id)
        for run in runs
        for key, of_key in _of_run(points.value, run.record).items()
    ]
    return site.render(
        "jobs",
        statuses,
        points,
        differences,
        depth=1 if name else 0,
        group=group,
        results=[*results.values()],
        varying=varying_names(matrices),
        keys=keys_of(results.values()),
        ticked=ticked,
        labels=[*labels.values()],
        differences=differences.value,
        lines=lines,
    )


def _find_run(site: PageRenderer, run_id: str) -> JobRun:
    state = site.state()
    for address, job in {**state.forgotten, **state.resources}.items():
        for raw in job.outputs.get("runs", ()) if address.kind is Kind.JOB else ():
            if raw["id"] == run_id:
                return JobRun(job, RunRecord.from_json(raw), state)
    raise UsageError(f"run {run_id} is not in the state", code="run-not-found")


def _every(*runs: JobRun) -> float:
    """Return how often what runs have done is queried: never after their end."""
    return REFRESH if any(run.record.status.live for run in runs) else math.inf


def _points(site: PageRenderer, runs: Sequence[JobRun]) -> QueryResult[dict[str, ReportedPoints]]:
    def query(known: dict[str, ReportedPoints]) -> dict[str, ReportedPoints]:
        return read_points(site.workspace, runs, known=known)

    key = ("points", *(run.record.id for run in runs))
    return site.queries.get(key, query, dict, _every(*runs))


def _of_run(points: Mapping[str, ReportedPoints], run: RunRecord) -> Mapping[str, KeyPoints]:
    return dict(sorted(points[run.key].points.items())) if run.key in points else {}


def _evaluated(run: RunRecord, statuses: Sequence[JobStatus]) -> dict[str, dict[str, float]]:
    """Return what other jobs evaluated of a run's checkpoints: values by key and checkpoint."""
    found: dict[str, dict[str, float]] = {}
    for status in statuses:
        for row in status.run.reported.get("evaluations") or ():
            if row["run"].rpartition("/")[2] == run.checkpoint_prefix.rpartition("/")[2]:
                for key, value in row["values"].items():
                    found.setdefault(f"{status.address.name}.{key}", {})[row["name"]] = value
    return found


def _add_samples(site: PageRenderer, run: JobRun, known: list[RankSample]) -> list[RankSample]:
    control, since = run_control(site.workspace), {sample.rank: sample.time for sample in known}
    for rank in [rank.rank for rank in run.record.ranks]:
        node, rows = control.metrics(run.record, rank, since.get(rank, 0.0))
        known = [*known, *(RankSample.of(rank, node, row) for row in rows)]
    return known


def _log(site: PageRenderer, run: JobRun, query: QueryParams) -> QueryResult[Collection[Event]]:
    """Read the last lines of the log, or of those until a moment ``at``; ``q`` is a pattern."""
    rank, pattern, at = (query.get(name, "") for name in ("rank", "q", "at"))

    def read(_: object) -> Collection[Event]:
        until = LogTime(float(at) + 10) if at else None  # with some lines after it
        selection = LogSelection(int(rank) if rank else None, None, until, pattern or None, _LINES)
        lines = deque[Event](maxlen=_LINES)

        def emit(events: Sequence[Event]) -> None:
            lines.extend(replace(event, message=_shown(site, event.message)) for event in events)

        def take(batch: LogBatch | UnreachableNode) -> None:
            if isinstance(batch, LogBatch):
                printer.show(batch)
            else:
                printer.show_unreachable([batch])

        printer = JsonLogPrinter(emit, {run.record.id: run.job.address})
        emit([Event(EventType.DIAGNOSTIC, text) for text in mask_secrets(site.workspace, run)])
        read_log(site.workspace, [run], selection, take)
        printer.close()
        return lines

    key = ("log", run.record.id, rank, pattern, at)
    every = 0.0 if run.record.status.live and not at else math.inf
    return site.queries.get(key, read, tuple, every)


def _shown(site: PageRenderer, line: str) -> str:
    """Mask secrets, then shorten a line to what a terminal would show of it at last."""
    text = site.masked(line.rstrip("\r").rpartition("\r")[2])
    more = len(text) - _SHOWN
    return f"{text[:_SHOWN]}… {more:,} more characters" if more > 0 else text


def _differences(site: PageRenderer, runs: Sequence[JobRun], _: object) -> dict[str, list[str]]:
    """Return what isn't equal for all runs, and the files that changed since the first one's commit."""
    facts = [_facts(site, run.record) for run in runs]
    rows = {name: [own.get(name, "") for own in facts] for name in chain.from_iterable(facts)}
    commits = [run.record.commit or "" for run in runs]
    if all(commits):
        with suppress(TrainctlError):  # git may not have them
            rows["changed files"] = [_changed_files(site, commits[0], commit) for commit in commits]
    return {name: values for name, values in rows.items() if len({*values}) > 1}


def _facts(site: PageRenderer, run: RunRecord) -> dict[str, str]:
    """Return all that a run was made of, by name, as far as its node has it."""
    facts: dict[str, Any] = {}
    with suppress(NodeError):
        inputs = run_control(site.workspace).previous_run(run)["run_inputs"]
        facts |= {**inputs["attributes"], "listings": inputs["listings"]}
    facts["matrix"] = {row["name"]: row["value"] for row in facts.get("matrix") or ()}
    facts |= {"code": run.code, "commit": run.commit, "image": run.image_digest}
    return {row.name: brief(row.after) for row in added_rows(facts)}


def _changed_files(site: PageRenderer, base: str, commit: str) -> str:
    git = ("diff", "--stat=100", "--relative", "--no-ext-diff", base, commit, "--", ".")
    found = run_git(site.workspace.settings.directory, *git)
    return (found or b"").decode(errors="replace").strip()


def line_json(title: str, name: str, columns: Sequence[Sequence[float]], run: str = "") -> Json:
    """Return a line of the chart of a title, with the first and last point, and the extremes of its parts.

    ``columns``: values, steps, which are NaN if unknown, and times. A point without a step gets that of the one before.
    """
    values, steps, times = columns
    size = math.ceil(len(values) / _PARTS)
    kept = {0, len(values) - 1} if values else set()
    for first in range(0, len(values), size or 1):
        part = values[first : first + size]
        kept |= {first + part.index(min(part)), first + part.index(max(part))}
    points = [i for i in sorted(kept) if math.isfinite(values[i])]
    filled = accumulate(
        (steps[i] for i in points), lambda last, step: step if step == step else last, initial=0.0
    )
    return {
        "title": title,
        "name": name,
        "run": run,
        "t": [round(times[i], 1) for i in points],
        "s": [*filled][1:],
        "v": [float(f"{values[i]:.6g}") for i in points],
    }


def _usage_lines(samples: Sequence[RankSample]) -> list[Json]:
    """Return what ranks used, as lines of charts."""
    lines: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    for sample in samples:
        step = (sample.progress or {}).get("step")
        for title, name, value in usage_of(sample):
            if value is not None:
                point = (value, math.nan if step is None else step, sample.time)
                lines.setdefault((title, name), []).append(point)
    return [line_json(*names, [*zip(*points, strict=True)]) for names, points in lines.items()]
