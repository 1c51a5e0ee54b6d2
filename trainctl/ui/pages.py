"""Pages of a project, and the queries that they share, paced so that open pages cost hosts little."""

from __future__ import annotations

import json
import math
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import lru_cache, partial
from hashlib import sha256
from importlib.resources import files
from typing import Any, Generic, TypeVar

from jinja2 import ChainableUndefined, Environment, PackageLoader, Undefined
from markupsafe import Markup

from trainctl.base.lazy_dataclass import dataclass
from trainctl.base.units import format_bytes, format_duration
from trainctl.errors import TrainctlError
from trainctl.ledger.entries import Entry
from trainctl.ledger.state import State
from trainctl.ledger.usage import run_usage, usage_rows
from trainctl.manifest.files import read_all_files
from trainctl.model.address import Address, Kind
from trainctl.model.reports import JobStatus
from trainctl.model.run import RunStatus
from trainctl.operations.nodes import report_nodes
from trainctl.operations.runs.lookup import JobRun, newest_runs, with_unrecorded_runs
from trainctl.operations.runs.resume import plan_with_resumes
from trainctl.operations.runs.status import brief_statuses, pending_jobs
from trainctl.operations.survey import SurveyOptions
from trainctl.operations.workspace import Workspace
from trainctl.plan.values import PlanOptions
from trainctl.resources.runs.previous_runs import unrecorded_attempts
from trainctl.resources.runs.run_control import runs_of
from trainctl.views.mirror import mirror_json
from trainctl.views.nodes import nodes_json
from trainctl.views.plan.html import plan_body
from trainctl.views.plan.text import PAGE, heading
from trainctl.views.problems import problem_lines
from trainctl.views.runs.status import progress_text
from trainctl.views.terminal.output import visible
from trainctl.views.terminal.text import second

T = TypeVar("T")
PACE_SECONDS = 5.0
"""Between repeated queries; each makes at most one request to a node."""
REFRESH = 15.0
"""Age in seconds from which an answer is refreshed."""
_SHOWN_SECONDS, _KEPT_SECONDS = 8.0, 600.0
"""An answer that no page asked for so long isn't refreshed, and is forgotten."""
STYLE = Markup(files("trainctl.views.plan").joinpath("page.css").read_text())  # noqa: S704
SCRIPT = Markup(files("trainctl.ui").joinpath("ui.js").read_text())  # noqa: S704
_HASHES = [b64encode(sha256(text.encode()).digest()).decode() for text in (SCRIPT, STYLE)]
POLICY = "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; form-action 'self'; img-src data:; base-uri 'none'".format(*_HASHES)  # fmt: skip


@dataclass(slots=True)
class QueryResult(Generic[T]):
    """The last result of a query, a default until it is ``known``, and why a later attempt failed."""

    value: T
    known: bool = False
    problem: str = ""
    due: float = 0.0
    asked: float = 0.0
    running: Future[None] | None = None


