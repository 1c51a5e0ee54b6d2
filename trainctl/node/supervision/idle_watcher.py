"""Watcher of a machine that costs money: ends it when idle, and stops runs when the platform takes it back."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Callable, Dict, List, Optional, Sequence

from trainctl.base.protocol.idle_shutdown import IdleShutdownSettings
from trainctl.node.checkpoints.upload_journal import COMPLETED
from trainctl.node.checkpoints.uploader_process import UPLOAD_SECONDS, keeps_checkpoints
from trainctl.node.runs.record import RUNNING, NodeRun, list_specs, upload_status
from trainctl.node.supervision.idle_shutdown import MachineUse
from trainctl.node.system.layout import Layout

_TICK_SECONDS = 2.0
_MIN_TICK_SECONDS = 0.1
_OVERDUE_SECONDS = 900.0
"""How long after its time limit, grace and upload a run keeps the machine."""
_ROOT_MISSING_SECONDS = 60.0
_RETRY_SECONDS = 60.0
_COMMAND_SECONDS = 60.0


def execute(argv: Sequence[str]) -> None:
    """Run a command to its end; log a failure."""
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False
        )
        problem = done.stderr if done.returncode else ""
    except (OSError, subprocess.SubprocessError) as error:
        problem = str(error)
    if problem:
        sys.stderr.write(f"{argv[0]}: {problem.strip()}\n")
        sys.stderr.flush()


class IdleWatcher:
    """Runs ``shutdown`` after ``idle_timeout`` without use; twice as long while checkpoints are not uploaded, then ``stop``.

    Time is monotonic and in memory: a boot and a change of the clock start a new ``idle_timeout``.
    """

    def __init__(
        self,
        use: MachineUse,
        settings: IdleShutdownSettings,
        clock: Callable[[], float] = time.monotonic,
        execute: Callable[[Sequence[str]], None] = execute,
    ) -> None:
        self._use = use
        self._settings = settings
        self._clock = clock
        self._execute = execute
        self._token = use.last_used
        self._used_at = clock()
        self._root_seen_at = clock()
        self._running_since: Dict[str, float] = {}

    def run(self) -> None:
        """Watch until the machine's directory has been deleted."""
        while self.step():
            time.sleep(self._pause)

    def step(self) -> bool:
        """Check once; False if there is nothing more to watch."""
        now, use = self._clock(), self._use
        self._settings = use.settings or self._settings
        live = [run for run in use.live_runs() if not self._is_overdue(run, now)]
        if live or use.is_called():
            use.renew()
            self._used_at = now
        elif use.last_used != self._token:
            self._used_at = now
        self._token = use.last_used
        if use.layout.root.is_dir():
            self._root_seen_at = now
        elif now - self._root_seen_at >= _ROOT_MISSING_SECONDS:
            self._execute(self._settings["shutdown"])
            return False
        command = self._command(now - self._used_at)
        if command:
            self._execute(command)
            self._used_at = now - self._settings["idle_timeout"] + _RETRY_SECONDS
            return use.layout.root.is_dir()
        return True

    @property
    def _pause(self) -> float:
        return max(_MIN_TICK_SECONDS, min(_TICK_SECONDS, self._settings["idle_timeout"] / 10))

    def _command(self, idle: float) -> Optional[List[str]]:
        """Return the command that ends the machine now, if any."""
        settings = self._settings
        if idle < settings["idle_timeout"]:
            return None
        if not has_unsaved_checkpoints(self._use.layout):
            return settings["shutdown"]
        return (
            (settings["stop"] or settings["shutdown"])
            if idle >= 2 * settings["idle_timeout"]
            else None
        )

    def _is_overdue(self, run: NodeRun, now: float) -> bool:
        """Check whether a run's supervisor failed to end it long after its time limit."""
        spec = run.spec
        limit = spec["max_duration_seconds"] if spec else None
        if spec is None or limit is None or run.record.get("status") != RUNNING:
            return False
        upload = float(spec["store"].get("upload_timeout", UPLOAD_SECONDS))
        since = self._running_since.setdefault(run.key, now)
        return now - since > limit + run.grace_seconds(spec) + upload + _OVERDUE_SECONDS


def has_unsaved_checkpoints(layout: Layout) -> bool:
    """Check for started runs with checkpoints that are on this machine only."""
    for run, spec in list_specs(layout):
        if keeps_checkpoints(spec) and run.started:
            is_local = spec["store"].get("url") is None
            if is_local or upload_status(run.directory).get("state") != COMPLETED:
                return True
    return False
