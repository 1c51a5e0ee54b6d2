"""Pages of a project: jobs, nodes and the plan; those of runs are in `runs`."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from jinja2 import ChainableUndefined, Environment, PackageLoader, Undefined
from markupsafe import Markup

from trainctl.base.units import format_bytes, format_duration
from trainctl.errors import TrainctlError
from trainctl.ledger.entries import Entry
from trainctl.ledger.state import State
from trainctl.ledger.usage import RunUsage, run_usage, usage_rows
from trainctl.manifest.files import manifest_files
from trainctl.model.address import Address, Kind
from trainctl.model.reports import JobStatus, NodeReport
from trainctl.model.run import RunStatus
from trainctl.operations.nodes import report_nodes
from trainctl.operations.runs.lookup import newest_runs, with_unrecorded_runs
from trainctl.operations.runs.resume import plan_with_resumes
from trainctl.operations.runs.status import brief_statuses, pending_jobs
from trainctl.operations.survey import SurveyOptions
from trainctl.operations.workspace import Workspace
from trainctl.plan.values import PlanOptions
from trainctl.resources.runs.previous_runs import unrecorded_attempts
from trainctl.ui.queries import PageQueries, QueryResult
from trainctl.views.mirror import mirror_json
from trainctl.views.nodes import nodes_json
from trainctl.views.plan.html import plan_body
from trainctl.views.plan.text import PAGE, heading
from trainctl.views.problems import problem_lines
from trainctl.views.runs.status import counts_by_state, progress_text
from trainctl.views.terminal.output import visible
from trainctl.views.terminal.text import second

T = TypeVar("T")
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'"  # fmt: skip
_FULL, _PLAN_SECONDS = 0.9, 10.0
"""Share of a disk from which it needs attention, and age of a plan from which it is made again."""
STATE_CLASS = {
    RunStatus.COMPLETED: "done",
    RunStatus.RUNNING: "live",
    **dict.fromkeys((RunStatus.PENDING, RunStatus.CREATED, RunStatus.DEPLOYING), "wait"),
    RunStatus.STOPPED: "off",
    **dict.fromkeys((RunStatus.FAILED, RunStatus.DEPLOY_FAILED, RunStatus.LOST), "bad"),
}
"""Classes of statuses, in the order of bars."""
Attention = tuple[str, str, str, str]
"""A kind, an address, the reason, and a command."""


class PageRenderer:
    """Renders pages from answers that all open pages share; thread-safe.

    ``patience``: how long a page waits for first answers, None for their end. ``static``: links name files.
    """

    def __init__(
        self, open_workspace: Callable[[], Workspace], patience: float | None = 0.3, *, static: bool = False
    ) -> None:  # fmt: skip
        self._open = open_workspace
        self._lock, self._plan_lock = threading.Lock(), threading.Lock()
        self._opened: tuple[object, Workspace] | None = None
        self._redact: Callable[[str], str] = str
        self._plan: tuple[float, Mapping[str, Any]] = (0.0, {})
        self._static = static
        self.queries = PageQueries(lambda: self.workspace.agents.requests(), patience)
        self._templates = Environment(
            loader=PackageLoader("trainctl.ui"),
            autoescape=True,
            finalize=self.masked,
            undefined=ChainableUndefined,
        )
        self._templates.filters |= {
            "duration": _optional(format_duration),
            "bytes": _optional(format_bytes),
            "short": _optional("{:.4g}".format),
            "second": second,
            "data": self._data,
        }
        self._templates.globals |= {"bar": _bar, "badge": self._badge}

    @property
    def workspace(self) -> Workspace:
        """The workspace, opened again after changes of the manifest, which may declare other secrets."""
        with self._lock:
            if self._opened is None or self._opened[0] != _stamp_of(self._opened[1]):
                if self._opened is not None:
                    self._opened[1].__exit__()
                workspace = self._open()
                self._redact = workspace.settings.redactor.redact
                _ = workspace.ledger, workspace.agents  # opened by one thread
                self._opened = _stamp_of(workspace), workspace
            return self._opened[1]

    def close(self) -> None:
        """Close the connections to nodes."""
        self.queries.close()
        if self._opened is not None:
            self._opened[1].__exit__()

    def state(self) -> State:
        """Return the state with unrecorded runs, for which nodes are only queried while there may be any."""
        workspace = self.workspace
        state = workspace.ledger.state()
        if not unrecorded_attempts(state):
            return state
        answer = self.queries.get("state", lambda _: with_unrecorded_runs(workspace), lambda: state)
        self.queries.settle(answer)
        return answer.value

    def usage(self) -> QueryResult[list[RunUsage]]:
        """Return what all runs used."""
        return self.folded("usage", run_usage)

    def folded(self, name: str, fold: Callable[[Iterable[Entry]], list[T]]) -> QueryResult[list[T]]:
        """Return a result over all entries of the state, made again when there are more."""
        ledger = self.workspace.ledger
        key = (name, ledger.state().lineage, ledger.known().position)
        return self.queries.get(key, lambda _: fold(ledger.entries()), list, final=True)

    def render(self, name: str, answers: Sequence[QueryResult[Any]] = (), *, depth: int = 0, **variables: Any) -> str:  # fmt: skip
        """Render a template; the page reports the problems of the answers."""
        root = "../" * depth if self._static else "/"
        projects = sorted(at.name for at in self.state().resources if at.kind is Kind.PROJECT)
        return self._templates.get_template(f"{name}.html").render(
            page=name,
            href=lambda path: f"{root}{path or 'index'}.html" if self._static else f"{root}{path}",
            root=root,
            static=self._static,
            policy=POLICY,
            project=", ".join(projects),
            problems=dict.fromkeys(answer.problem for answer in answers if answer.problem),
            now=time.time(),
            **variables,
        )

    def start(self) -> str:
        """Return the first page."""
        statuses, nodes, runs = self.statuses(), self._nodes(), self.usage()
        pending = self.queries.settle(statuses, nodes, runs)
        groups: dict[Address, list[JobStatus]] = {}
        for status in statuses.value:
            groups.setdefault(status.address.group, []).append(status)
        jobs = pending_jobs(self.workspace, statuses.value)
        waiting = (("waiting", str(job), "approved, not started", "trainctl plan") for job in jobs)
        needs = (*_jobs_in_need(statuses.value), *_nodes_in_need(nodes.value), *waiting)
        usage = usage_rows(runs.value, "total", 0.0, time.time())
        return self.render(
            "start",
            (statuses, nodes, runs),
            pending=pending,
            jobs=[_job_row(address, group) for address, group in groups.items()],
            attention=Counter[Attention](needs),
            nodes=nodes_json(nodes.value)["nodes"],
            usage=usage[0] if usage else None,
        )

    def nodes(self) -> str:
        """Return the page of nodes, cached weights and the mirror."""
        workspace, nodes = self.workspace, self._nodes()
        mirror: QueryResult[dict[str, Any]] = self.queries.get(
            "mirror", lambda _: mirror_json(workspace.declared_mirror.store.inventory()), dict
        )
        pending = self.queries.settle(nodes, mirror)
        rows = {f"{row['cluster']}/{row['name']}": row for row in nodes_json(nodes.value)["nodes"]}
        cached: dict[str, dict[str, Any]] = {}
        for name, row in rows.items():
            for listing in row["cache"]["listings"]:
                cached.setdefault(listing["source"], {})[name] = listing
        gpus = [{"node": name, **gpu} for name, row in rows.items() for gpu in row["gpus"]]
        return self.render(
            "nodes",
            (nodes, mirror),
            pending=pending,
            nodes=[*rows.values()],
            names=[*rows],
            gpus=gpus,
            cached=cached,
            mirror=mirror.value,
        )

    def plan(self) -> str:
        """Return the page of the plan, at most ``_PLAN_SECONDS`` old."""
        with self._plan_lock:
            if time.time() - self._plan[0] > _PLAN_SECONDS:
                self._plan = (time.time(), self._create_plan())
            return self.render("plan", **self._plan[1])

    def _create_plan(self) -> Mapping[str, Any]:
        try:
            plan = plan_with_resumes(self.workspace, PlanOptions(), SurveyOptions(), {})
        except TrainctlError as error:
            return {"errors": problem_lines(error)}
        return {
            "heading": heading(plan, PAGE),
            "changes": plan.has_changes,
            "body": Markup(self._redact("\n".join(plan_body(plan, time.time())))),  # noqa: S704 - escaped
        }

    def statuses(self) -> QueryResult[list[JobStatus]]:
        """Return the status of each job's newest run."""

        def query(*, refresh: bool = True) -> list[JobStatus]:
            return brief_statuses(self.workspace, [*newest_runs(self.state())], refresh=refresh)

        return self.queries.get("statuses", lambda _: query(), lambda: query(refresh=False))

    def _nodes(self) -> QueryResult[list[NodeReport]]:
        workspace = self.workspace
        return self.queries.get("nodes", lambda _: report_nodes(workspace), list)

    def masked(self, value: Any) -> Any:
        """Mask secrets of a text and write its control characters; Jinja escapes the result."""
        if isinstance(value, str) and not isinstance(value, Markup):
            return visible(self._redact(value))
        return "" if value is None else value

    def _badge(self, kind: str, words: str) -> Markup:
        return Markup('<span class="badge {}">{}</span>').format(kind, self.masked(words))

    def _data(self, value: Any) -> Markup:
        """Return JSON for a script element, which nothing in it can end."""
        text = self._redact(json.dumps(value, separators=(",", ":"), allow_nan=False))
        return Markup(text.translate({ord(mark): f"\\u{ord(mark):04x}" for mark in "<>&"}))  # noqa: S704