class PageQueries:
    """Runs queries when pages ask for their answers; thread-safe.

    The first query of each answer begins at once; after that one in ``PACE_SECONDS``, that which is due for longest.
    """

    def __init__(self, patience: float | None) -> None:
        self._patience = patience
        self._lock = threading.Lock()
        self._answers: dict[Hashable, QueryResult[Any]] = {}
        self._next = 0.0
        self.pool = ThreadPoolExecutor(8, thread_name_prefix="query")

    def get(
        self,
        key: Hashable,
        query: Callable[[T], T],
        default: Callable[[], T],
        every: float = REFRESH,
    ) -> QueryResult[T]:
        """Return the last answer; begin a query from its last value if it is due, ``every`` so many seconds."""
        with self._lock:
            if (answer := self._answers.get(key)) is None:
                answer = self._answers[key] = QueryResult(default())
            now = answer.asked = time.monotonic()
            if answer.running is None or self._is_next(answer, now):
                answer.due = math.inf  # until it has ended
                answer.running = self.pool.submit(self._run, answer, query, every)
        return answer

    def settle(self, *answers: QueryResult[Any]) -> Sequence[QueryResult[Any]]:
        """Wait ``patience`` seconds for the answers that aren't known. Read values afterwards."""
        wait([each.running for each in answers if each.running and not each.known], self._patience)
        return answers

    def _is_next(self, answer: QueryResult[Any], now: float) -> bool:
        self._answers = {k: v for k, v in self._answers.items() if now - v.asked < _KEPT_SECONDS}
        shown = (each for each in self._answers.values() if now - each.asked < _SHOWN_SECONDS)
        first = min(shown, key=lambda each: each.due)
        if answer is not first or now < max(self._next, answer.due):
            return False
        self._next = now + PACE_SECONDS
        return True

    def _run(self, answer: QueryResult[T], query: Callable[[T], T], every: float) -> None:
        try:
            answer.value = query(answer.value)
            answer.known, answer.problem = True, ""
        except Exception as error:  # noqa: BLE001 - the page says it
            answer.problem = str(error) or repr(error)
            every = PACE_SECONDS
        answer.due = time.monotonic() + every


