"""Uploader process of a run: started, restarted and awaited by its supervisor."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping, Optional

from trainctl.base.checkpoints.stores import StoreUnavailable, store_errors
from trainctl.base.clock import Stopwatch
from trainctl.base.filesystem.space import from_os_error
from trainctl.base.lease import FileLease
from trainctl.base.protocol.runs import RunSpec, UploadStatus
from trainctl.base.system.processes import is_alive
from trainctl.base.system.syscalls import fork_child
from trainctl.errors import LockHeld, StorageError, TrainctlError
from trainctl.node.checkpoints.monitor import RunEnd
from trainctl.node.checkpoints.upload_journal import COMPLETED, SYNCING, UploadJournal
from trainctl.node.checkpoints.uploader import Uploader
from trainctl.node.runs import record as runs
from trainctl.node.runs.record import (
    NodeRun,
    keeps_checkpoints,
    list_specs,
    upload_seconds,
    upload_status,
)

_SHORTENED_SECONDS = 10.0
_POLL_SECONDS = 1.0
_WAIT_SECONDS = 0.1
_RESTART_SECONDS = 5.0
_MAX_PAUSE_SECONDS = 30.0
_SIGNAL_BASE = 128
_TERMINATED = (-signal.SIGTERM, _SIGNAL_BASE + signal.SIGTERM)
_SIGKILLED = (-signal.SIGKILL, _SIGNAL_BASE + signal.SIGKILL)
_EXIT_DONE, _EXIT_REFUSED = 0, 3


class UploaderProcess:
    """A supervisor's handle on its uploader; no-op without a checkpoint store."""

    def __init__(self, run: NodeRun, spec: RunSpec, secrets: Mapping[str, str], data: Path) -> None:
        self._run = run
        self._spec = spec
        self._secrets = secrets
        self._data = data
        self._pid = 0
        self._control = -1
        self._started_at = 0.0

    def start_and_announce(self) -> None:
        """Start the process before the job; TrainctlError if the store refuses uploads."""
        if keeps_checkpoints(self._spec):
            with store_errors(self._spec["store"]):
                self._uploader().announce()
            self._start()

    def restart_if_dead(self) -> None:
        """Restart it if it died."""
        if self._pid and self._exit_code() is not None and self._may_restart:
            with contextlib.suppress(OSError):
                self._start()

    def finish(self, record: Mapping[str, Any], at: float, *, hurried: bool) -> None:
        """Wait for the ended job's uploads up to ``upload_timeout``; stop the process.

        SIGTERM or ``hurried`` shorten the wait. ``sync.json`` reports pending checkpoints.
        """
        if not keeps_checkpoints(self._spec):
            return
        timeout = upload_seconds(self._spec)
        timeout = min(timeout, _SHORTENED_SECONDS) if hurried else timeout
        end = RunEnd(ended_orderly(record) and not hurried, at, dict(record))
        clock = Stopwatch()
        code: Optional[int] = None
        notified = 0
        while code not in (_EXIT_DONE, _EXIT_REFUSED) and clock.seconds < timeout:
            if not self._pid and (not notified or self._may_restart):
                self._start()
            if self._pid and notified != self._pid:
                notified = self._pid
                with contextlib.suppress(BrokenPipeError):
                    os.write(self._control, json.dumps(end._asdict()).encode() + b"\n")
            received = signal.sigtimedwait({signal.SIGTERM, signal.SIGCHLD}, _WAIT_SECONDS)
            if received is not None and received.si_signo == signal.SIGTERM:
                break
            code = self._exit_code() if self._pid else None
        self._kill()
        if code != _EXIT_DONE:
            timed_out = f"timed out after {clock.seconds:.0f} s; `trainctl checkpoints upload` uploads the rest"
            with contextlib.suppress(TrainctlError, OSError):
                error = upload_status(self._run.directory).get("error")
                self._uploader().report_failure(str(error or timed_out))

    @property
    def _may_restart(self) -> bool:
        return time.monotonic() - self._started_at > _RESTART_SECONDS

    def _uploader(self) -> Uploader:
        return Uploader(self._run, self._spec, self._secrets, self._data)

    def _start(self) -> None:
        reader, writer = os.pipe()
        self._started_at = time.monotonic()
        self._pid, self._control = fork_child(lambda: self._work(reader), reader), writer
        os.close(reader)

    def _work(self, control: int) -> int:
        for run in runs_to_upload(self._run, self._spec):
            with contextlib.suppress(TrainctlError, OSError):
                upload_remaining(run, self._secrets, self._data)
        text = b""

        def wait(seconds: float) -> Optional[RunEnd]:
            """Wait for the line written when the run has ended; EOFError if the supervisor exited."""
            nonlocal text
            if select.select([control], [], [], seconds)[0]:
                data = os.read(control, 65536)
                if not data:
                    raise EOFError
                text += data
            return RunEnd(**json.loads(text)) if text.endswith(b"\n") else None

        with FileLease(self._run.directory / "uploader.lock"):
            return run_uploader(self._uploader(), wait)

    def _exit_code(self) -> Optional[int]:
        """The exit code; None while the process runs."""
        try:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
        except ChildProcessError:  # reaped with the job's orphans
            pid, status = self._pid, -1
        if not pid:
            return None
        self._forget()
        return os.WEXITSTATUS(status) if status >= 0 and os.WIFEXITED(status) else -1

    def _kill(self) -> None:
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._pid, 0)
            self._forget()

    def _forget(self) -> None:
        os.close(self._control)
        self._pid, self._control = 0, -1


