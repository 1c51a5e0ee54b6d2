"""One attempt at a run: the warden, the shell below it, and the wait for their end."""

from __future__ import annotations

import json
import os
import signal
from typing import Callable, NamedTuple, Optional, Sequence

from trainctl.base.clock import Stopwatch
from trainctl.base.files import make_directory
from trainctl.base.processes import descendants, identity
from trainctl.base.syscalls import PR_SET_PDEATHSIG, prctl
from trainctl.node.runs.launch import Launch
from trainctl.node.runs.mount import enter
from trainctl.node.runs.record import Run
from trainctl.node.runs.warden import exit_code, guard
from trainctl.node.system.ending import end_descendants

AWAITED = {signal.SIGTERM, signal.SIGCHLD}
"""Signals that a supervisor keeps blocked, and takes when it looks for them."""

TAKEN = "taken"
"""The refusal of a run that another supervisor has started."""

_CHORE_SECONDS = 1.0


class Ended(NamedTuple):
    """How an attempt ended: ``code`` of the shell (negative for a signal), None if nobody could tell."""

    code: Optional[int]
    warden: int
    stopped: bool
    expired: bool


class Attempt:
    """One shell and its warden, from the fork to the end.

    A ``stage`` before the job has a log of its own and doesn't count as the run's start.
    """

    def __init__(
        self,
        run: Run,
        rank: int,
        launch: Launch,
        grace: Callable[[], float],
        kept: Sequence[int] = (),
        stage: str = "",
    ) -> None:
        """``kept`` are files that the warden keeps open as long as anything of the job lives."""
        self._run = run
        self._stage = stage
        self._rank = rank
        self._launch = launch
        self._grace = grace
        self._kept = kept
        self._supervisor = identity()
        self._warden = 0
        self.stopped = False
        """Whether somebody wanted the end while it ran."""

    def start(self) -> str:
        """Fork the warden, which forks the shell; why the shell could not be executed, empty once it was."""
        refusal, self._refusal = os.pipe()
        self._code, code = os.pipe()
        self._helpers = descendants(os.getpid())
        self._warden = os.fork()
        if self._warden == 0:
            self._guard(code)
        os.close(self._refusal)
        os.close(code)
        with os.fdopen(refusal, "rb") as stream:
            problem = stream.read().decode(errors="replace")
        if problem:
            os.waitpid(self._warden, 0)
            os.close(self._code)
        return problem

    def watch(
        self, clock: Stopwatch, deadline: Optional[float], chores: Sequence[Callable[[], None]]
    ) -> Ended:
        """Wait for the end, doing the chores once a second. SIGTERM, or the clock at ``deadline`` seconds, ends it."""
        expired = False
        while True:
            pid, status = os.waitpid(self._warden, os.WNOHANG)
            if pid:
                self._warden = 0
                break
            took = signal.sigtimedwait(AWAITED, _CHORE_SECONDS)
            late = deadline is not None and clock.seconds >= deadline
            if not (self.stopped or expired):
                if took is not None and took.si_signo == signal.SIGTERM:
                    self.end()
                elif late:
                    expired = True
                    os.kill(self._warden, signal.SIGTERM)
            _do(chores)
        with os.fdopen(self._code, "rb") as stream:
            told = stream.read()
        # Nobody is left, unless the warden itself was killed.
        end_descendants(lambda: 0.0, self._helpers)
        _do(chores)
        code = int(json.loads(told)) if told else None
        return Ended(code, exit_code(status), self.stopped and not expired, expired)

    def end(self) -> None:
        """Have it end as if it was asked to by SIGTERM; nothing if it was already, or has ended."""
        if self._warden and not self.stopped:
            self.stopped = True
            os.kill(self._warden, signal.SIGTERM)

    def _guard(self, result: int) -> None:
        """In the warden's process; does not return."""
        try:
            code = guard(self._execute, (result, *self._kept), self._grace, self._supervisor["pid"])
            if os.getppid() != self._supervisor["pid"]:
                self._launch.finish()  # nobody else is there to do it
            os.write(result, json.dumps(code).encode())
        finally:
            os._exit(0)

    def _execute(self) -> None:
        """In the job's own process: log, mounts, the mark that it starts, then the shell in our place."""
        launch, run = self._launch, self._run
        try:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            self._redirect()
            if launch.mounts:
                enter(launch.mounts, run.view, run.layout.cache)
                prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            os.chdir(run.work)
            os.umask(0o022)
            if not (self._stage or run.mark_started(self._supervisor)):
                self._refuse(TAKEN)
                return
            os.execve(launch.argv[0], list(launch.argv), dict(launch.variables))  # noqa: S606 - it is the shell
        except OSError as error:
            self._refuse(f"the job could not be started: {error.strerror} ({error.filename})")

    def _redirect(self) -> None:
        path = self._run.log(self._rank, self._stage)
        make_directory(path.parent)
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)

    def _refuse(self, why: str) -> None:
        os.write(self._refusal, why.encode()[:4000])


def stopped_within(seconds: float) -> bool:
    """Wait; whether somebody wanted the run to end meanwhile."""
    clock = Stopwatch()
    while clock.seconds < seconds:
        took = signal.sigtimedwait(AWAITED, max(0.0, seconds - clock.seconds))
        if took is not None and took.si_signo == signal.SIGTERM:
            return True
    return signal.SIGTERM in signal.sigpending()


def _do(chores: Sequence[Callable[[], None]]) -> None:
    for chore in chores:
        chore()
