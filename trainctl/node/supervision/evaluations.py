"""Run a job's commands once for each complete checkpoint of another job. See runs/DESIGN.md."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Set, Tuple, cast

from trainctl.base.checkpoints.layout import LOOSE
from trainctl.base.checkpoints.manifests import CheckpointManifest, RunCheckpoints
from trainctl.base.checkpoints.stores import store_errors
from trainctl.base.filesystem.files import make_directory, modified_at, remove_tree
from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.base.lease import FileLease
from trainctl.base.protocol.runs import EvaluationRow, RunSpec
from trainctl.base.system.processes import is_alive, process_record
from trainctl.base.system.syscalls import close_other_descriptors
from trainctl.errors import TrainctlError, UnknownOnNode
from trainctl.node.checkpoints.journals import EvaluationJournal, add_follower
from trainctl.node.checkpoints.loader import place_checkpoint
from trainctl.node.checkpoints.uploader import Uploader, open_store_for
from trainctl.node.containers import cleanup
from trainctl.node.metrics.progress import newest_values
from trainctl.node.runs import record as runs
from trainctl.node.runs.attempt import wait_for_stop
from trainctl.node.runs.points import PLACES
from trainctl.node.runs.record import NodeRun, evaluation_settings, followed_job, list_specs
from trainctl.node.scheduling.allocation import Allocation
from trainctl.node.scheduling.rank_coordination import RunOutcome
from trainctl.node.system.host import kill_marked

_POLL_SECONDS = 1.0
_BUCKET_POLL_SECONDS = 10.0  # each poll lists and reads the manifests
_STAND_IN_SECONDS = 0.5
_NAMED = 3
_REPORTED = 500
_KEYS = 32
_LIST_SECONDS = 10.0
_KEY = 64
_NEW: Mapping[str, Any] = {"exit_code": None, "error": None, "values": {}}


class StandIn:
    """A process that supervises the run if its supervisor is killed: it has the same request in memory.

    Not in a batch system, which ends all processes of a job with the first.
    """

    def __init__(self, run: NodeRun, spec: RunSpec, supervise: Callable[[], None]) -> None:
        self._run = run
        self._is_wanted = followed_job(spec) is not None and spec["batch"] is None
        self._supervise = supervise
        self._pid = 0

    def tend(self) -> None:
        """Start the process unless it runs."""
        if not self._is_wanted:
            return
        with contextlib.suppress(ChildProcessError):  # reaped with the job's orphans
            if self._pid and os.waitpid(self._pid, os.WNOHANG) == (0, 0):
                return
        supervisor = process_record()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                close_other_descriptors()
                while is_alive(supervisor):
                    time.sleep(_STAND_IN_SECONDS)
                time.sleep(_STAND_IN_SECONDS)  # the warden kills what was about to start
                if self._run.record.get("status") not in runs.ENDED:
                    self._supervise()
            finally:
                os._exit(0)

    def end(self) -> None:
        """End the process; the supervisor exits."""
        if self._pid:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)


class EvaluationHooks(NamedTuple):
    """What evaluations need of their supervisor. Its attempts at the commands call another chore every second."""

    attempt: Callable[[Callable[[], None]], Optional[RunOutcome]]
    record: Callable[..., None]
    pending: Callable[[str, Optional[str]], None]
    tend: Callable[[], None]


class EvaluationLoop:
    """The evaluations of one run, one after the other.

    It follows the run with whose key it was deployed, and later runs of that job on this host, such as resumed ones.
    """

    def __init__(
        self,
        run: NodeRun,
        spec: RunSpec,
        secrets: Mapping[str, str],
        data: Path,
        hooks: EvaluationHooks,
    ) -> None:
        self._run = run
        self._spec = spec
        self._secrets = secrets
        self._data = data
        self._hooks = hooks
        self._settings = evaluation_settings(spec)
        self._journal = EvaluationJournal(run)
        self._listed = (0.0, 0.0)
        self._over: Set[str] = set()
        self._followed: List[Tuple[NodeRun, RunSpec]] = []
        self._reported: List[EvaluationRow] = []

    def run(self, allocation: Allocation) -> Optional[RunOutcome]:
        """Evaluate until the followed runs have ended, and all their complete checkpoints are evaluated."""
        kill_marked(self._run.mark)  # left by a supervisor that was killed
        cleanup.remove_container(self._run.directory)
        for row in self._rows("running"):
            self._journal.write({**row, "status": "interrupted", "error": "supervisor killed"})
        pause = 0.0
        while not wait_for_stop(pause):
            self._hooks.tend()
            pause = 0.0
            try:
                is_over = self._find()
                if self._rows("queued"):
                    if not allocation.acquire():
                        break
                    outcome = self._evaluate_next()
                    allocation.release()
                    if outcome is None or outcome.status == runs.STOPPED:
                        return outcome
                elif is_over:
                    self._prune()
                    return self._outcome()
                else:
                    self._hooks.pending(
                        f"waits for checkpoints of {followed_job(self._spec)}", None
                    )
                    pause = self._poll_seconds
            except (TrainctlError, OSError) as error:
                allocation.release()
                if isinstance(error, TrainctlError) and not error.retryable:
                    raise
                self._hooks.pending(f"waits, as a request failed: {_summary(error)}", None)
                pause = _BUCKET_POLL_SECONDS
        return RunOutcome(runs.STOPPED)

    def _evaluate_next(self) -> Optional[RunOutcome]:
        """Evaluate the oldest waiting checkpoint, or the newest; None if another supervisor does."""
        self._find()  # others may be complete since the run has begun to wait
        queued = self._rows("queued")
        if self._settings["newest_only"]:
            for older in queued[:-1]:
                self._journal.write({**older, "status": "skipped"})
            queued = queued[-1:]
        row = queued[0]
        try:
            self._place(row)
        except TrainctlError as error:
            if error.retryable:
                raise
            outcome: Optional[RunOutcome] = RunOutcome(runs.FAILED, error=_summary(error))
        else:
            outcome = self._attempt(row)
        if outcome is not None:
            words = {runs.COMPLETED: "completed", runs.STOPPED: "interrupted"}
            word = words.get(outcome.status, "failed")
            values = newest_values(self._run) if word == "completed" else {}
            values = {key[:_KEY]: values[key] for key in sorted(values.keys() - PLACES)[:_KEYS]}
            ended = {"status": word, "exit_code": outcome.exit_code, "error": outcome.error}
            self._journal.write(cast("EvaluationRow", {**row, **ended, "values": values}))
            self._report()
        return outcome

    def _attempt(self, row: EvaluationRow) -> Optional[RunOutcome]:
        """Run the commands; the child that executes them records the start."""
        running: EvaluationRow = {**row, "status": "running"}
        self._journal.rows[row["run"], row["name"]] = running
        self._run.evaluated_step = row["step"]
        self._run.journal_start = lambda: self._journal.write(running)
        self._report()
        log = self._run.log(int(self._spec["rank"]))
        try:
            make_directory(log.parent)
            with log.open("a") as stream:
                stream.write(f"==> {row['name']}, step {row['step']} <==\n")
            return self._hooks.attempt(self._find_meanwhile)
        except (TrainctlError, OSError) as error:
            return RunOutcome(runs.FAILED, error=_summary(error))

    def _find_meanwhile(self) -> None:
        """Find checkpoints that are complete during an evaluation, unless that needs requests."""
        if self._poll_seconds == _POLL_SECONDS:
            with contextlib.suppress(TrainctlError, OSError):  # the next evaluation reports it
                self._find()

    def _find(self) -> bool:
        """Add complete checkpoints to the journal, the oldest first; True if there will be no more."""
        # a new run has its specification a moment after its directory
        listed = modified_at(self._run.layout.runs), time.monotonic() // _LIST_SECONDS
        if listed != self._listed:
            self._listed = listed
            self._followed = self._list_followed()
        for run, _ in self._followed:
            status = run.status() if run.key not in self._over else None
            if not status or status["status"] in (*runs.ENDED, runs.LOST):
                self._over.add(run.key)
        for run, spec in self._followed:
            is_over = run.key in self._over
            add_follower(run, self._run)
            parts: Dict[str, List[CheckpointManifest]] = {}
            for manifest in self._source(spec).manifests():
                parts.setdefault(manifest["name"], []).append(manifest)
            most = max(map(len, parts.values()), default=0)
            for name, ranks in parts.items():
                key = (spec["store"]["prefix"], name)
                # another rank may still upload its part, or have deleted it; perhaps not all ranks save
                is_whole = len(ranks) >= (most if is_over else self._ranks(spec))
                if is_whole and key not in self._journal.rows and _is_evaluated(ranks):
                    is_due = (len(self._journal.rows) + 1) % self._settings["every"] == 0
                    row = {"run": key[0], "name": name, "step": ranks[0]["step"], **_NEW}
                    row["status"] = "queued" if is_due else "skipped"
                    self._journal.write(cast("EvaluationRow", row))
        self._report()
        return all(run.key in self._over for run, _ in self._followed)

    def _list_followed(self) -> List[Tuple[NodeRun, RunSpec]]:
        job = (self._spec["lineage"], followed_job(self._spec))
        keys = {each["key"] for each in self._spec["follows"] if each["address"] == job[1]}
        of_job = [
            (run, spec)
            for run, spec in list_specs(self._run.layout)
            if run.key in keys or (spec["lineage"], spec["address"]) == job
        ]
        first = min((spec["number"] for run, spec in of_job if run.key in keys), default=0)
        later = [(run, spec) for run, spec in of_job if spec["number"] >= first]
        return sorted(later, key=lambda pair: pair[1]["number"])

    def _source(self, spec: RunSpec) -> RunCheckpoints:
        store = open_store_for(spec["store"], self._data, self._secrets)
        return RunCheckpoints(store, spec["store"]["prefix"])

    def _ranks(self, spec: RunSpec) -> int:
        """How many ranks' parts of a checkpoint can be seen here."""
        if spec["store"].get("url") is not None:
            return spec["group_size"]
        local = self._data / "checkpoints" / spec["store"]["prefix"]
        return len([path for path in local.glob("rank-*") if path.is_dir()])

    def _report(self) -> None:
        rows = [*self._journal.rows.values()][-_REPORTED:]
        if rows != self._reported:
            self._reported = rows
            self._hooks.record(evaluations=rows)

    def _rows(self, *statuses: str) -> List[EvaluationRow]:
        return [row for row in self._journal.rows.values() if row["status"] in statuses]

    def _place(self, row: EvaluationRow) -> None:
        """Put the checkpoint, and no other, where the commands find it."""
        remove_tree(self._run.loaded)
        specs = [spec for _, spec in self._followed if spec["store"]["prefix"] == row["run"]]
        with store_errors(self._spec["store"]):
            sources = map(self._source, specs)
            parts = [(each, part) for each in sources for part in each.manifests()]
            counts = Counter(part["name"] for _, part in parts)
            if counts[row["name"]] < max(counts.values(), default=1):
                raise UnknownOnNode(f"{row['name']} was deleted before it was evaluated")
            for source, part in parts:
                if part["name"] == row["name"]:
                    job = row["run"].split("/")[1]
                    place_checkpoint(self._run, self._spec, job, source, part, self._data)

    def _prune(self) -> None:
        """Apply the retention of the ended runs to the checkpoints that waited."""
        with contextlib.suppress(TrainctlError, OSError):
            for run, spec in self._followed:
                with FileLease(run.directory / "uploader.lock"):
                    Uploader(run, spec, self._secrets, self._data).prune()

    @property
    def _poll_seconds(self) -> float:
        url = str((self._spec["store"] or {}).get("url") or "")
        return _BUCKET_POLL_SECONDS if url.startswith("s3:") else _POLL_SECONDS

    def _outcome(self) -> RunOutcome:
        bad = self._rows("failed", "interrupted")
        if not bad:
            return RunOutcome(runs.COMPLETED, 0)
        names = ", ".join(f"{row['name']} ({row['error']})" for row in bad[:_NAMED])
        code = next((row["exit_code"] for row in bad if row["exit_code"]), None)
        count = len(bad) + len(self._rows("completed"))
        text = f"{len(bad)} of {count} evaluations did not complete: {names}"
        return RunOutcome(runs.FAILED, code, text)


def _summary(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _is_evaluated(ranks: List[CheckpointManifest]) -> bool:
    """Whether a checkpoint has a step, and is finished on all ranks."""
    has_step = ranks[0].get("step") is not None and ranks[0]["name"] != LOOSE
    return has_step and not any(part.get("unfinished") for part in ranks)
