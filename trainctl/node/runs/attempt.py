"""An attempt at a run: fork warden and shell, wait for their end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from typing import Callable, Mapping, Optional, Sequence, Tuple

from trainctl.base.clock import Stopwatch
from trainctl.base.filesystem.files import make_directory
from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.base.system.processes import descendants, process_record
from trainctl.base.system.syscalls import (
    PR_SET_CHILD_SUBREAPER,
    PR_SET_PDEATHSIG,
    close_other_descriptors,
    prctl,
)
from trainctl.node.runs.mount import Mount, enter_namespace
from trainctl.node.runs.record import NodeRun
from trainctl.node.system.host import end_descendants

AWAITED_SIGNALS = {signal.SIGTERM, signal.SIGCHLD}
"""Signals that a supervisor blocks and waits for."""

ANOTHER_SUPERVISOR = "taken"
"""Refusal to start a run that another supervisor has started."""

_CHORE_SECONDS = 1.0


class AttemptEnd(NamedTuple):
    """End of an attempt; ``code`` is negative for a signal, None if unknown."""

    code: Optional[int]
    warden: int
    stopped: bool
    expired: bool


class Attempt:
    """A job's shell and its warden, from fork to exit.

    A ``stage`` before the job has its own log and doesn't count as the run's start.
    """

    def __init__(
        self,
        run: NodeRun,
        rank: int,
        launch: Launch,
        grace: Callable[[], float],
        kept_descriptors: Sequence[int] = (),
        stage: str = "",
    ) -> None:
        """``kept_descriptors``: open in the warden until the job's last process has ended."""
        self._run = run
        self._stage = stage
        self._rank = rank
        self._launch = launch
        self._grace = grace
        self._kept = kept_descriptors
        self._supervisor = process_record()
        self._warden = 0
        self.stopped = False
        """Whether a stop was requested during the attempt."""

    def start(self) -> str:
        """Fork warden and shell; the error if the shell could not be executed."""
        refusal, self._refusal = os.pipe()
        self._code, code = os.pipe()
        self._helpers = descendants(os.getpid())
        self._warden = os.fork()
        if self._warden == 0:
            try:
                self._stdin, writer = os.pipe()
                kept, supervisor = (code, writer, *self._kept), int(self._supervisor["pid"])
                ended = supervise_child(self._execute, kept, self._grace, supervisor)
                if os.getppid() != supervisor:
                    self._launch.finish()  # the supervisor has died
                os.write(code, json.dumps(ended).encode())
            finally:
                os._exit(0)
        os.close(self._refusal)
        os.close(code)
        with os.fdopen(refusal, "rb") as stream:
            error = stream.read().decode(errors="replace")
        if error:
            os.waitpid(self._warden, 0)
            os.close(self._code)
        return error

    def watch(
        self, clock: Stopwatch, deadline: Optional[float], chores: Sequence[Callable[[], None]]
    ) -> AttemptEnd:
        """Run the chores every second until the end; stop at ``deadline`` or SIGTERM."""
        expired = False
        while True:
            pid, status = os.waitpid(self._warden, os.WNOHANG)
            if pid:
                self._warden = 0
                break
            received = signal.sigtimedwait(AWAITED_SIGNALS, _CHORE_SECONDS)
            is_late = deadline is not None and clock.seconds >= deadline
            if not (self.stopped or expired):
                if received is not None and received.si_signo == signal.SIGTERM:
                    self.end()
                elif is_late:
                    expired = True
                    os.kill(self._warden, signal.SIGTERM)
            _run_chores(chores)
        with os.fdopen(self._code, "rb") as stream:
            text = stream.read()
        # Only needed if the warden was killed.
        end_descendants(lambda: 0.0, self._helpers)
        _run_chores(chores)
        code = int(json.loads(text)) if text else None
        return AttemptEnd(code, exit_code(status), self.stopped and not expired, expired)

    def release(self) -> None:
        """End the job's shell, which waits after its commands."""
        if self._warden:
            os.kill(self._warden, signal.SIGTERM)

    def end(self) -> None:
        """Stop the job as SIGTERM would; does nothing if it is stopping or has ended."""
        if self._warden and not self.stopped:
            self.stopped = True
            os.kill(self._warden, signal.SIGTERM)

    def _execute(self) -> None:
        """Set up log and mounts, record the start, execute the shell."""
        launch, run = self._launch, self._run
        try:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            path = run.log(self._rank, self._stage)
            make_directory(path.parent)
            log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(log, 1)
            os.dup2(log, 2)
            if launch.lifeline:
                os.dup2(self._stdin, 0)
            if launch.mounts:
                enter_namespace(launch.mounts, run.view, run.layout.cache)
                prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            os.chdir(run.work)
            os.umask(0o022)
            if not (self._stage or run.mark_started(self._supervisor)):
                self._refuse(ANOTHER_SUPERVISOR)
                return
            os.execve(launch.argv[0], list(launch.argv), dict(launch.variables))  # noqa: S606 - it is the shell
        except OSError as error:
            self._refuse(f"cannot start the job: {error.strerror} ({error.filename})")

    def _refuse(self, reason: str) -> None:
        os.write(self._refusal, reason.encode()[:4000])


