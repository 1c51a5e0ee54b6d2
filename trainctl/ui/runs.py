"""Pages of runs: one run, and the comparison of several."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from trainctl.base.points import KeyPoints
from trainctl.errors import NodeError, TrainctlError, UsageError
from trainctl.ledger.history import HistoryRow, history_rows
from trainctl.manifest.checkout import run_git
from trainctl.model.address import Address, Kind
from trainctl.model.delivery import DeliveryRecord
from trainctl.model.reports import Checkpoint, JobStatus, LogBatch, RankSample, RunResult
from trainctl.model.run import RunRecord
from trainctl.operations.runs import lookup
from trainctl.operations.runs.checkpoints import known_checkpoints
from trainctl.operations.runs.control import mask_secrets
from trainctl.operations.runs.logs import LogSelection, LogTime, LogWindow
from trainctl.operations.runs.lookup import JobRun
from trainctl.operations.runs.points import ReportedPoints, read_points
from trainctl.operations.runs.results import with_costs
from trainctl.operations.runs.status import brief_statuses, samples_of
from trainctl.resources.runs.run_control import runs_of
from trainctl.ui.pages import STATE_CLASS, PageRenderer
from trainctl.ui.queries import QueryResult
from trainctl.ui.series import Json, line_json, usage_charts
from trainctl.views.plan.changes import added_rows, is_code
from trainctl.views.runs.results import keys_of
from trainctl.views.runs.status import phase_rows
from trainctl.views.terminal.text import literal, second

_MOST_TICKED, _TICKED = 12, 6
"""Runs to compare, and how many are ticked at first."""
_BEFORE = 30.0
"""Seconds of the log shown before a moment."""
Query = Mapping[str, Sequence[str]]
"""Parameters of a page's URL."""
Log = tuple[LogWindow | None, Sequence[LogBatch], Sequence[str]]
"""A window of the log, its lines, and warnings."""
Points = dict[str, ReportedPoints]


def run_page(site: PageRenderer, run_id: str, query: Query) -> str:
    """Return the page of a run; UsageError if the state doesn't have it."""
    found, workspace = _find_run(site, run_id), site.workspace
    status = site.queries.get(
        ("run", run_id),
        lambda _: brief_statuses(workspace, [_find_run(site, run_id)])[0],
        lambda: brief_statuses(workspace, [found], refresh=False)[0],
        final=not found.record.status.live,
    )
    pending = site.queries.settle(status)
    record = status.value.run
    run, ended = JobRun(found.job, record, found.state), not record.status.live
    checkpoints: QueryResult[list[Checkpoint]] = site.queries.get(
        ("checkpoints", run_id), lambda _: known_checkpoints(workspace, run)[0], list, final=ended
    )
    samples, points = _samples(site, run, ended=ended), _points(site, [run])
    log, history = _log(site, run, query, ended=ended), site.folded("history", history_rows)
    statuses = site.statuses()
    pending |= site.queries.settle(checkpoints, samples, points, log, history, statuses)
    evaluated = _evaluated(record, statuses.value)
    width, reported = _width(query), _of_run(points.value, record)
    charts = [{"title": key, "lines": [line_json(key, of_key.columns(), width)]} for key, of_key in reported.items()]  # fmt: skip
    return site.render(
        "run",
        (status, checkpoints, samples, points, log, history, statuses),
        depth=1,
        pending=pending,
        status=status.value,
        run=record,
        kind=STATE_CLASS[record.status],
        progress=record.now.get("progress") or {},
        facts=[*_run_facts(status.value, [row for row in history.value if row.run == run_id])],
        checkpoints=checkpoints.value,
        reported=reported,
        evaluated=evaluated,
        numbered=[f"#{key}" for key in (*reported, *evaluated)],
        deliveries=[DeliveryRecord.from_json(row) for row in record.deliveries],
        lines=log.value[1],
        warnings=log.value[2],
        query={name: values[-1] for name, values in query.items()},
        data={
            "charts": charts + usage_charts(samples.value, width),
            "marks": _marks(reported, checkpoints.value),
        },
        commands=_commands(status.value),
    )


