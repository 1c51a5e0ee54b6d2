"""Claims on a host by abstract Unix sockets: names that one process holds, for all users, and that vanish with it.

The kernel gives a name to one socket of a network namespace at a time and takes it back when the last descriptor is closed, however its
holder ended; unix(7), "Abstract sockets". A process that waits for a name connects to its holder, and the kernel reports when that is gone.
"""

from __future__ import annotations

import errno
import select
import socket
import struct
from typing import Iterable, List, Optional

_BACKLOG = 1024
_CREDENTIALS = struct.Struct("iII")
"""unix(7), SO_PEERCRED: process, user and group that called listen, as the kernel knows them."""
_FREE = (errno.ECONNREFUSED, errno.ENOENT)


class Claims:
    """The names that this process holds; children that keep the descriptors hold them, too."""

    def __init__(self) -> None:
        self._sockets: List[socket.socket] = []

    @property
    def descriptors(self) -> List[int]:
        """What a child has to keep open to hold the names as long as it lives."""
        return [one.fileno() for one in self._sockets]

    def take(self, name: str) -> bool:
        """Claim a name; False if it is held."""
        claimed = _claim(name)
        if claimed is None:
            return False
        self._sockets.append(claimed)
        return True

    def take_some(self, names: Iterable[str], count: int) -> List[str]:
        """Claim ``count`` of the names, in this order, or none; those that were claimed.

        Who can't get enough any more stops at once, so that two who want everything don't take turns at preventing each other.
        """
        left = list(names)
        taken: List[str] = []
        claimed: List[socket.socket] = []
        while left and len(taken) < count <= len(taken) + len(left):
            name = left.pop(0)
            held = _claim(name)
            if held is not None:
                taken.append(name)
                claimed.append(held)
        if len(taken) < count:
            _close(claimed)
            return []
        self._sockets += claimed
        return taken

    def release(self) -> None:
        """Give all of them up."""
        _close(self._sockets)
        self._sockets = []


def is_held(name: str) -> bool:
    """Whether the name is held."""
    with _socket() as probe:
        return probe.connect_ex(_address(name)) not in _FREE


def holder_pid(name: str) -> int:
    """PID of the process that claimed a name; 0 if it can't be seen from here, or the name is free."""
    with _socket() as probe:
        if probe.connect_ex(_address(name)) != 0:
            return 0
        said = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(said)[0])


def wait_for_release(names: Iterable[str], seconds: float, *descriptors: int) -> None:
    """Wait until one of the names is given up, or one of the descriptors can be read, but not longer."""
    waiting: List[socket.socket] = []
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    try:
        for name in names:
            one = _socket()
            waiting.append(one)
            problem = one.connect_ex(_address(name))
            if problem in _FREE:
                return
            if problem == 0:  # else too many wait for it already: the time will tell
                poll.register(one, select.POLLIN)
        poll.poll(seconds * 1000)
    finally:
        _close(waiting)


def _claim(name: str) -> Optional[socket.socket]:
    one = _socket()
    try:
        one.bind(_address(name))
        one.listen(_BACKLOG)
    except OSError as error:
        one.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise
    return one


def _socket() -> socket.socket:
    """Closed by exec, as all of Python's are, so that no program of the job's holds it."""
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    one.setblocking(False)
    return one


def _address(name: str) -> bytes:
    return b"\0trainctl/" + name.encode()


def _close(sockets: Iterable[socket.socket]) -> None:
    for one in sockets:
        one.close()
