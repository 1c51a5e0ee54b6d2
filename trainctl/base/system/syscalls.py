"""System calls that Python 3.8 lacks, and children that inherit no other files.

Errors are OSError.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from typing import Callable, Optional, Union

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_NOATIME = 1024
MS_NODIRATIME = 2048
MS_BIND = 4096
MS_MOVE = 8192
MS_REC = 16384
MS_UNBINDABLE = 1 << 17
MS_PRIVATE = 1 << 18
MS_SLAVE = 1 << 19
MS_RELATIME = 1 << 21
MNT_DETACH = 2

FALLOC_FL_KEEP_SIZE = 1
FALLOC_FL_PUNCH_HOLE = 2

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_M_ARENA_MAX = -8
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "ppc64le": 203, "s390x": 217, "riscv64": 41}
_LIBC = ctypes.CDLL(None, use_errno=True)

# statvfs(3) flag -> mount(2) flag: flags that a remount in a user namespace may not drop
_LOCKED = (
    (2, MS_NOSUID),
    (4, MS_NODEV),
    (8, MS_NOEXEC),
    (1024, MS_NOATIME),
    (2048, MS_NODIRATIME),
    (4096, MS_RELATIME),
)


def unshare(flags: int) -> None:
    """Call unshare(2)."""
    _check(_LIBC.unshare(ctypes.c_int(flags)), "unshare")


def setns(descriptor: int) -> None:
    """Join a namespace, opened in ``/proc/PID/ns``: setns(2)."""
    _check(_LIBC.setns(ctypes.c_int(descriptor), ctypes.c_int(0)), "setns")


def mount(
    source: Optional[str], target: str, kind: Optional[str], flags: int, data: Optional[str] = None
) -> None:
    """Call mount(2)."""
    result = _LIBC.mount(
        _text(source), _text(target), _text(kind), ctypes.c_ulong(flags), _text(data)
    )
    _check(result, target)


def unmount(target: str, flags: int = 0) -> None:
    """Call umount2(2)."""
    _check(_LIBC.umount2(_text(target), ctypes.c_int(flags)), target)


def pivot_root(new_root: str, put_old: str) -> None:
    """Call pivot_root(2)."""
    number = _PIVOT_ROOT.get(os.uname().machine)
    if number is None:
        raise OSError(38, f"pivot_root is not supported on {os.uname().machine}")
    result = _LIBC.syscall(ctypes.c_long(number), _text(new_root), _text(put_old))
    _check(result, new_root)


def prctl(option: int, value: int) -> None:
    """Call prctl(2) with one argument."""
    zero = ctypes.c_ulong(0)
    _check(_LIBC.prctl(ctypes.c_int(option), ctypes.c_ulong(value), zero, zero, zero), "prctl")


def release_free_memory() -> None:
    """Return freed memory to the system, if the C library has malloc_trim(3)."""
    call = getattr(_LIBC, "malloc_trim", None)
    if call is not None:
        call(ctypes.c_size_t(0))


def limit_malloc_arenas() -> None:
    """Limit new threads to two malloc arenas: M_ARENA_MAX of mallopt(3).

    By default there are eight for each processor, and memory freed in one is not reused in others.
    """
    _mallopt(_M_ARENA_MAX, 2)


def keep_freed_memory() -> None:
    """Reuse freed buffers of up to 4 MiB, M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of mallopt(3).

    By default those of 128 KiB and more may be returned to the system, and each new one costs page faults.
    """
    _mallopt(_M_MMAP_THRESHOLD, 2**22)
    _mallopt(_M_TRIM_THRESHOLD, 2**23)


def _mallopt(parameter: int, value: int) -> None:
    call = getattr(_LIBC, "mallopt", None)
    if call is not None:
        call(ctypes.c_int(parameter), ctypes.c_int(value))


def punch_hole(descriptor: int, offset: int, length: int) -> None:
    """Free the blocks of a range, which then reads as zeros; see fallocate(2)."""
    call = getattr(_LIBC, "fallocate64", _LIBC.fallocate)
    flags = ctypes.c_int(FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE)
    result = call(descriptor, flags, ctypes.c_int64(offset), ctypes.c_int64(length))
    _check(result, "fallocate")


def syncfs(descriptor: int, path: str) -> None:
    """Call syncfs(2) on an open directory; errors name ``path``."""
    _check(_LIBC.syncfs(descriptor), path)


def remount_read_only(target: str) -> None:
    """Make one bind mount read-only, keeping the flags that can't be dropped."""
    present = os.statvfs(target).f_flag
    locked = sum(flag for bit, flag in _LOCKED if present & bit)
    mount(None, target, None, MS_BIND | MS_REMOUNT | MS_RDONLY | locked)


def close_other_descriptors(*kept: int) -> None:
    """Close all files but standard streams and ``kept``."""
    spared = {0, 1, 2, *kept}
    for number in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208 - no import of pathlib
        if number not in spared:
            with contextlib.suppress(OSError):  # the descriptor of the listing is already closed
                os.close(number)


def fork_child(work: Callable[[], int], *kept: int) -> int:
    """Fork a child that runs ``work`` and is killed with its parent; return its PID.

    Of the parent's files it keeps ``kept`` and the standard streams.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        close_other_descriptors(*kept)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            code = work()
    except BaseException:  # noqa: BLE001 - this process has no caller
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
    finally:
        os._exit(code)


def _text(value: Optional[str]) -> Union[bytes, None]:
    return None if value is None else os.fsencode(value)


def _check(result: int, subject: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), subject)
