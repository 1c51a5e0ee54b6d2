"""A port at which the ranks of a gang meet: nobody else's until just before their commands begin."""

from __future__ import annotations

import contextlib
import errno
import random
import socket
from typing import Optional

_PORTS = range(20000, 30000)
"""Below the ports that Linux gives to outgoing connections (net.ipv4.ip_local_port_range, from 32768 on), so that none takes it as soon as
it is given up."""

_ATTEMPTS = 200


class Rendezvous:
    """Holds a port of this host, on all of its addresses: bound and not listening, so that nobody can connect to it meanwhile."""

    def __init__(self) -> None:
        self._held: Optional[socket.socket] = None

    def allocate(self) -> int:
        """A port that is free, another each time. OSError if there is none."""
        self.release()
        for _ in range(_ATTEMPTS):
            port = random.choice(_PORTS)  # noqa: S311 - two that choose at once should choose differently
            with contextlib.suppress(OSError):
                self._held = _bound(port)
                return port
        raise OSError("no port from 20000 to 29999 is free")

    def release(self) -> None:
        """Leave the port to the job."""
        if self._held is not None:
            self._held.close()
            self._held = None


def _bound(port: int) -> socket.socket:
    """Both families where the host has IPv6, as rank 0's store may listen on either."""
    try:
        return _bound_by(socket.AF_INET6, "::", port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise
        return _bound_by(socket.AF_INET, "0.0.0.0", port)  # noqa: S104 - never listens


def _bound_by(family: int, address: str, port: int) -> socket.socket:
    held = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        held.bind((address, port))
    except OSError:
        held.close()
        raise
    return held
