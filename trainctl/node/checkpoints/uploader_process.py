"""The process that uploads a run's checkpoints: started by the supervisor, told when the run has ended, waited for."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from pathlib import Path
from typing import Any, Iterator, Mapping, Optional

from trainctl.base.checkpoints.stores import store_errors
from trainctl.base.clock import Stopwatch
from trainctl.base.failure import Failure, from_os_error
from trainctl.base.lease import FileLease
from trainctl.base.protocol.runs import UploadStatus
from trainctl.base.protocol.spec import RunSpec
from trainctl.base.system.processes import is_alive
from trainctl.base.system.syscalls import fork_child
from trainctl.node.checkpoints.monitor import RunEnd
from trainctl.node.checkpoints.upload_journal import COMPLETED, SYNCING, UploadJournal
from trainctl.node.checkpoints.uploader import Uploader
from trainctl.node.runs import record as runs
from trainctl.node.runs.record import NodeRun, list_specs, upload_status

UPLOAD_SECONDS = 3600.0
_SHORTENED_SECONDS = 10.0
_POLL_SECONDS = 1.0
_WAIT_SECONDS = 0.1
_AGAIN_SECONDS = 5.0
_LONGEST_PAUSE_SECONDS = 30.0
_SIGNAL_BASE = 128
_TERMINATED = (-signal.SIGTERM, _SIGNAL_BASE + signal.SIGTERM)
_SIGKILLED = (-signal.SIGKILL, _SIGNAL_BASE + signal.SIGKILL)
_EXIT_DONE, _EXIT_REFUSED = 0, 3


class UploaderProcess:
    """What a supervisor does about its run's checkpoints; nothing if the run keeps none."""

    def __init__(self, run: NodeRun, spec: RunSpec, secrets: Mapping[str, str], data: Path) -> None:
        self._run = run
        self._spec = spec
        self._secrets = secrets
        self._data = data
        self._pid = 0
        self._control = -1
        self._tried = 0.0

    def begin(self) -> None:
        """Start it before anything is trained; Failure if the store refuses uploads."""
        if keeps_checkpoints(self._spec):
            with store_errors(self._spec["store"]):
                self._uploader().announce()
            self._start()

    def restart_if_dead(self) -> None:
        """Restart it if it died."""
        if self._pid and self._ended() is not None and self._may_restart:
            with contextlib.suppress(OSError):
                self._start()

    def drain(self, record: Mapping[str, Any], at: float, *, hurried: bool) -> None:
        """Wait until all checkpoints of the ended job are uploaded, within ``upload_timeout``; then the process is gone.

        SIGTERM, or ``hurried``, ends the wait sooner. ``sync.json`` reports what is left.
        """
        if not keeps_checkpoints(self._spec):
            return
        longest = float(self._spec["store"].get("upload_timeout", UPLOAD_SECONDS))
        patience = min(longest, _SHORTENED_SECONDS) if hurried else longest
        end = RunEnd(ended_orderly(record) and not hurried, at, dict(record))
        clock = Stopwatch()
        code: Optional[int] = None
        told = 0
        while code not in (_EXIT_DONE, _EXIT_REFUSED) and clock.seconds < patience:
            if not self._pid and (not told or self._may_restart):
                self._start()
            if self._pid and told != self._pid:
                told = self._pid
                with contextlib.suppress(BrokenPipeError):
                    os.write(self._control, json.dumps(end._asdict()).encode() + b"\n")
            took = signal.sigtimedwait({signal.SIGTERM, signal.SIGCHLD}, _WAIT_SECONDS)
            if took is not None and took.si_signo == signal.SIGTERM:
                break
            code = self._ended() if self._pid else None
        self._kill()
        if code != _EXIT_DONE:
            short = f"not done after {clock.seconds:.0f} s; `trainctl checkpoints upload` brings the rest"
            with contextlib.suppress(Failure, OSError):
                self._uploader().report_failure(
                    str(upload_status(self._run.directory).get("error") or short)
                )

    @property
    def _may_restart(self) -> bool:
        return time.monotonic() - self._tried > _AGAIN_SECONDS

    def _uploader(self) -> Uploader:
        return Uploader(self._run, self._spec, self._secrets, self._data)

    def _start(self) -> None:
        reader, writer = os.pipe()
        self._tried = time.monotonic()
        self._pid, self._control = fork_child(lambda: self._work(reader), reader), writer
        os.close(reader)

    def _work(self, control: int) -> int:
        for run in runs_to_upload(self._run, self._spec):
            with contextlib.suppress(Failure, OSError):
                upload_remaining(run, self._secrets, self._data)
        with FileLease(self._run.directory / "uploader.lock"):
            return run_uploader(self._uploader(), _ControlPipe(control))

    def _ended(self) -> Optional[int]:
        """The exit code, once it has ended."""
        try:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
        except ChildProcessError:  # reaped with the job's leftovers
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


