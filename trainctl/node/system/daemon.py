"""Detach a process from its caller."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from trainctl.base.system.syscalls import close_other_descriptors


def detach(log: Path, *kept: int) -> None:
    """Detach from terminal and caller's files but ``kept``; write errors to ``log`` if it can be opened."""
    nothing = os.open(os.devnull, os.O_RDWR)
    try:
        errors = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError:
        errors = nothing
    for number, source in enumerate((nothing, nothing, errors)):
        os.dup2(source, number)
    close_other_descriptors(*kept)
    os.chdir("/")
    os.umask(0o077)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
