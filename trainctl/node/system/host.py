"""The host: CPUs, memory, and processes that survive their caller and its logout (logind.conf(5))."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable, Collection, Dict, Iterable, List, Sequence

from trainctl.base.lazy_pattern import compile_lazily
from trainctl.base.protocol.host import LogoutPolicy
from trainctl.base.system.processes import descendants, find_by_environment
from trainctl.base.system.syscalls import close_other_descriptors

_CONFIGURATION = ("/usr/lib/systemd", "/usr/local/lib/systemd", "/run/systemd", "/etc/systemd")
_SETTING = compile_lazily(
    r"^\s*(KillUserProcesses|KillOnlyUsers|KillExcludeUsers)\s*=\s*(.*?)\s*$", re.M
)
_SECONDS = 10


def logout_rules(root: Path = Path("/")) -> LogoutPolicy:
    """``survives``: whether runs continue after logout; if not, ``why`` and ``fix``.

    ``root`` replaces ``/`` as the parent of ``/etc``, ``/run`` and ``/proc``.
    """
    user, groups, why_not = _user(), "", ""
    if not (root / "run/systemd/system").is_dir():
        return {"survives": True, "why": "no systemd", "fix": ""}
    if (root / "var/lib/systemd/linger" / user).exists():
        return {"survives": True, "why": f"{user} lingers", "fix": ""}
    with contextlib.suppress(OSError):
        groups = (root / "proc/self/cgroup").read_text()
    settings = _settings(root)
    only = settings.get("KillOnlyUsers", "").split()
    if f"user@{os.geteuid()}.service" in groups:
        why_not = "the session belongs to the user's service manager, which ends at logout"
    elif (
        settings.get("KillUserProcesses", "no").lower() in ("yes", "true", "1", "on")
        and user not in settings.get("KillExcludeUsers", "root").split()
        and (not only or user in only)
    ):
        why_not = "KillUserProcesses is set in logind.conf"
    if why_not:
        fix = f"Run `loginctl enable-linger {user}` once."
        return {"survives": False, "why": why_not, "fix": fix}
    return {"survives": True, "why": "logind does not kill user processes", "fix": ""}


def leave_session(name: str) -> bool:
    """Move this process to a scope of the user's service manager; False if none.

    Calls the manager over its D-Bus interface. Processes in the scope survive the login session.
    """
    busctl = shutil.which("busctl")
    if busctl is None or not Path("/var/lib/systemd/linger", _user()).exists():
        return False
    call = [busctl, "--user", "call", "org.freedesktop.systemd1", "/org/freedesktop/systemd1"]
    call += ["org.freedesktop.systemd1.Manager", "StartTransientUnit", "ssa(sv)a(sa(sv))"]
    call += [f"trainctl-{name}.scope", "fail", "1", "PIDs", "au", "1", str(os.getpid()), "0"]
    bus = {"XDG_RUNTIME_DIR": f"/run/user/{os.geteuid()}", **os.environ}
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return not subprocess.run(
            call, env=bus, capture_output=True, timeout=_SECONDS, check=False
        ).returncode
    return False


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _settings(root: Path) -> Dict[str, str]:
    """Settings of logind; later files and lines override earlier ones."""
    main = [root / top.lstrip("/") / "logind.conf" for top in _CONFIGURATION]
    dropins: Dict[str, Path] = {}
    for top in _CONFIGURATION:
        for path in sorted((root / top.lstrip("/") / "logind.conf.d").glob("*.conf")):
            dropins[path.name] = path
    settings: Dict[str, str] = {}
    for path in (*main, *(dropins[name] for name in sorted(dropins))):
        with contextlib.suppress(OSError):
            settings.update(dict(_SETTING.findall(path.read_text(errors="replace"))))
    return settings


def memory_bytes() -> int:
    """Memory of the machine in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def cpu_count() -> int:
    """Number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


def run_detached(work: Callable[[], None], log: Path, *kept: int) -> None:
    """Run ``work`` in a process without terminal and the caller's files but ``kept``.

    It writes errors to ``log``, if that can be opened.
    """
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        os.setsid()
        if os.fork() == 0:
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
            work()
    except BaseException:  # noqa: BLE001 - this process has no caller
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
    finally:
        os._exit(0)


_POLL_SECONDS = 0.05
_KILL_ROUNDS = 200


def send_signal(pids: Iterable[int], number: int) -> None:
    """Send a signal to all processes that still exist."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def reap() -> Dict[int, int]:
    """Reap all exited children; their wait statuses by PID."""
    statuses = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            statuses[pid] = status
    return statuses


def end_descendants(grace: Callable[[], float], spared: Collection[int] = ()) -> Dict[int, int]:
    """Terminate all descendants of this process, a child subreaper; wait statuses.

    ``grace`` returns seconds from SIGTERM to SIGKILL and is called repeatedly, as it may change. ``spared`` are PIDs of
    helper processes.
    """
    statuses: Dict[int, int] = {}
    send_signal(_remaining(spared, statuses), signal.SIGTERM)
    start = time.monotonic()
    while time.monotonic() < start + grace() and _remaining(spared, statuses):
        time.sleep(_POLL_SECONDS)
    kill_until_none(lambda: _remaining(spared, statuses))
    statuses.update(reap())  # children that exited since the last check
    return statuses


def kill_marked(entry: bytes) -> None:
    """Kill processes with the entry in their environment."""
    kill_until_none(lambda: find_by_environment(entry))


def kill_until_none(find_pids: Callable[[], Sequence[int]]) -> None:
    """Kill processes until none are found."""
    for _ in range(_KILL_ROUNDS):
        pids = find_pids()
        if not pids:
            return
        send_signal(pids, signal.SIGKILL)
        time.sleep(_POLL_SECONDS)


def _remaining(spared: Collection[int], statuses: Dict[int, int]) -> List[int]:
    statuses.update(reap())
    return [pid for pid in descendants(os.getpid()) if pid not in spared]