class _ControlPipe:
    """The pipe from the supervisor: silent while the job runs, a line when it has ended."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._text = b""

    def wait(self, seconds: float) -> Optional[RunEnd]:
        """The end, if it has come; waits so long for it. EOFError when the supervisor is gone."""
        ready, _, _ = select.select([self._descriptor], [], [], seconds)
        if ready:
            data = os.read(self._descriptor, 65536)
            if not data:
                raise EOFError
            self._text += data
        return RunEnd(**json.loads(self._text)) if self._text.endswith(b"\n") else None


def keeps_checkpoints(spec: RunSpec) -> bool:
    """Whether the run keeps checkpoints."""
    return bool((spec.get("store") or {}).get("enabled"))


def run_uploader(uploader: Uploader, control: Any) -> int:
    """Look again and again until the run has ended and nothing is left to do; the process's exit code."""
    end: Optional[RunEnd] = None
    pause = _POLL_SECONDS
    while True:
        try:
            done = uploader.look(end)
            if end is not None and done:
                uploader.finish(end)
                return _EXIT_DONE
            pause = _POLL_SECONDS
        except (Failure, OSError) as error:
            failure = error if isinstance(error, Failure) else from_os_error(error, "/")
            with contextlib.suppress(OSError):
                uploader.report_failure(f"{failure.summary}. {failure.detail}".strip())
            if end is not None and failure.kind == "denied":
                return _EXIT_REFUSED
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
        try:
            end = control.wait(pause if end is None else min(pause, 2.0)) or end
        except EOFError:
            return _EXIT_REFUSED


def runs_to_upload(run: NodeRun, spec: RunSpec) -> Iterator[NodeRun]:
    """Earlier runs of the same job on this node that have ended with checkpoints that are not uploaded."""
    for other, found in list_specs(run.layout):
        same = all(found[name] == spec[name] for name in ("lineage", "address", "rank"))
        left = upload_status(other.directory).get("state") == SYNCING
        if (
            other.key != run.key
            and same
            and keeps_checkpoints(found)
            and left
            and run_end(other) is not None
        ):
            yield other


def run_end(run: NodeRun) -> Optional[RunEnd]:
    """How a run ended; None while it is live. A lost run ended when its uploader last looked."""
    record = run.record
    if is_alive(run.supervisor):
        return None
    if record.get("status") in runs.ENDED:
        return RunEnd(ended_orderly(record), float(record.get("ended_at") or 0.0), record)
    last_heartbeat = UploadJournal(run.directory).last_heartbeat
    return RunEnd(False, last_heartbeat, {**record, "status": runs.LOST}) if run.started else None


def ended_orderly(record: Mapping[str, Any]) -> bool:
    """Whether a job ended by itself or on SIGTERM, and wasn't killed."""
    code = record.get("exit_code")
    if record.get("status") == runs.STOPPED:
        return code not in _SIGKILLED
    return isinstance(code, int) and (0 <= code <= _SIGNAL_BASE or code in _TERMINATED)


def upload_remaining(run: NodeRun, secrets: Mapping[str, str], data: Path) -> UploadStatus:
    """Upload what an ended run left behind; its ``sync`` afterwards. Failure while it is live or if the store refuses."""
    spec = run.spec
    if spec is None or not keeps_checkpoints(spec):
        return {}
    end = run_end(run)
    if end is None:
        raise Failure("busy", f"run {run.key} is live", "Its own uploader brings its checkpoints.")
    if upload_status(run.directory).get("state") != COMPLETED:
        with FileLease(run.directory / "uploader.lock"):
            uploader = Uploader(run, spec, secrets, data)
            clock = Stopwatch()
            longest = float(spec["store"].get("upload_timeout", UPLOAD_SECONDS))
            while not uploader.look(end):
                if clock.seconds > longest:
                    raise Failure(
                        "store", f"the checkpoints were not uploaded within {longest:.0f} s"
                    )
                time.sleep(_POLL_SECONDS)
            uploader.finish(end)
    return upload_status(run.directory)
