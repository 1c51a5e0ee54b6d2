"""One attempt at a run: what is launched, its warden, the shell below it, and the wait for their end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from typing import Callable, Mapping, NamedTuple, Optional, Sequence, Tuple

from trainctl.base.clock import Stopwatch
from trainctl.base.filesystem.files import make_directory
from trainctl.base.system.processes import descendants, process_record
from trainctl.base.system.syscalls import (
    PR_SET_CHILD_SUBREAPER,
    PR_SET_PDEATHSIG,
    close_other_descriptors,
    prctl,
)
from trainctl.node.runs.mount import Mount, enter_namespace
from trainctl.node.runs.record import NodeRun
from trainctl.node.system.process_tree import end_descendants

AWAITED_SIGNALS = {signal.SIGTERM, signal.SIGCHLD}
"""Signals that a supervisor keeps blocked, and takes when it looks for them."""

ANOTHER_SUPERVISOR = "taken"
"""The refusal of a run that another supervisor has started."""

_CHORE_SECONDS = 1.0


class AttemptEnd(NamedTuple):
    """How an attempt ended: ``code`` of the shell (negative for a signal), None if unknown."""

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
        run: NodeRun,
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
        self._supervisor = process_record()
        self._warden = 0
        self.stopped = False
        """Whether a stop was requested while it ran."""

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
    ) -> AttemptEnd:
        """Wait for the end, doing the chores once a second. SIGTERM, or the clock at ``deadline`` seconds, ends it."""
        expired = False
        while True:
            pid, status = os.waitpid(self._warden, os.WNOHANG)
            if pid:
                self._warden = 0
                break
            took = signal.sigtimedwait(AWAITED_SIGNALS, _CHORE_SECONDS)
            late = deadline is not None and clock.seconds >= deadline
            if not (self.stopped or expired):
                if took is not None and took.si_signo == signal.SIGTERM:
                    self.end()
                elif late:
                    expired = True
                    os.kill(self._warden, signal.SIGTERM)
            _run_chores(chores)
        with os.fdopen(self._code, "rb") as stream:
            told = stream.read()
        # Nobody is left, unless the warden itself was killed.
        end_descendants(lambda: 0.0, self._helpers)
        _run_chores(chores)
        code = int(json.loads(told)) if told else None
        return AttemptEnd(code, exit_code(status), self.stopped and not expired, expired)

    def end(self) -> None:
        """Have it end as if it was asked to by SIGTERM; nothing if it was already, or has ended."""
        if self._warden and not self.stopped:
            self.stopped = True
            os.kill(self._warden, signal.SIGTERM)

    def _guard(self, result: int) -> None:
        """In the warden's process; does not return."""
        try:
            code = supervise_child(
                self._execute, (result, *self._kept), self._grace, self._supervisor["pid"]
            )
            if os.getppid() != self._supervisor["pid"]:
                self._launch.finish()  # the supervisor is gone
            os.write(result, json.dumps(code).encode())
        finally:
            os._exit(0)

    def _execute(self) -> None:
        """In the job's own process: log, mounts, the mark that it starts, then the shell in our place."""
        launch, run = self._launch, self._run
        try:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            path = run.log(self._rank, self._stage)
            make_directory(path.parent)
            log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(log, 1)
            os.dup2(log, 2)
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
            self._refuse(f"the job could not be started: {error.strerror} ({error.filename})")

    def _refuse(self, why: str) -> None:
        os.write(self._refusal, why.encode()[:4000])


def wait_for_stop(seconds: float) -> bool:
    """Wait; whether a stop was requested meanwhile."""
    clock = Stopwatch()
    while clock.seconds < seconds:
        took = signal.sigtimedwait(AWAITED_SIGNALS, max(0.0, seconds - clock.seconds))
        if took is not None and took.si_signo == signal.SIGTERM:
            return True
    return signal.SIGTERM in signal.sigpending()


def _run_chores(chores: Sequence[Callable[[], None]]) -> None:
    for chore in chores:
        chore()


_LEFTOVER_GRACE_SECONDS = 2.0
_IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def supervise_child(
    child: Callable[[], None],
    kept: Sequence[int],
    grace: Callable[[], float],
    supervisor: int,
) -> int:
    """Run ``child`` (which executes the shell and doesn't return) and wait; the exit code, negative for a signal.

    Called in a process made for this, below the supervisor; of its files it keeps ``kept``. SIGTERM, by the supervisor or by the kernel when the
    supervisor dies, ends the job's processes; ``grace`` says how long they may take, also when it changes meanwhile.
    """
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED_SIGNALS)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != supervisor:
        return -signal.SIGKILL
    shell = _fork(child)
    close_other_descriptors(*kept)
    status = _wait(shell)
    if status is None:
        ended = end_descendants(lambda: grace() if os.getppid() == supervisor else 0.0)
        return exit_code(ended.get(shell, signal.SIGKILL))
    end_descendants(lambda: _LEFTOVER_GRACE_SECONDS)
    return status


def _fork(child: Callable[[], None]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        for number in (*_IGNORED, *_IGNORED_BY_PYTHON):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, AWAITED_SIGNALS)
        child()
    finally:
        os._exit(127)


def _wait(shell: int) -> Optional[int]:
    """The shell's exit code, or None if SIGTERM came first. Orphans of the job are collected on the way."""
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
    """The exit code in a wait status, negative for a signal."""
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


class Launch(NamedTuple):
    """A program with its variables, to be executed behind private ``mounts`` if there are any.

    ``finish`` is called after each attempt, whatever its end was, and removes what only this kind of launch leaves; twice does no harm.
    ``refused`` says after the end why no command was begun, empty if one was.
    """

    argv: Tuple[str, ...]
    variables: Mapping[str, str]
    mounts: Tuple[Mount, ...] = ()
    finish: Callable[[], None] = lambda: None
    refused: Callable[[], str] = str
