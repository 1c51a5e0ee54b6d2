"""Run a job's commands once for each complete checkpoint of another run. See runs/DESIGN.md."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, cast

from trainctl.base.checkpoints.layout import LOOSE
from trainctl.base.checkpoints.manifests import CheckpointManifest, RunCheckpoints
from trainctl.base.filesystem.files import make_directory
from trainctl.base.lease import FileLease
from trainctl.base.protocol.runs import CheckpointLoad, EvaluationRow, RunSpec
from trainctl.errors import TrainctlError, UnknownOnNode
from trainctl.node.checkpoints.loader import load_checkpoints
from trainctl.node.checkpoints.uploader import Uploader, open_store_for
from trainctl.node.containers import cleanup
from trainctl.node.metrics.progress import newest_values
from trainctl.node.runs import record as runs
from trainctl.node.runs.attempt import wait_for_stop
from trainctl.node.runs.points import PLACES
from trainctl.node.runs.record import NodeRun, evaluated_run
from trainctl.node.scheduling.allocation import Allocation
from trainctl.node.scheduling.rank_coordination import RunOutcome
from trainctl.node.system.host import kill_marked

_POLL_SECONDS = 1.0
_BUCKET_POLL_SECONDS = 10.0  # each poll lists and reads the manifests
_KEYS = 32
_KEY = 64
AttemptFn = Callable[[Callable[[], None]], Optional[RunOutcome]]
"""An attempt at the commands, which calls a chore every second."""
_NEW: Mapping[str, Any] = {"exit_code": None, "error": None, "values": {}}
_STATUS = {runs.COMPLETED: "completed", runs.STOPPED: "interrupted"}


class EvaluationLoop:
    """The evaluations of one run, one after the other."""

    def __init__(self, run: NodeRun, spec: RunSpec, secrets: Mapping[str, str], data: Path) -> None:
        self._run = run
        self._spec = spec
        self._secrets = secrets
        self._data = data
        self._settings: Mapping[str, Any] = spec["job"]["for_each_checkpoint"]
        self._rows = run.evaluations
        self._followed = NodeRun(run.layout, evaluated_run(spec))
        saving = self._followed.spec
        if saving is None:
            raise UnknownOnNode(f"run {self._followed.key} not found on the node")
        self._saving: RunSpec = saving
        store = open_store_for(saving["store"], data, secrets)
        self._checkpoints = RunCheckpoints(store, saving["store"]["prefix"])
        self._in_bucket = str(saving["store"].get("url")).startswith("s3:")

    def run(
        self,
        allocation: Allocation,
        attempt: AttemptFn,
        report_pending: Callable[[str, Optional[str]], None],
    ) -> Optional[RunOutcome]:
        """Evaluate until the followed run has ended, and all its complete checkpoints are evaluated."""
        kill_marked(self._run.mark)  # left by a supervisor that was killed
        cleanup.remove_container(self._run.directory)
        self._run.write_evaluations(self._rows)  # retention spares what isn't evaluated
        for row in self._with_status("running"):
            self._write(row, status="interrupted", error="supervisor killed")
        pause = 0.0
        while not wait_for_stop(pause):
            try:
                is_over = self._find()
                if self._with_status("queued"):
                    pause = 0.0
                    if not allocation.acquire():
                        break
                    outcome = self._evaluate_next(attempt)
                    allocation.release()
                    if outcome is None or outcome.status == runs.STOPPED:
                        return outcome
                elif is_over:
                    self._prune()
                    return self._outcome()
                else:
                    report_pending(f"waits for checkpoints of {self._settings['job']}", None)
                    pause = _BUCKET_POLL_SECONDS if self._in_bucket else _POLL_SECONDS
            except (TrainctlError, OSError) as error:
                allocation.release()
                if not getattr(error, "retryable", True):
                    raise
                report_pending(f"waits, as a request failed: {_summary(error)}", None)
                pause = _BUCKET_POLL_SECONDS
        return RunOutcome(runs.STOPPED)

    def _find(self) -> bool:
        """Add complete checkpoints to the rows, the oldest first; True if there will be no more."""
        status = self._followed.status()
        is_over = status is None or status["status"] in (*runs.ENDED, runs.LOST)
        parts: Dict[str, List[CheckpointManifest]] = {}
        for manifest in self._checkpoints.manifests():
            parts.setdefault(manifest["name"], []).append(manifest)
        # another rank may still upload its part, or have deleted it; perhaps not all ranks save
        if is_over:
            ranks = max(map(len, parts.values()), default=0)
        elif self._saving["store"].get("url") is not None:
            ranks = self._saving["group_size"]
        else:  # those that are stored here
            local = self._data / "checkpoints" / self._checkpoints.prefix
            ranks = len([*local.glob("rank-*")])
        known = {LOOSE, *(row["name"] for row in self._rows)}
        for name, of_ranks in parts.items():
            step = of_ranks[0].get("step")
            is_finished = not any(part.get("unfinished") for part in of_ranks)
            if len(of_ranks) >= ranks and is_finished and step is not None and name not in known:
                is_due = (len(self._rows) + 1) % self._settings["every"] == 0
                place = {"run": self._checkpoints.prefix, "name": name, "step": step}
                self._rows.append(cast("EvaluationRow", {**place, **_NEW}))
                self._write(self._rows[-1], status="queued" if is_due else "skipped")
        return is_over

    def _find_meanwhile(self) -> None:
        """Find checkpoints that are complete during an evaluation, unless that needs requests."""
        if not self._in_bucket:
            with contextlib.suppress(TrainctlError, OSError):  # the next evaluation reports it
                self._find()

    def _evaluate_next(self, attempt: AttemptFn) -> Optional[RunOutcome]:
        """Evaluate the oldest waiting checkpoint, or the newest; None if another supervisor does."""
        self._find()  # others may be complete since the run has begun to wait
        queued = self._with_status("queued")
        *older, row = queued if self._settings["newest_only"] else queued[:1]
        for each in older:
            self._write(each, status="skipped")
        try:
            self._load(row)
            self._write(row, status="running")
            self._run.evaluated_step = row["step"]
            outcome = attempt(self._find_meanwhile)
        except (TrainctlError, OSError) as error:
            if row["status"] == "queued" and getattr(error, "retryable", True):
                raise
            outcome = RunOutcome(runs.FAILED, error=_summary(error))
        if outcome is not None:
            status = _STATUS.get(outcome.status, "failed")
            found = newest_values(self._run) if status == "completed" else {}
            keys = sorted(found.keys() - PLACES)[:_KEYS]
            values = {key[:_KEY]: found[key] for key in keys}
            ended = {"exit_code": outcome.exit_code, "error": outcome.error, "values": values}
            self._write(row, status=status, **ended)
        return outcome

    def _load(self, row: EvaluationRow) -> None:
        """Put the checkpoint, and no other, where the commands find it, and name it in the log."""
        load: CheckpointLoad = {**self._spec["load"][0], "name": row["name"], "optional": False}
        load["runs"], load["place"] = [row["run"]], self._saving["store"]
        load_checkpoints(self._run, {**self._spec, "load": [load]}, self._secrets, self._data)
        log = self._run.log(int(self._spec["rank"]))
        make_directory(log.parent)
        with log.open("a") as stream:
            stream.write(f"==> {row['name']}, step {row['step']} <==\n")

    def _prune(self) -> None:
        """Apply the retention of the ended run to the checkpoints that waited."""
        lease = FileLease(self._followed.directory / "uploader.lock")
        with contextlib.suppress(TrainctlError, OSError), lease:
            Uploader(self._followed, self._saving, self._secrets, self._data).prune()

    def _with_status(self, *statuses: str) -> List[EvaluationRow]:
        return [row for row in self._rows if row["status"] in statuses]

    def _write(self, row: EvaluationRow, **changes: Any) -> None:
        row.update(changes)  # type: ignore[typeddict-item]
        self._run.write_evaluations(self._rows)

    def _outcome(self) -> RunOutcome:
        bad = self._with_status("failed", "interrupted")
        if not bad:
            return RunOutcome(runs.COMPLETED, 0)
        names = ", ".join(f"{row['name']} ({row['error']})" for row in bad[:3])
        code = next((row["exit_code"] for row in bad if row["exit_code"]), None)
        count = len(bad) + len(self._with_status("completed"))
        text = f"{len(bad)} of {count} evaluations did not complete: {names}"
        return RunOutcome(runs.FAILED, code, text)


def _summary(error: Exception) -> str:
    return str(error).partition("\n")[0]
