"""How much of a machine there is: processors that a process may use, and memory."""

from __future__ import annotations

import os
from typing import Dict


def memory() -> int:
    """The machine's memory, in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def capacity() -> Dict[str, int]:
    """``cpus`` and ``memory`` in bytes, as facts and a vacancy tell them."""
    return {"cpus": len(os.sched_getaffinity(0)), "memory": memory()}
