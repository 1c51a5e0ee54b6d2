"""Detach a process from its caller, and start one at boot."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Optional, Sequence

from trainctl.base.system.syscalls import close_other_descriptors

_SECONDS = 10


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


def start_at_boot(argv: Sequence[str], stdin: Path) -> bool:
    """Add an ``@reboot`` line for ``argv`` to the user's crontab; False if that isn't possible.

    A later call with the same ``stdin`` replaces the line.
    """
    crontab = shutil.which("crontab")
    if crontab is None:
        return False
    source = shlex.quote(str(stdin))
    command = " ".join(map(shlex.quote, argv))
    line = (
        f"@reboot test ! -e {source} || {command} < {source} > /dev/null 2>&1 # trainctl {source}"
    )
    before = _run([crontab, "-l"]) or ""
    kept = [text for text in before.splitlines() if not text.endswith(f"# trainctl {source}")]
    if "%" in line:  # a line end to cron
        return False
    return _run([crontab, "-"], "\n".join([*kept, line]) + "\n") is not None


def _run(argv: Sequence[str], text: str = "") -> Optional[str]:
    """Return the output; None if the program fails."""
    try:
        done = subprocess.run(
            argv, input=text, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return None if done.returncode else done.stdout
