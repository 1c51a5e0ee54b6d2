"""Ends attempts early: when the time of a held place is over, or when a disk is full."""

from __future__ import annotations

import os
import time
from typing import Any, Callable, Dict, Optional

from trainctl.base.clock import Stopwatch
from trainctl.base.filesystem.files import read_json
from trainctl.base.protocol.runs import RunSpec
from trainctl.base.units import format_bytes
from trainctl.node.metrics.sampler import disk_usage, job_directory
from trainctl.node.runs.attempt import Attempt, AttemptEnd
from trainctl.node.runs.record import ENDED, NodeRun, checkpoint_bytes, list_runs
from trainctl.node.scheduling.rank_coordination import AttemptPolicy

_SHOWN_SECONDS = 1.0


class HeldPlace:
    """The place of one run; ``record`` updates the run's record."""

    def __init__(self, run: NodeRun, spec: RunSpec, record: Callable[..., None]) -> None:
        self._run = run
        self._session = spec["job"].get("interactive_session")
        self._attempts = AttemptPolicy.of(spec).max_attempts
        self._record = record
        self._began: Optional[float] = None
        self._until = 0.0

    def trigger(self, number: int) -> str:
        """Why the shell of an attempt waits after its commands; empty if it doesn't."""
        return self._session["trigger"] if self._session and number >= self._attempts else ""

    def tend(self, attempt: Attempt, clock: Stopwatch) -> None:
        """End the shell once its time is over; a timeout counts from the start with ``on_startup``."""
        code = self._run.held_code
        if self._session is None or code is None or attempt.stopped:
            return
        if self._began is None:
            self._began = 0.0 if self._session["trigger"] == "on_startup" else clock.seconds
        own = (
            self._session["timeout_minutes"] * 60
            if self._session["trigger"] != "on_demand"
            else 0.0
        )
        end = self._began + own + self._run.session_extension
        if clock.seconds >= end:
            attempt.release()
            return
        until = clock.wall + end
        if abs(until - self._until) > _SHOWN_SECONDS:
            self._until = until
            session: Any = {"until": until, "exit_code": code}
            self._record(session=session)

    def result(self, end: AttemptEnd) -> AttemptEnd:
        """Return how the commands ended, if the shell waited afterwards."""
        code = self._run.held_code
        return end if code is None else end._replace(code=code, stopped=False, expired=False)


_RESERVE_BYTES = 2**30
_RESERVE_SHARE = 100
_MEASURE_SECONDS = 2.0  # the supervisor does nothing else meanwhile
_GRACE_SECONDS = 10.0


class DiskGuard:
    """Checks the disks of one run; the reserve is 1 % of a disk and at most 1 GiB."""

    def __init__(self, run: NodeRun, spec: RunSpec) -> None:
        self._run = run
        self.reason: Optional[str] = None
        """Why it stopped the job."""
        self._limit = checkpoint_bytes(spec)
        self._checkpoints = job_directory(spec, "BT_CHECKPOINT_DIR")

    def tend(self, attempt: Attempt) -> None:
        """End the attempt if it must stop; call every second."""
        if attempt.stopped:
            return
        used = _usage(self._run).get("checkpoints", 0) if self._limit else 0
        if self._limit and used > self._limit:
            allowed = f"volume_size_gib allows {format_bytes(self._limit)}"
            self.reason = f"its checkpoints take {format_bytes(used)}, {allowed}"
        else:
            self.reason = self._full_disk()
        if self.reason:
            self._run.request_stop(grace_seconds=_GRACE_SECONDS, interrupted=self.reason)
            attempt.end()

    def _full_disk(self) -> Optional[str]:
        for paths in ([self._run.work, self._run.scratch], self._checkpoints):
            if not paths or not paths[0].exists():
                continue
            disk = os.statvfs(paths[0])
            free, size = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
            reserve = min(_RESERVE_BYTES, size // _RESERVE_SHARE)
            if free >= reserve:
                continue
            own = disk_usage(paths, time.monotonic() + _MEASURE_SECONDS)
            if own is not None and own <= reserve:
                continue
            if own is None or own >= max(
                (
                    sum(_usage(run).values())
                    for run in list_runs(self._run.layout)
                    if run.key != self._run.key and run.record.get("status") not in ENDED
                ),
                default=0,
            ):
                used = "many files" if own is None else format_bytes(own)
                return f"it filled the disk of {paths[0]}: {format_bytes(free)} free, {used} of the run"
        return None


def _usage(run: NodeRun) -> Dict[str, int]:
    """Return the bytes by directory that the sampler measured last."""
    usage = (read_json(run.disk_usage) or {}).get("usage", {})
    return {name: size for name, size in usage.items() if size}