def run_uploader(uploader: Uploader, wait: Callable[[float], Optional[RunEnd]]) -> int:
    """Run rounds until the run has ended and all is uploaded; the process's exit code.

    ``wait`` waits some seconds for the run's end, and returns None if it has not ended.
    """
    end: Optional[RunEnd] = None
    pause = _POLL_SECONDS
    while True:
        try:
            done = uploader.run_round(end)
            if end is not None and done:
                uploader.finish(end)
                return _EXIT_DONE
            pause = _POLL_SECONDS
        except (TrainctlError, OSError) as error:
            failure = error if isinstance(error, TrainctlError) else from_os_error(error, "/")
            with contextlib.suppress(OSError):
                uploader.report_failure(f"{failure.summary}. {failure.detail}".strip())
            if end is not None and isinstance(failure, StorageError) and not failure.retryable:
                return _EXIT_REFUSED
            pause = min(pause * 2, _MAX_PAUSE_SECONDS)
        try:
            end = wait(pause if end is None else min(pause, 2.0)) or end
        except EOFError:
            return _EXIT_REFUSED


def runs_to_upload(run: NodeRun, spec: RunSpec) -> Iterator[NodeRun]:
    """Ended runs of the same job on this node with checkpoints that are not uploaded."""
    for other, other_spec in list_specs(run.layout):
        same = all(other_spec[name] == spec[name] for name in ("lineage", "address", "rank"))
        is_pending = upload_status(other.directory).get("state") == SYNCING
        if (
            other.key != run.key
            and same
            and keeps_checkpoints(other_spec)
            and is_pending
            and run_end(other) is not None
        ):
            yield other


def run_end(run: NodeRun) -> Optional[RunEnd]:
    """End of a run; None while it is live.

    A lost run ended with its uploader's last heartbeat.
    """
    record = run.record
    if is_alive(run.supervisor):
        return None
    if record.get("status") in runs.ENDED:
        return RunEnd(ended_orderly(record), float(record.get("ended_at") or 0.0), record)
    last_heartbeat = UploadJournal(run.directory).last_heartbeat
    return RunEnd(False, last_heartbeat, {**record, "status": runs.LOST}) if run.started else None


def ended_orderly(record: Mapping[str, Any]) -> bool:
    """Check that a job ended without being killed: on its own or on SIGTERM."""
    code = record.get("exit_code")
    if record.get("status") == runs.STOPPED:
        return code not in _SIGKILLED
    return isinstance(code, int) and (0 <= code <= _SIGNAL_BASE or code in _TERMINATED)


def upload_remaining(run: NodeRun, secrets: Mapping[str, str], data: Path) -> UploadStatus:
    """Upload checkpoints of an ended run; its upload status.

    TrainctlError if the run is live or the store refuses.
    """
    spec = run.spec
    if spec is None or not keeps_checkpoints(spec):
        return {}
    end = run_end(run)
    if end is None:
        raise LockHeld(f"run {run.key} is live", "Its own uploader uploads its checkpoints.")
    if upload_status(run.directory).get("state") != COMPLETED:
        with FileLease(run.directory / "uploader.lock"):
            uploader = Uploader(run, spec, secrets, data)
            clock = Stopwatch()
            timeout = upload_seconds(spec)
            while not uploader.run_round(end):
                if clock.seconds > timeout:
                    raise StoreUnavailable(f"checkpoint upload timed out after {timeout:.0f} s")
                time.sleep(_POLL_SECONDS)
            uploader.finish(end)
    return upload_status(run.directory)
