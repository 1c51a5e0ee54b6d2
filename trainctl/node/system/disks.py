"""Which directories lie on one disk, and whether files there can share their blocks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Optional

_COPY = frozenset({"ext2", "ext3", "ext4", "tmpfs", "f2fs", "vfat", "exfat"})
"""File systems that have no clones. Of others it isn't known, as it is a question of how they were made."""


def hold_twice(one: Path, other: Path) -> bool:
    """Whether what is in both directories, which needn't be there yet, takes its room twice on one disk."""
    try:
        device = _existing(one).stat().st_dev
        return _existing(other).stat().st_dev == device and _file_system(device) in _COPY
    except OSError:  # it is gone, or may not be looked at
        return False


def _existing(path: Path) -> Path:
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _file_system(device: int) -> Optional[str]:
    """Its type, as the kernel calls it; None where it doesn't tell."""
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open("/proc/self/mountinfo") as lines:  # noqa: PTH123
            for line in lines:
                about, _, kind = line.partition(" - ")
                if about.split()[2] == number:
                    return kind.split()[0]
    except OSError:
        return None
    return None
