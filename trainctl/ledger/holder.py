"""This process as a holder of leases, and whether another holder has ended."""

from __future__ import annotations

import getpass
import os
from functools import cache

from trainctl.base import processes
from trainctl.ledger.state import Holder


def this_process() -> Holder:
    """This process as a holder of leases. Not cached, as a forked child is another holder."""
    return Holder(*processes.process(), _who())


def is_dead(holder: Holder) -> bool | None:
    """True if the holder's process has certainly ended, False if it runs, None if this process can't tell."""
    return processes.is_dead(
        processes.Process(holder.machine, holder.boot, holder.pid, holder.started)
    )


@cache
def _who() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):
        user = str(os.getuid())
    return f"{user}@{os.uname().nodename}"
