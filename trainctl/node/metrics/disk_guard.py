"""Stops a job that fills a disk or exceeds its checkpoint volume, before other runs on the node fail."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Dict, Optional

from trainctl.base.filesystem.files import read_json
from trainctl.base.protocol.runs import RunSpec
from trainctl.base.units import format_bytes
from trainctl.node.metrics.resource_usage import disk_usage
from trainctl.node.metrics.sampler import DISK_USAGE, job_directory
from trainctl.node.runs.attempt import Attempt
from trainctl.node.runs.job import checkpoint_bytes
from trainctl.node.runs.record import ENDED, NodeRun, list_runs

_RESERVE_BYTES = 2**30
_RESERVE_SHARE = 100
_MEASURE_SECONDS = 2.0
_GRACE_SECONDS = 10.0


class DiskGuard:
    """Checks the disks of one run; the reserve is 1 % of a disk and at most 1 GiB."""

    def __init__(self, run: NodeRun, spec: RunSpec) -> None:
        self._run = run
        self.reason: Optional[str] = None
        """Why it stopped the job."""
        self._limit = checkpoint_bytes(spec)
        self._checkpoints = job_directory(spec, "BT_CHECKPOINT_DIR")

    def tend(self, attempt: Attempt) -> None:
        """End the attempt if it must stop; call every second."""
        if attempt.stopped:
            return
        self.reason = self._overuse() or self._full_disk()
        if self.reason:
            with contextlib.suppress(OSError):  # the disk may be full
                self._run.interrupt(self.reason, _GRACE_SECONDS)
            attempt.end()

    def _overuse(self) -> Optional[str]:
        used = _usage(self._run).get("checkpoints", 0) if self._limit else 0
        if not self._limit or used <= self._limit:
            return None
        return f"its checkpoints take {format_bytes(used)}, volume_size_gib allows {format_bytes(self._limit)}"

    def _full_disk(self) -> Optional[str]:
        for paths in ([self._run.work, self._run.scratch], self._checkpoints):
            if not paths or not paths[0].exists():
                continue
            disk = os.statvfs(paths[0])
            free, size = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
            reserve = min(_RESERVE_BYTES, size // _RESERVE_SHARE)
            if free >= reserve:
                continue
            own = disk_usage(paths, time.monotonic() + _MEASURE_SECONDS)
            if own is None or (own > reserve and own >= self._largest_other()):
                used = "many files" if own is None else format_bytes(own)
                return f"it filled the disk of {paths[0]}: {format_bytes(free)} free, {used} of the run"
        return None

    def _largest_other(self) -> int:
        """Return the disk usage of the live run that takes the most."""
        others = (run for run in list_runs(self._run.layout) if run.key != self._run.key)
        live = (run for run in others if run.record.get("status") not in ENDED)
        return max((sum(_usage(run).values()) for run in live), default=0)


def _usage(run: NodeRun) -> Dict[str, int]:
    """Return the bytes by directory that the sampler measured last."""
    usage = (read_json(run.directory / DISK_USAGE) or {}).get("usage", {})
    return {name: size for name, size in usage.items() if size}
