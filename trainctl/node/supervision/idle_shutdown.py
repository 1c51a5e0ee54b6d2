"""Start and renew the process that ends an idle machine. See DESIGN.md, "Idle machines"."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import sys
from pathlib import Path
from typing import Any, Callable, Dict

from trainctl.base.filesystem.files import write_atomic
from trainctl.base.protocol.host import (
    IdleShutdownReport,
    IdleShutdownRequest,
    IdleShutdownSettings,
)
from trainctl.node.scheduling.claims import Claims
from trainctl.node.supervision.machine_use import MachineUse
from trainctl.node.system.host import detach, leave_session
from trainctl.node.system.layout import Layout


def idle_shutdown(
    request: IdleShutdownRequest, emit: Callable[[Dict[str, Any]], None]
) -> IdleShutdownReport:
    """Store the settings, start the watcher unless it runs, and count the call as use."""
    use, settings = MachineUse(Layout(request["root"])), request["settings"]
    if use.settings != settings:
        use.store(settings)
    _write_boot_script(use)
    _watch(use, settings)
    use.renew()
    return use.report()


def _write_boot_script(use: MachineUse) -> None:
    """Write the script that starts the watcher after a boot, with the installed program."""
    program = next((word for word in sys.argv if word.endswith(".pyz")), "")
    argv = (sys.executable, "-I", "-S", program, "idle_shutdown")
    script = f"exec {' '.join(map(shlex.quote, argv))} < {shlex.quote(str(use.path))}\n"
    with contextlib.suppress(OSError):
        if program:
            write_atomic(use.layout.root / "at_boot", script.encode())


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
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            if os.fork() == 0:
                detach(Path(use.layout.root / "idle_shutdown.log"), *claims.descriptors)
                leave_session(f"idle-{os.getpid()}")
                from trainctl.node.supervision.idle_watcher import IdleWatcher

                IdleWatcher(use, settings).run()
        except BaseException:  # noqa: BLE001 - this process has no caller
            sys.excepthook(*sys.exc_info())
            sys.stderr.flush()
        finally:
            os._exit(0)
    claims.release()
    os.waitpid(child, 0)