def jobs_page(site: PageRenderer, name: str, query: Query) -> str:
    """Return the runs of a job, or the newest of a sweep or of all jobs, and compare those that are ticked."""
    group = Address(Kind.JOB, name) if name else None

    def read(*, refresh: bool = True) -> list[JobStatus]:
        return brief_statuses(site.workspace, _runs_of_group(site, group), refresh=refresh)

    statuses = site.queries.get(("jobs", name), lambda _: read(), lambda: read(refresh=False))
    usage = site.usage()
    pending = site.queries.settle(statuses, usage)
    results = {result.status.run.id: result for result in with_costs(statuses.value, usage.value)}
    ticked = [run for run in query.get("run") or [*results][-_TICKED:] if run in results]
    matrices = {run: dict(result.status.matrix) for run, result in results.items()}
    names = dict.fromkeys(key for matrix in matrices.values() for key in matrix)
    varying = [key for key in names if len({matrix.get(key) for matrix in matrices.values()}) > 1]
    runs = {
        _label(results[run], varying if group else None): JobRun(
            _find_run(site, run).job, results[run].status.run
        )
        for run in ticked[:_MOST_TICKED]
    }
    points, inputs = _points(site, [*runs.values()]), [_inputs(site, run) for run in runs.values()]
    pending |= site.queries.settle(points, *inputs)
    facts = [_facts(run.record, of.value) for run, of in zip(runs.values(), inputs, strict=True)]
    lines: dict[str, list[Json]] = {}
    for label, run in runs.items():
        for key, of_key in _of_run(points.value, run.record).items():
            line = line_json(label, of_key.columns(), _width(query))
            lines.setdefault(key, []).append({**line, "run": run.record.id})
    keys = keys_of(results.values())
    return site.render(
        "jobs",
        (statuses, usage, points, *inputs),
        depth=1 if name else 0,
        pending=pending,
        group=group,
        results=[*results.values()],
        kinds=STATE_CLASS,
        varying=varying,
        matrices=matrices,
        keys=keys,
        numbered=[f"#{key}" for key in keys],
        ticked=ticked,
        labels=[*runs],
        differences=_differences(site, facts),
        data={"charts": [{"title": key, "lines": lines[key]} for key in lines], "marks": []},
    )


def _find_run(site: PageRenderer, run_id: str) -> JobRun:
    state = site.state()
    for address, job in (*state.resources.items(), *state.forgotten.items()):
        for raw in job.outputs.get("runs", ()) if address.kind is Kind.JOB else ():
            if raw["id"] == run_id:
                return JobRun(job, RunRecord.from_json(raw), state)
    raise UsageError(f"run {run_id} is not in the state", code="run-not-found")


def _runs_of_group(site: PageRenderer, group: Address | None) -> list[JobRun]:
    state = site.state()
    if group is None or lookup.jobs_of_matrix(state, group):
        return [*lookup.newest_runs(state, group)]
    job = state.find_record(group)
    if job is None:
        raise UsageError(f"{group} is not in the state", code="not-in-state")
    return [JobRun(job, run) for run in runs_of(job)]


def _points(site: PageRenderer, runs: Sequence[JobRun]) -> QueryResult[Points]:
    def query(known: Points | None) -> Points:
        return read_points(site.workspace, runs, known=known)

    ended = not any(run.record.status.live for run in runs)
    key = ("points", *(run.record.id for run in runs))
    return site.queries.get(key, query, dict, final=ended)


def _of_run(points: Points, run: RunRecord) -> Mapping[str, KeyPoints]:
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


def _samples(site: PageRenderer, run: JobRun, *, ended: bool) -> QueryResult[list[RankSample]]:
    def query(known: list[RankSample] | None) -> list[RankSample]:
        since = {sample.rank: sample.time for sample in known or ()}
        return [*(known or ()), *samples_of(site.workspace, run, None, since).samples]

    return site.queries.get(("samples", run.record.id), query, list, final=ended)


def _log(site: PageRenderer, run: JobRun, query: Query, *, ended: bool) -> QueryResult[Log]:
    """Read the log; a moment ``at`` selects the lines around it, ``q`` is a pattern."""
    rank, pattern, at = ((query.get(name) or [""])[-1] for name in ("rank", "q", "at"))

    def read(before: Log | None) -> Log:
        window, _, warnings = before or (None, (), ())
        if window is None:
            since = LogTime(float(at) - _BEFORE) if at else None
            chosen = LogSelection(int(rank) if rank else None, since, grep=pattern or None)
            warnings = [*mask_secrets(site.workspace, run)]
            window = LogWindow(site.workspace, run, chosen)
        window.update()
        return window, window.lines(), warnings

    key = ("log", run.record.id, rank, pattern, at)
    nothing: Log = (None, (), ())
    return site.queries.get(key, read, lambda: nothing, final=ended or bool(at), weight=3.0)


