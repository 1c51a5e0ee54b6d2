"""The warden: parent of the job's shell, which nothing of the job can leave, and which leaves nothing of the job."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Callable, Optional, Sequence

from trainctl.base.descriptors import close_all_but
from trainctl.base.syscalls import PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, prctl
from trainctl.node.system.ending import end_descendants

_LEFTOVER_GRACE_SECONDS = 2.0
_AWAITED = {signal.SIGTERM, signal.SIGCHLD}
_IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def guard(
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
    signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != supervisor:
        return -signal.SIGKILL
    shell = _fork(child)
    close_all_but(*kept)
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
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _AWAITED)
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
        if signal.sigwait(_AWAITED) == signal.SIGTERM:
            return None


def exit_code(status: int) -> int:
    """The exit code in a wait status, negative for a signal."""
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
