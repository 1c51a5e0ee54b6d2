"""The uploader's process: started and started again by the supervisor, told when the run has ended, waited for."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any, Iterable, List, Mapping, Optional

from trainctl.base.checkpoints.stores import blamed
from trainctl.base.clock import Stopwatch
from trainctl.base.descriptors import close_all_but
from trainctl.base.failure import Failure, from_os_error
from trainctl.base.lock import Lock
from trainctl.base.processes import alive
from trainctl.base.protocol.runs import Sync
from trainctl.base.protocol.spec import RunSpec
from trainctl.base.syscalls import PR_SET_PDEATHSIG, prctl
from trainctl.node.checkpoints.uploader import Uploader
from trainctl.node.checkpoints.watch import End
from trainctl.node.runs import record as runs
from trainctl.node.runs.record import Run, all_specs
from trainctl.node.runs.uploads import COMPLETED, SYNCING, Uploads, sync_of

UPLOAD_SECONDS = 3600.0
_HURRIED_SECONDS = 10.0
_POLL_SECONDS = 1.0
_WAIT_SECONDS = 0.1
_AGAIN_SECONDS = 5.0
_LONGEST_PAUSE_SECONDS = 30.0
_KILLED = 128
_ASKED = (-signal.SIGTERM, _KILLED + signal.SIGTERM)
_MADE_TO = (-signal.SIGKILL, _KILLED + signal.SIGKILL)
_DONE, _REFUSED = 0, 3


class Keeping:
    """What a supervisor does about its run's checkpoints; nothing if it keeps none."""

    def __init__(self, run: Run, spec: RunSpec, secrets: Mapping[str, str], data: Path) -> None:
        self._run = run
        self._spec = spec
        self._secrets = secrets
        self._data = data
        self._pid = 0
        self._control = -1
        self._tried = 0.0

    def begin(self) -> None:
        """Before anything is trained: Failure if the store refuses what a run would bring."""
        if keeps(self._spec):
            with blamed(self._spec["store"]):
                self._uploader().announce()
            self._fork()

    def tend(self) -> None:
        """Start the uploader again if it died."""
        if (
            self._pid
            and self._ended() is not None
            and time.monotonic() - self._tried > _AGAIN_SECONDS
        ):
            with contextlib.suppress(OSError):
                self._fork()

    def drain(self, record: Mapping[str, Any], at: float, *, hurried: bool) -> None:
        """The job has ended as ``record`` says: wait until everything is in the store, but not for ever.

        Afterwards no uploader is left. SIGTERM, or ``hurried``, ends the wait sooner. What could not be brought
        stays where it is, and the run's ``sync.json`` says so.
        """
        if not keeps(self._spec):
            return
        longest = float(self._spec["store"].get("upload_timeout", UPLOAD_SECONDS))
        patience = min(longest, _HURRIED_SECONDS) if hurried else longest
        end = End(orderly(record) and not hurried, at, dict(record))
        clock = Stopwatch()
        code: Optional[int] = None
        told = 0
        while code not in (_DONE, _REFUSED) and clock.seconds < patience:
            if not self._pid and (not told or time.monotonic() - self._tried > _AGAIN_SECONDS):
                self._fork()
            if self._pid and told != self._pid:
                told = self._pid
                self._tell(end)
            took = signal.sigtimedwait({signal.SIGTERM, signal.SIGCHLD}, _WAIT_SECONDS)
            if took is not None and took.si_signo == signal.SIGTERM:
                break
            code = self._ended() if self._pid else None
        self._kill()
        if code != _DONE:
            self._admit(clock.seconds)

    def _admit(self, waited: float) -> None:
        short = f"not done after {waited:.0f} s; `trainctl checkpoints upload` brings the rest"
        with contextlib.suppress(Failure, OSError):
            self._uploader().trouble(str(sync_of(self._run.directory).get("error") or short))

    def _uploader(self) -> Uploader:
        return Uploader(self._run, self._spec, self._secrets, self._data)

    def _fork(self) -> None:
        parent = os.getpid()
        reader, writer = os.pipe()
        self._tried = time.monotonic()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                close_all_but(reader)
                prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() == parent:
                    code = self._work(reader)
            except BaseException:  # noqa: BLE001 - the last word of a process that has no caller
                sys.excepthook(*sys.exc_info())
                sys.stderr.flush()
            finally:
                os._exit(code)
        os.close(reader)
        self._pid, self._control = pid, writer

    def _work(self, control: int) -> int:
        leftovers = [
            (Uploader(run, spec, self._secrets, self._data), end)
            for run, spec, end in left_behind(self._run, self._spec)
        ]
        with Lock(self._run.directory, "uploader"):
            return work(self._uploader(), _Control(control), leftovers)

    def _tell(self, end: End) -> None:
        line = json.dumps(end._asdict()).encode() + b"\n"
        with contextlib.suppress(BrokenPipeError):
            os.write(self._control, line)

    def _ended(self) -> Optional[int]:
        """The uploader's exit code, once it has ended; the supervisor then has none."""
        try:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
        except ChildProcessError:  # collected with the job's leftovers
            pid, status = self._pid, -1
        if not pid:
            return None
        self._let_go()
        return os.WEXITSTATUS(status) if status >= 0 and os.WIFEXITED(status) else -1

    def _kill(self) -> None:
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._pid, 0)
            self._let_go()

    def _let_go(self) -> None:
        os.close(self._control)
        self._pid, self._control = 0, -1