def _inputs(site: PageRenderer, run: JobRun) -> QueryResult[Mapping[str, Any]]:
    """Read the inputs of a run, which don't change."""

    def query(_: Mapping[str, Any] | None) -> Mapping[str, Any]:
        with suppress(NodeError):  # its node is gone
            return lookup.run_control(site.workspace).previous_run(run.record)["run_inputs"]
        return {}

    return site.queries.get(("inputs", run.record.id), query, dict, final=True)


def _facts(run: RunRecord, inputs: Mapping[str, Any]) -> dict[str, str]:
    """Return all that a run was made of, by name."""
    attributes = inputs.get("attributes") or {}
    rows = added_rows({name: value for name, value in attributes.items() if name != "matrix"})
    facts = {row.name: literal(row.after) for row in rows if not is_code(row.after)}
    facts |= {f"matrix.{row['name']}": row["value"] for row in attributes.get("matrix") or ()}
    facts |= {name: str(listing)[:19] for name, listing in (inputs.get("listings") or {}).items()}
    own = {"code": run.code, "commit": run.commit, "image digest": run.image_digest}
    return facts | {name: value for name, value in own.items() if value}


def _differences(
    site: PageRenderer, facts: Sequence[Mapping[str, str]]
) -> list[tuple[str, list[str]]]:
    """Return the facts that aren't equal for all runs, and the files that changed since the first one's commit."""
    names = dict.fromkeys(name for own in facts for name in own)
    rows = {name: [own.get(name, "") for own in facts] for name in names}
    rows = {name: values for name, values in rows.items() if len({*values}) > 1}
    if all(commits := rows.get("commit", [""])):
        rows["changed files"] = [*map(partial(_changed_files, site, commits[0]), commits)]
    return [*rows.items()]


def _changed_files(site: PageRenderer, base: str, commit: str) -> str:
    git = ("diff", "--stat=100", "--relative", "--no-ext-diff", base, commit, "--", ".")
    with suppress(TrainctlError):
        out = run_git(site.workspace.settings.directory, *git)
        return (out or b"").decode(errors="replace").strip()
    return "git does not have the commit"


def _label(result: RunResult, varying: Sequence[str] | None) -> str:
    matrix = dict(result.status.matrix)
    values = ", ".join(f"{name}={matrix[name]}" for name in varying or () if name in matrix)
    return values or f"{result.status.address} run {result.status.run.number}"


def _run_facts(status: JobStatus, rows: Sequence[HistoryRow]) -> Iterator[tuple[str, str]]:
    """Yield names and values; ``rows`` of the history are those of the run."""
    run = status.run
    yield from status.matrix
    yield from (("commit", (run.commit or "")[:12]), ("image", (run.image_digest or "")[:19]))
    times = {"created": run.created_at, "started": run.started_at, "ended": run.ended_at}
    yield from ((name, f"{second(at)} UTC") for name, at in times.items() if at)
    yield from phase_rows(status, time.time())
    yield "retries", str(run.reported.get("retries") or "")
    for row in rows[:1]:
        yield "started by", row.actor
        yield "plan", f"{(row.plan or '')[7:19]}, state {row.serial}"


def _marks(reported: Mapping[str, KeyPoints], checkpoints: Sequence[Checkpoint]) -> list[Json]:
    """Return the checkpoints of the first rank, and the moments at which the step went back."""
    marks: list[Json] = [
        {"kind": "checkpoint", "t": row.created_at, "s": row.step, "text": row.name}
        for row in checkpoints
        if row.rank == 0
    ]
    for points in sorted(reported.values(), key=lambda points: points.count)[-1:]:
        _, steps, times = points.columns()
        retries = (times[i] for i in range(1, len(steps)) if steps[i] < steps[i - 1])
        marks += [{"kind": "retry", "t": at, "s": None, "text": "retry"} for at in retries]
    return marks


def _width(query: Query) -> int:
    text = (query.get("w") or [""])[-1]
    return min(4000, max(100, int(text))) if text.isascii() and text.isdecimal() else 600


def _commands(status: JobStatus) -> list[str]:
    job, run = status.address.shell_quoted, f"--run {status.run.id}"
    live = (f"ssh {job} {run}", f"stop {job} {run}")
    own = live if status.run.status.live else (f"run {job} {run}", f"run {job} --resume")
    always = (f"{name} {job} {run}" for name in ("logs", "metrics", "checkpoints list", "download"))
    return [f"trainctl {words}" for words in (*always, *own)]
