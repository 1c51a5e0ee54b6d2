"""Pages of runs: one run, and the comparison of several."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
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


def run_page(site: PageRenderer, run_id: str, query: QueryParams) -> str:
    """Return the page of a run; UsageError if the state doesn't have it."""
    run, workspace, ask = _find_run(site, run_id), site.workspace, site.queries.get
    recorded = partial(brief_statuses, workspace, [run], refresh=False)
    every = REFRESH if run.record.status.live else math.inf
    status = ask(("run", run_id), lambda _: brief_statuses(workspace, [run]), recorded, every)
    listed = partial(known_checkpoints, workspace, run)
    saved = ask(("saved", run_id), lambda _: listed()[0], list[Checkpoint], every)
    samples = ask(("samples", run_id), partial(_add_samples, site, run), list, every)
    points, log, others = _points(site, [run]), _log(site, run, query), site.statuses()
    answers = site.queries.settle(status, saved, samples, points, log, others)
    reported = dict(sorted(points.value[run.record.key].points.items()))
    lines = [line_json(key, key, of_key) for key, of_key in reported.items()]
    return site.render(
        "run",
        answers,
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
    results = {row.status.run.id: row for row in with_costs(statuses.value, site.fold(run_usage))}
    wanted = query.getlist("run") or [*results][-_TICKED:]
    ticked = [run for run in wanted if run in results][:_MOST]
    runs = [_find_run(site, run) for run in ticked]
    labels = [
        (run.job.address.key if group else str(run.job.address)) or run.record.id for run in runs
    ]
    points, compare = _points(site, runs), partial(_differences, site, runs)
    differences = site.queries.get(("differences", *ticked), compare, dict, math.inf)
    answers = site.queries.settle(statuses, points, differences)
    lines = [
        line_json(key, label, of_key, run.record.id)
        for run, label in zip(runs, labels, strict=True)
        for key, of_key in sorted(points.value[run.record.key].points.items())
    ]
    return site.render(
        "jobs",
        answers,
        group=group,
        results=[*results.values()],
        varying=varying_names([dict(status.matrix) for status in statuses.value]),
        keys=keys_of(results.values()),
        ticked=ticked,
        labels=labels,
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


def _points(site: PageRenderer, runs: Sequence[JobRun]) -> QueryResult[dict[str, ReportedPoints]]:
    key, read = ("points", *(run.record.id for run in runs)), partial(read_points, site.workspace)
    empty = {run.record.key: ReportedPoints() for run in runs}
    every = REFRESH if any(run.record.status.live for run in runs) else math.inf
    return site.queries.get(key, lambda known: read(runs, known=known), lambda: empty, every)


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
        problems = [*mask_secrets(site.workspace, run)]
        lines = deque((Event(EventType.DIAGNOSTIC, text) for text in problems), _LINES)

        def emit(events: Sequence[Event]) -> None:
            lines.extend(replace(event, message=_shown(site, event.message)) for event in events)

        def take(batch: LogBatch | UnreachableNode) -> None:
            if isinstance(batch, LogBatch):  # the query of samples reports unreachable nodes
                printer.show(batch)

        printer = JsonLogPrinter(emit, {run.record.id: run.job.address})
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
        git = partial(run_git, site.workspace.settings.directory, "diff", "--stat=100")
        with suppress(TrainctlError):  # git may not have them
            stats = [git("--relative", "--no-ext-diff", commits[0], c, "--", ".") for c in commits]
            rows["changed files"] = [(s or b"").decode(errors="replace").strip() for s in stats]
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


def line_json(title: str, name: str, points: KeyPoints, run: str = "") -> dict[str, Any]:
    """Return a line of the chart of a title: the first point, the last, and the extremes of each part."""
    values, steps, times = points.columns()
    size = math.ceil(len(values) / _PARTS)
    kept = {0, len(values) - 1} if values else set()
    for first in range(0, len(values), size or 1):
        part = values[first : first + size]
        kept |= {first + part.index(min(part)), first + part.index(max(part))}
    shown = [i for i in sorted(kept) if math.isfinite(values[i])]
    return {
        "title": title,
        "name": name,
        "run": run,
        "t": [round(times[i], 1) for i in shown],
        "s": [0.0 if math.isnan(steps[i]) else steps[i] for i in shown],
        "v": [float(f"{values[i]:.6g}") for i in shown],
    }


def _usage_lines(samples: Sequence[RankSample]) -> list[dict[str, Any]]:
    """Return what ranks used, as lines of charts."""
    lines: dict[tuple[str, str], KeyPoints] = {}
    step = None  # a retry reports none at first
    for sample in samples:
        step = (sample.progress or {}).get("step") or step
        for title, name, value in usage_of(sample):
            if value is not None:
                lines.setdefault((title, name), KeyPoints()).add(value, step, sample.time)
    return [line_json(*names, points) for names, points in lines.items()]
