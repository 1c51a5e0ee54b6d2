"""Health of a host: errors of its GPUs, a write probe of its disks, limits."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
import time
from pathlib import Path
from typing import Dict, Iterator, Mapping, Optional, Set

from trainctl.base.failure import free_space
from trainctl.base.protocol.host import ERROR, FAULT, WARNING, Finding, make_finding
from trainctl.base.units import format_bytes
from trainctl.node.system.gpus import GpuHealth

_PROBE_SECONDS = 2.5
_STEP_BYTES = 4 * 2**20
_SLOW_BYTES = 16 * 2**20
_MIN_FREE = 64 * 2**20
_MIN_FILES = 4096
_MIN_SHM = 2**30
_MAX_SKEW_SECONDS = 30.0
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+),")
_FAULTY_XIDS = frozenset({48, 62, 64, 74, 79, 94, 95, 109, 119, 120, 140, 143})
"""Xids of hardware and firmware errors; others are often errors of the program."""

_RECENT_SECONDS = 24 * 3600.0
_RESET = "Reset the GPU or reboot the host, then release the node."


def gpu_errors(numbers: Mapping[str, int], health: Mapping[str, GpuHealth]) -> Iterator[Finding]:
    """Find memory errors of these GPUs (numbers by id)."""
    for uuid, number in numbers.items():
        status = health.get(uuid)
        if status is None:
            continue
        if status.uncorrected:
            count = f"{status.uncorrected} uncorrectable ECC error"
            summary = f"GPU {number} has {count}{'s' if status.uncorrected > 1 else ''}"
            yield make_finding("ecc", FAULT, summary, _RESET)
        if status.remap_failed:
            summary = f"GPU {number} failed to remap a row of its memory"
            yield make_finding("ecc", FAULT, summary, "Replace the GPU, then release the node.")


def xid_errors(path: str = "/dev/kmsg") -> Iterator[Finding]:
    """Find recent hardware errors of GPUs in the kernel's log, if readable."""
    found: Set[str] = set()
    oldest = time.clock_gettime(time.CLOCK_MONOTONIC) - _RECENT_SECONDS
    for line in _kernel_log(path):
        head, _, text = line.partition(";")
        fields, match = head.split(","), _XID.search(text)
        if match is None or len(fields) < 3 or int(match[2]) not in _FAULTY_XIDS:
            continue
        seconds = int(fields[2]) / 1e6
        if seconds >= oldest and match[1] not in found:
            found.add(match[1])
            summary = f"GPU at {match[1]} had Xid {match[2]}, {seconds:.0f} s after boot"
            yield make_finding("xid", FAULT, summary, _RESET)


def _kernel_log(path: str) -> Iterator[str]:
    """Yield records of kmsg; nothing without permission."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return
    try:
        while True:
            try:
                data = os.read(descriptor, 8192)
            except OSError as error:
                if error.errno == errno.EPIPE:  # the record was overwritten meanwhile
                    continue
                return
            if not data:
                return
            yield from data.decode(errors="replace").splitlines()
    finally:
        os.close(descriptor)


def disk_findings(cache: Path, scratch: Path, size: int, needed: int = 0) -> Iterator[Finding]:
    """Check that ``scratch`` has ``needed`` bytes free, and write ``size`` bytes to each of the two disks."""
    free = free_space(str(scratch))
    if free is not None and free < max(needed, _MIN_FREE):
        use = f", {format_bytes(needed)} needed for checkpoints (volume_size_gib)" if needed else ""
        summary = f"{format_bytes(free)} free in {scratch}{use}"
        yield make_finding("space", ERROR, summary, "Free disk space.")
    disks: Dict[int, Path] = {}
    for directory in map(_existing, (scratch, cache)):
        disks.setdefault(directory.stat().st_dev, directory)
    for directory in disks.values() if size else ():
        if (free_space(str(directory)) or 0) > size + _MIN_FREE:  # deliveries report a full cache
            finding = probe_disk(directory, size)
            if finding is not None:
                yield finding


def probe_disk(directory: Path, size: int) -> Optional[Finding]:
    """Write and sync a file that has no name afterwards; at most 2.5 s."""
    path = directory / f".preflight-{os.getpid()}"
    block, written, began = os.urandom(min(size, _STEP_BYTES)), 0, time.monotonic()
    try:
        descriptor = os.open(str(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            path.unlink()
            while written < size and time.monotonic() - began < _PROBE_SECONDS:
                written += os.write(descriptor, block)
                os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        level = FAULT if error.errno in (errno.EIO, errno.EROFS) else ERROR
        summary = f"cannot write to {directory}: {error.strerror}"
        return make_finding("disk", level, summary, "Check the file system and its permissions.")
    rate = written / max(time.monotonic() - began, 1e-6)
    if rate >= _SLOW_BYTES or written < _STEP_BYTES:
        return None
    summary = f"{directory} is slow: {format_bytes(int(rate))}/s"
    return make_finding("disk", WARNING, summary, "Use a faster disk: cache: {node: {dir: …}}.")


def limit_findings(uses_shm: bool, shm: str = "/dev/shm") -> Iterator[Finding]:  # noqa: S108
    """Check the limit of open files, and the size of shared memory for GPU jobs."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if most != resource.RLIM_INFINITY and most < _MIN_FILES:
        remedy = "Raise nofile in /etc/security/limits.conf."
        yield make_finding("limits", WARNING, f"at most {most} open files", remedy)
    with contextlib.suppress(OSError):
        status = os.statvfs(shm)
        size = status.f_blocks * status.f_frsize
        if uses_shm and size < _MIN_SHM:
            summary = f"{shm} has {format_bytes(size)}: data loaders and NCCL may fail"
            yield make_finding("shm", WARNING, summary, f"Mount a larger tmpfs on {shm}.")


def clock_findings(directory: Path) -> Iterator[Finding]:
    """Compare this clock with that of the directory's file server, which dates new files."""
    path = directory / f".clock-{os.getpid()}"
    with contextlib.suppress(OSError):
        path.write_bytes(b".")
        skew = time.time() - path.stat().st_mtime
        path.unlink()
        if abs(skew) > _MAX_SKEW_SECONDS:
            summary = f"its clock is {abs(skew):.0f} s {'ahead' if skew > 0 else 'behind'}"
            yield make_finding("clock", WARNING, summary, "Run chrony or ntpd.")


def _existing(path: Path) -> Path:
    """Return the path or its nearest existing ancestor."""
    while not path.is_dir() and path != path.parent:
        path = path.parent
    return path