def _optional(form: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda value: "" if value is None or isinstance(value, Undefined) else form(value)


def _bar(shares: Sequence[tuple[str, float]]) -> Markup:
    """Return a bar with parts of these classes."""
    part, at = Markup('<rect x="{:.1f}" width="{:.1f}" height="6" class="{}"/>'), 0.0
    parts = part.format(0, 100, "rest")
    for kind, share in shares:
        parts += part.format(at * 100, share * 100, kind)
        at += share
    box = Markup('<svg class="bar" viewBox="0 0 100 6" preserveAspectRatio="none">{}</svg>')
    return box.format(parts)


def _stamp_of(workspace: Workspace) -> object:
    directory = workspace.settings.directory
    facts = {name: (directory / name).stat() for name in manifest_files(directory)}
    return [(name, fact.st_mtime_ns, fact.st_size) for name, fact in facts.items()]


def _job_row(address: Address, statuses: Sequence[JobStatus]) -> dict[str, Any]:
    """Return what the first page shows of a job or a sweep."""
    first, is_sweep = statuses[0], statuses[0].address.key is not None
    counts = Counter(STATE_CLASS[status.run.status] for status in statuses)
    kinds = dict.fromkeys(STATE_CLASS.values())
    shares = [(name, counts[name] / len(statuses)) for name in kinds if counts[name]]
    progress = None if is_sweep else first.run.now.get("progress")
    if first.run.status.live and not is_sweep:
        shares = []  # unknown
        if progress and progress["total"]:
            shares = [("live", min(1.0, (progress["step"] or 0) / progress["total"]))]
    return {
        "name": address.name,
        "jobs": len(statuses) if is_sweep else None,
        "run": None if is_sweep else first.run,
        "kind": next(name for name in ("bad", *kinds) if counts[name]),
        "state": counts_by_state(statuses) if is_sweep else first.run.words,
        "progress": progress_text(progress, bar=False) if progress else "",
        "shares": shares,
        "left": _time_left(statuses, time.time()),
        "started": min((at for s in statuses if (at := s.run.started_at)), default=None),
        "nodes": sorted({rank.place for status in statuses for rank in status.run.ranks}),
    }


def _time_left(statuses: Sequence[JobStatus], now: float) -> float | None:
    """Estimate by reported progress, by the completed runs of a sweep, or by the last completed run of the job."""
    running = [status for status in statuses if status.run.status is RunStatus.RUNNING]
    live = sum(status.run.status.live for status in statuses)
    ran = [s.run.phases["running"] for s in statuses if s.run.status is RunStatus.COMPLETED]
    if live > len(running):
        return sum(ran) / len(ran) * live / max(1, len(running)) if ran else None
    left = []
    for status in running:
        progress, started = status.run.now.get("progress"), status.run.started_at
        if progress and progress["remaining_seconds"] is not None:
            left.append(progress["remaining_seconds"])
        elif started and (expected := status.forecast.get("running")):
            left.append(max(0.0, started + expected - now))
    return max(left, default=None)


def _jobs_in_need(statuses: Sequence[JobStatus]) -> Iterator[Attention]:
    for status in statuses:
        run, job, group = status.run, status.address, str(status.address.group)
        if STATE_CLASS[run.status] == "bad":
            reason = (run.error or run.status.words).partition("\n")[0]
            yield "failed", group, reason, f"trainctl logs {job.shell_quoted}"
        elif waiting := run.now.get("waiting"):
            yield "waiting", group, waiting, f"trainctl status {group}"
        if status.refresh_error:
            yield "unreachable", group, status.refresh_error, "trainctl nodes"


def _nodes_in_need(reports: Sequence[NodeReport]) -> Iterator[Attention]:
    for report in reports:
        usage, disk = report.usage, (report.found or {}).get("disk") or {}
        if usage.quarantine:
            yield "quarantined", report.id, usage.quarantine, f"trainctl nodes release {report.id}"
        elif report.why:
            yield report.status, report.id, report.why.partition("\n")[0], "trainctl nodes"
        if disk.get("total") and (full := 1 - disk["free"] / disk["total"]) > _FULL:
            words = f"{full:.0%} full, {format_bytes(disk['free'])} free"
            yield "disk", report.id, words, f"trainctl cache evict {report.cluster}"
        if usage.price_per_hour and usage.idle_since is not None:
            idle = format_duration(max(0.0, time.time() - usage.idle_since))
            words = f"idle for {idle}, {usage.price_per_hour:.2f} USD per hour"
            yield "idle", report.id, words, f"trainctl destroy --target cluster.{report.cluster}"