def wait_for_stop(seconds: float) -> bool:
    """Wait; True if a stop was requested meanwhile."""
    clock = Stopwatch()
    while clock.seconds < seconds:
        received = signal.sigtimedwait(AWAITED_SIGNALS, max(0.0, seconds - clock.seconds))
        if received is not None and received.si_signo == signal.SIGTERM:
            return True
    return signal.SIGTERM in signal.sigpending()


def _run_chores(chores: Sequence[Callable[[], None]]) -> None:
    for chore in chores:
        chore()


_ORPHAN_GRACE_SECONDS = 2.0
_IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def supervise_child(
    child: Callable[[], None],
    kept_descriptors: Sequence[int],
    grace: Callable[[], float],
    supervisor: int,
) -> int:
    """Run ``child``, which executes the shell; exit code, negative for a signal.

    Call in a forked process below the supervisor; closes all files but ``kept_descriptors``. SIGTERM, sent by the
    supervisor or on its death, stops the job; ``grace`` returns the seconds until SIGKILL, and may change.
    """
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED_SIGNALS)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != supervisor:
        return -signal.SIGKILL
    shell = os.fork()
    if shell == 0:
        try:
            os.setsid()
            for number in (*_IGNORED, *_IGNORED_BY_PYTHON):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, AWAITED_SIGNALS)
            child()
        finally:
            os._exit(127)
    close_other_descriptors(*kept_descriptors)
    status = _wait(shell)
    if status is None:
        statuses = end_descendants(lambda: grace() if os.getppid() == supervisor else 0.0)
        return exit_code(statuses.get(shell, signal.SIGKILL))
    end_descendants(lambda: _ORPHAN_GRACE_SECONDS)
    return status


def _wait(shell: int) -> Optional[int]:
    """Exit code of the shell, None if SIGTERM came first. Reaps orphans of the job."""
    while True:
        with contextlib.suppress(ChildProcessError):
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == shell:
                return exit_code(status)
            if pid:
                continue
        if signal.sigwait(AWAITED_SIGNALS) == signal.SIGTERM:
            return None


def exit_code(status: int) -> int:
    """Exit code of a wait status, negative for a signal."""
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


class Launch(NamedTuple):
    """A program with its environment and private ``mounts``.

    ``finish`` cleans up after each attempt and is idempotent. ``refused`` explains after the end why no command was
    started; empty if one was. ``lifeline``: its standard input is a pipe that ends when the warden does, however it is
    killed.
    """

    argv: Tuple[str, ...]
    variables: Mapping[str, str]
    mounts: Tuple[Mount, ...] = ()
    finish: Callable[[], None] = lambda: None
    refused: Callable[[], str] = str
    lifeline: bool = False
