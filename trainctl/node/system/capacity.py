"""How much of a machine there is: processors that a process may use, and memory."""

from __future__ import annotations

import os


def memory() -> int:
    """The machine's memory, in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def cpus() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0))
