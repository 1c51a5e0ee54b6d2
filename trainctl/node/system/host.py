"""The machine: processors, memory, and whether what a user leaves running survives a logout. Sources: logind.conf(5), loginctl(1)."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import subprocess
from pathlib import Path
from typing import Dict, Iterator, Tuple

from trainctl.base.protocol.host import LogoutPolicy

_CONFIGURATION = ("/usr/lib/systemd", "/usr/local/lib/systemd", "/run/systemd", "/etc/systemd")
_SETTING = re.compile(
    r"^\s*(KillUserProcesses|KillOnlyUsers|KillExcludeUsers)\s*=\s*(.*?)\s*$", re.M
)
_SECONDS = 10


def logout_rules(root: Path = Path("/")) -> LogoutPolicy:
    """``survives``: whether a run goes on after its user logged out; ``why`` and ``fix`` where it doesn't.

    ``root`` is where ``/etc``, ``/run`` and ``/proc`` are looked for.
    """
    if not (root / "run/systemd/system").is_dir():
        return {"survives": True, "why": "no systemd", "fix": ""}
    user = _user()
    if (root / "var/lib/systemd/linger" / user).exists():
        return {"survives": True, "why": f"{user} lingers", "fix": ""}
    fix = f"Run `loginctl enable-linger {user}` once."
    if _below_user_manager(root):
        why = "its terminal belongs to the user's own service manager, which ends at logout"
        return {"survives": False, "why": why, "fix": fix}
    if _is_killed_on_logout(_settings(root), user):
        why = "KillUserProcesses ends what a user leaves running"
        return {"survives": False, "why": why, "fix": fix}
    return {"survives": True, "why": "logind leaves processes alone", "fix": ""}


def leave_session(name: str) -> bool:
    """Move this process into a scope of the user's lingering service manager, away from the session that started it.

    False, and nothing changed, where there is no such manager; it is asked over its bus.
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


def _below_user_manager(root: Path) -> bool:
    try:
        text = (root / "proc/self/cgroup").read_text()
    except OSError:
        return False
    return f"user@{os.geteuid()}.service" in text


def _settings(root: Path) -> Dict[str, str]:
    """What the configuration says; later files and lines win, as logind reads them."""
    found: Dict[str, str] = {}
    for text in _configuration_texts(root):
        found.update(dict(_SETTING.findall(text)))
    return found


def _configuration_texts(root: Path) -> Iterator[str]:
    main = [root / top.lstrip("/") / "logind.conf" for top in _CONFIGURATION]
    dropins: Dict[str, Path] = {}
    for top in _CONFIGURATION:
        for path in sorted((root / top.lstrip("/") / "logind.conf.d").glob("*.conf")):
            dropins[path.name] = path
    ordered: Tuple[Path, ...] = (*main, *(dropins[name] for name in sorted(dropins)))
    for path in ordered:
        with contextlib.suppress(OSError):
            yield path.read_text(errors="replace")


def _is_killed_on_logout(settings: Dict[str, str], user: str) -> bool:
    if settings.get("KillUserProcesses", "no").lower() not in ("yes", "true", "1", "on"):
        return False
    if user in settings.get("KillExcludeUsers", "root").split():
        return False
    only = settings.get("KillOnlyUsers", "").split()
    return not only or user in only


def memory_bytes() -> int:
    """The machine's memory, in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def cpu_count() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0))