class PageRenderer:
    """Renders pages from answers that all open pages share; thread-safe.

    ``static``: the pages become files, and wait for all answers.
    """

    def __init__(self, open_workspace: Callable[[], Workspace], *, static: bool = False) -> None:
        self._open = open_workspace
        self._lock = threading.Lock()
        self._workspace, self._manifest = open_workspace(), {"": b""}
        self._fold = lru_cache(2)(lambda fold, *_: fold(self.workspace.ledger.entries()))
        self.queries = PageQueries(None if static else 0.3)
        self._templates = Environment(
            loader=PackageLoader("trainctl.ui"),
            autoescape=True,
            finalize=self.masked,
            undefined=ChainableUndefined,
        )
        self._templates.globals.update(policy=POLICY, style=STYLE, script=SCRIPT, static=static)
        self._templates.filters |= {
            "duration": _optional(format_duration),
            "bytes": _optional(format_bytes),
            "short": _optional("{:.4g}".format),
            "second": _optional(second),
            "time_left": _time_left,
            "progress": partial(progress_text, bar=False),
            "numbered": "#{}".format,
        }
        self._templates.policies["json.dumps_function"] = lambda value, **_: self.masked(
            json.dumps(value, allow_nan=False)
        )

    @property
    def workspace(self) -> Workspace:
        """The workspace, opened again after changes of the manifest, which may declare other secrets."""
        with self._lock:
            manifest = read_all_files(self._workspace.settings.directory)
            if manifest != self._manifest:
                self._workspace.__exit__()
                self._workspace, self._manifest = self._open(), manifest
            _ = self._workspace.ledger, self._workspace.agents  # opened by one thread
            return self._workspace

    def close(self) -> None:
        """Close the connections to nodes."""
        self.queries.pool.shutdown(wait=False, cancel_futures=True)
        self._workspace.__exit__()

    def state(self) -> State:
        """Return the state with unrecorded runs, for which nodes are only queried while there may be any."""
        workspace, state = self.workspace, self.workspace.ledger.state()
        if unrecorded_attempts(state):
            found = self.queries.get(
                "state", lambda _: with_unrecorded_runs(workspace), lambda: state
            )
            self.queries.settle(found)
            state = found.value
        return state

    def fold(self, fold: Callable[[Iterable[Entry]], T]) -> T:
        """Return a result over all entries of the state, made again when there are more."""
        ledger = self.workspace.ledger
        result: T = self._fold(fold, ledger.state().lineage, ledger.known().position)
        return result

    def render(self, name: str, answers: Sequence[QueryResult[Any]] = (), **variables: Any) -> str:
        """Render a template; the page reports the problems of the answers."""
        return self._templates.get_template(f"{name}.html").render(
            page=name,
            root="../" if name == "run" or variables.get("group") else "",
            project=", ".join(at.name for at in self.state().resources if at.kind is Kind.PROJECT),
            pending=any(not answer.known and not answer.problem for answer in answers),
            problems=dict.fromkeys(answer.problem for answer in answers if answer.problem),
            now=time.time(),
            **variables,
        )

    def start(self) -> str:
        """Return the first page."""
        statuses, ask = self.statuses(), self.queries.get
        nodes = ask("nodes", lambda _: nodes_json(report_nodes(self.workspace))["nodes"], list)
        return self.render(
            "start",
            self.queries.settle(statuses, nodes),
            statuses=statuses.value,
            pending_jobs=pending_jobs(self.workspace, statuses.value),
            nodes=nodes.value,
            usage=usage_rows(self.fold(run_usage), "total", 0.0, time.time()),
        )

    def nodes(self) -> str:
        """Return the page of nodes, cached weights and the mirror."""
        ask = self.queries.get
        nodes = ask("nodes", lambda _: nodes_json(report_nodes(self.workspace))["nodes"], list)
        mirror = ask(
            "mirror", lambda _: mirror_json(self.workspace.declared_mirror.store.inventory()), dict
        )
        return self.render(
            "nodes",
            self.queries.settle(nodes, mirror),
            nodes=nodes.value,
            gpus=[(node, gpu) for node in nodes.value for gpu in node["gpus"]],
            cached=[(node, row) for node in nodes.value for row in node["cache"]["listings"]],
            mirror=mirror.value,
        )

    def plan(self) -> str:
        """Return the page of the plan of now."""
        try:
            plan = plan_with_resumes(self.workspace, PlanOptions(), SurveyOptions(), {})
        except TrainctlError as error:
            return self.render("plan", errors=problem_lines(error))
        body = self._workspace.settings.redactor.redact("\n".join(plan_body(plan, time.time())))
        return self.render(
            "plan",
            heading=heading(plan, PAGE),
            changes=plan.has_changes,
            body=Markup(body),  # noqa: S704 - escaped
        )

    def statuses(self, group: Address | None = None) -> QueryResult[list[JobStatus]]:
        """Return the status of each job's newest run, of a matrix, or of all runs of a job."""

        def read(known: list[JobStatus] | None = None) -> list[JobStatus]:
            state = self.state()
            runs = [*newest_runs(state, group)]
            if not runs and group and (job := state.find_record(group)):
                runs = [JobRun(job, run) for run in runs_of(job)]
            return brief_statuses(self.workspace, runs, refresh=known is not None)

        return self.queries.get(("jobs", group), read, read)

    def masked(self, value: Any) -> Any:
        """Mask secrets of a text and write its control characters; Jinja escapes the result."""
        if isinstance(value, str) and not isinstance(value, Markup):
            return visible(self._workspace.settings.redactor.redact(value))
        return "" if value is None else value


def _optional(form: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda value: "" if value is None or isinstance(value, Undefined) else form(value)


def _time_left(statuses: Sequence[JobStatus]) -> float | None:
    """Estimate by reported progress, by the job's last completed run, or by those of the sweep."""
    now, completed = time.time(), [s.run for s in statuses if s.run.status is RunStatus.COMPLETED]
    ran = [run.phases["running"] for run in completed if "running" in run.phases]
    usual = sum(ran) / len(ran) if ran else None
    left = []
    for status in statuses:
        run, expected = status.run, status.forecast.get("running", usual)
        progress = run.now.get("progress")
        seconds = progress and progress["remaining_seconds"]
        if seconds is None and expected is not None:
            seconds = max(0.0, (run.started_at or now) + expected - now)
        if run.status.live and seconds is not None:
            left.append(seconds)
    running = sum(status.run.status is RunStatus.RUNNING for status in statuses)
    return max(*left, sum(left) / max(1, running)) if left else None