class _Control:
    """The pipe from the supervisor: silent while the job runs, a line when it has ended."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._text = b""

    def wait(self, seconds: float) -> Optional[End]:
        """The end, if it has come; waits so long for it. EOFError when the supervisor is gone."""
        ready, _, _ = select.select([self._descriptor], [], [], seconds)
        if ready:
            data = os.read(self._descriptor, 65536)
            if not data:
                raise EOFError
            self._text += data
        return End(**json.loads(self._text)) if self._text.endswith(b"\n") else None


def keeps(spec: RunSpec) -> bool:
    """Whether the run keeps checkpoints."""
    return bool((spec.get("store") or {}).get("enabled"))


def work(uploader: Uploader, control: Any, leftovers: List[Any]) -> int:
    """Look, again and again, until the run has ended and nothing is left to do; the process's exit code."""
    end: Optional[End] = None
    pause = _POLL_SECONDS
    while True:
        try:
            done = uploader.look(end)
            if end is not None and done:
                uploader.finish(end)
                return _DONE
            pause = _POLL_SECONDS
            if leftovers and end is None:
                _look_after(leftovers)
        except (Failure, OSError) as error:
            failure = error if isinstance(error, Failure) else from_os_error(error, "/")
            with contextlib.suppress(OSError):
                uploader.trouble(f"{failure.summary}. {failure.detail}".strip())
            if end is not None and failure.kind == "denied":
                return _REFUSED
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
        try:
            end = control.wait(pause if end is None else min(pause, 2.0)) or end
        except EOFError:
            return _REFUSED


def _look_after(leftovers: List[Any]) -> None:
    """One round for one earlier run of the job whose uploader did not live to its end."""
    uploader, end = leftovers[0]
    with contextlib.suppress(Failure):
        if not uploader.look(end):
            return
        uploader.finish(end)
    leftovers.pop(0)


def left_behind(run: Run, spec: RunSpec) -> Iterable[Any]:
    """Earlier runs of the same job on this node, with their ends, of which not everything was brought to its store."""
    for other, found in all_specs(run.layout):
        same = all(found[name] == spec[name] for name in ("lineage", "address", "rank"))
        if other.key == run.key or not same or not keeps(found):
            continue
        end = end_of(other)
        if end is not None and sync_of(other.directory).get("state") == SYNCING:
            yield other, found, end


def end_of(run: Run) -> Optional[End]:
    """How a run ended; None for one that is live. Of a run that was lost, when its uploader last looked."""
    record = run.record
    if alive(run.supervisor):
        return None
    if record.get("status") in runs.ENDED:
        return End(orderly(record), float(record.get("ended_at") or 0.0), record)
    beaten = Uploads(run.directory).beaten
    return End(False, beaten, {**record, "status": runs.LOST}) if run.started else None


def orderly(record: Mapping[str, Any]) -> bool:
    """Whether a job ended by itself or when it was told to, and was not killed in the middle of what it did."""
    code = record.get("exit_code")
    if record.get("status") == runs.STOPPED:
        return code not in _MADE_TO
    return isinstance(code, int) and (0 <= code <= _KILLED or code in _ASKED)


def upload(run: Run, secrets: Mapping[str, str], data: Path) -> Sync:
    """Bring what an ended run left behind; its ``sync`` afterwards. Failure while it is live or the store refuses."""
    spec = run.spec
    if spec is None or not keeps(spec):
        return {}
    end = end_of(run)
    if end is None:
        raise Failure("busy", f"run {run.key} is live", "Its own uploader brings its checkpoints.")
    if sync_of(run.directory).get("state") != COMPLETED:
        with Lock(run.directory, "uploader"):
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
    return sync_of(run.directory)
