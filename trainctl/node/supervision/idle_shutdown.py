"""Start and renew the process that ends an idle machine. See DESIGN.md, "Idle machines"."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shlex
import sys
import time
from typing import Any, Callable, Dict, List, Optional

from trainctl.base.filesystem.files import (
    list_names,
    make_directory,
    read_json,
    write_atomic,
    write_json,
)
from trainctl.base.protocol.host import (
    IdleShutdownReport,
    IdleShutdownRequest,
    IdleShutdownSettings,
    MachineNotices,
)
from trainctl.base.system.processes import is_alive
from trainctl.errors import TrainctlError
from trainctl.node.runs.record import NodeRun
from trainctl.node.scheduling.claims import Claims, is_held
from trainctl.node.system.host import leave_session, run_detached
from trainctl.node.system.layout import Layout


def idle_shutdown(
    request: IdleShutdownRequest, emit: Callable[[Dict[str, Any]], None]
) -> IdleShutdownReport:
    """Store the settings, start the watcher unless it runs, and count the call as use."""
    use, settings = MachineUse(Layout(request["root"])), request["settings"]
    if use.settings != settings:
        use.store(settings)
    program = next((word for word in sys.argv if word.endswith(".pyz")), "")
    argv = (sys.executable, "-I", "-S", program, "idle_shutdown")
    script = f"exec {' '.join(map(shlex.quote, argv))} < {shlex.quote(str(use.path))}\n"
    with contextlib.suppress(OSError):
        if program:  # started after a boot
            write_atomic(use.layout.root / "at_boot", script.encode())
    _watch(use, settings)
    use.renew()
    return use.report()


def mark_use(root: str, *, counts: bool) -> None:
    """Restart the watcher if it died; if the call counts as use, hold it until this process ends."""
    use = MachineUse(Layout(root))
    settings = use.settings
    if settings is None:
        return
    _watch(use, settings)
    if counts:
        with contextlib.suppress(OSError):
            descriptor = os.open(use.path, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        use.renew()


def _watch(use: MachineUse, settings: IdleShutdownSettings) -> None:
    """Start a detached watcher unless one runs. It inherits the claim, so that two calls start one."""
    claims = Claims()
    if not claims.acquire(use.claim):
        return

    def watch() -> None:
        leave_session(f"idle-{os.getpid()}")
        from trainctl.node.supervision.idle_watcher import IdleWatcher

        IdleWatcher(use, settings).run()

    run_detached(watch, use.layout.root / "idle_shutdown.log", *claims.descriptors)
    claims.release()


class MachineUse:
    """Who uses a machine: live runs, calls in progress, and the time of the last use.

    ``idle_shutdown.json`` is the request that started the watcher; its mtime is the last use. A call holds a shared
    lock on it. Renewing writes no data, so that it works with a full disk.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.path = layout.root / "idle_shutdown.json"
        self.notices_path = layout.root / "notices.json"
        self.claim = f"idle/{hashlib.sha256(str(layout.root).encode()).hexdigest()[:32]}"

    @property
    def settings(self) -> Optional[IdleShutdownSettings]:
        """The stored settings; None if there are none."""
        return (read_json(self.path) or {}).get("settings")

    def store(self, settings: IdleShutdownSettings) -> None:
        """Store the request with these settings; does nothing if the disk is full."""
        with contextlib.suppress(OSError):
            make_directory(self.path.parent)
            write_json(self.path, {"root": str(self.layout.root), "settings": settings})

    @property
    def last_used(self) -> int:
        """Time of the last use in nanoseconds; 0 if unknown."""
        try:
            return self.path.stat().st_mtime_ns
        except OSError:
            return 0

    def renew(self) -> None:
        """Count this moment as use."""
        with contextlib.suppress(OSError):
            os.utime(str(self.path))

    def is_called(self) -> bool:
        """Check whether a call is in progress."""
        with contextlib.suppress(OSError), self.path.open("rb") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def live_runs(self) -> List[NodeRun]:
        """Runs with a living supervisor, which ends after the upload of checkpoints."""
        live = []
        for name in list_names(self.layout.runs):
            with contextlib.suppress(TrainctlError):  # the name isn't that of a run
                run = NodeRun(self.layout, name)
                if is_alive(run.supervisor):
                    live.append(run)
        return live

    def notices(self) -> MachineNotices:
        """Notices of the platform that the watcher has read."""
        found = read_json(self.notices_path) or {}
        return {"taken_back": found.get("taken_back"), "at_risk": found.get("at_risk")}

    def report(self) -> IdleShutdownReport:
        """Report how long the machine has been idle, and when it ends."""
        settings, used = self.settings, self.last_used / 1e9
        watched = bool(settings and used) and is_held(self.claim)
        live = bool(self.live_runs())
        left = settings["idle_timeout"] if settings else 0.0
        return {
            "idle_since": None if live or not used else used,
            "seconds_left": max(0.0, left - (0.0 if live else time.time() - used))
            if watched
            else None,
            **self.notices(),
        }
