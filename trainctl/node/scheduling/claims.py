"""Exclusive claims on a host by abstract Unix sockets.

A name belongs to one socket per network namespace until its last descriptor is closed; see unix(7), "Abstract
sockets". To wait for a name, a process connects to its holder; the kernel reports the disconnect.
"""

from __future__ import annotations

import errno
import select
import socket
import struct
from typing import Iterable, List, Optional

_BACKLOG = 1024
_CREDENTIALS = struct.Struct("iII")
"""PID, UID and GID of the process that called listen: unix(7), SO_PEERCRED."""
_FREE = (errno.ECONNREFUSED, errno.ENOENT)


class Claims:
    """Names held by this process, and by children that inherit the descriptors."""

    def __init__(self) -> None:
        self._sockets: List[socket.socket] = []

    @property
    def descriptors(self) -> List[int]:
        """Descriptors that a child must inherit to hold the names."""
        return [held.fileno() for held in self._sockets]

    def acquire(self, name: str) -> bool:
        """Claim a name; False if it is held."""
        claim = _claim(name)
        if claim is None:
            return False
        self._sockets.append(claim)
        return True

    def acquire_some(self, names: Iterable[str], count: int) -> List[str]:
        """Claim ``count`` of the names in this order, or none; the claimed names.

        Gives up as soon as too few remain, so that two processes that need all names don't block each other forever.
        """
        remaining = list(names)
        claimed: List[str] = []
        sockets: List[socket.socket] = []
        while remaining and len(claimed) < count <= len(claimed) + len(remaining):
            name = remaining.pop(0)
            claim = _claim(name)
            if claim is not None:
                claimed.append(name)
                sockets.append(claim)
        if len(claimed) < count:
            _close(sockets)
            return []
        self._sockets += sockets
        return claimed

    def release(self) -> None:
        """Release all names."""
        _close(self._sockets)
        self._sockets = []


def is_held(name: str) -> bool:
    """Check whether any process holds the name."""
    with _socket() as probe:
        return probe.connect_ex(_address(name)) not in _FREE


def holder_pid(name: str) -> int:
    """PID of the process that claimed a name; 0 if unknown."""
    with _socket() as probe:
        if probe.connect_ex(_address(name)) != 0:
            return 0
        credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[0])


def wait_for_release(names: Iterable[str], seconds: float, *descriptors: int) -> None:
    """Wait until a name is released, a descriptor is readable, or the time is over."""
    waiting: List[socket.socket] = []
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    try:
        for name in names:
            connection = _socket()
            waiting.append(connection)
            error = connection.connect_ex(_address(name))
            if error in _FREE:
                return
            if error == 0:  # otherwise the backlog is full; rely on the timeout
                poll.register(connection, select.POLLIN)
        poll.poll(seconds * 1000)
    finally:
        _close(waiting)


def _claim(name: str) -> Optional[socket.socket]:
    claim = _socket()
    try:
        claim.bind(_address(name))
        claim.listen(_BACKLOG)
    except OSError as error:
        claim.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise
    return claim


def _socket() -> socket.socket:
    """Create a socket that is closed on exec, so that jobs don't inherit it."""
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    claim.setblocking(False)
    return claim


def _address(name: str) -> bytes:
    return b"\0trainctl/" + name.encode()


def _close(sockets: Iterable[socket.socket]) -> None:
    for claim in sockets:
        claim.close()
