"""A port at which the ranks of a gang meet: nobody else's until just before their commands begin."""

from __future__ import annotations

import errno
import socket
from typing import Optional

from trainctl.base.failure import Failure
from trainctl.base.ports import at_one_of

_PORTS = range(20000, 30000)
"""Below the ports that Linux gives to outgoing connections (net.ipv4.ip_local_port_range, from 32768 on), so that none takes it as soon as
it is given up."""


class Rendezvous:
    """Holds one of the ports of this host, on all of its addresses: bound and not listening, so that nobody can connect to it meanwhile.

    Where every port is taken, if only by connections that were closed a minute ago (TIME_WAIT), one of the latter is held by listening: whoever sets
    SO_REUSEADDR, as torch's and Python's servers do, may listen there afterwards, and nobody before.
    """

    def __init__(self, ports: Optional[range] = None) -> None:
        self._ports = _PORTS if ports is None else ports
        self._held: Optional[socket.socket] = None

    def allocate(self) -> int:
        """A port that is free, another each time. Failure if there is none."""
        self.release()
        try:
            self._held = at_one_of(self._ports, _bound)
        except Failure:
            self._held = at_one_of(self._ports, _listening)
        return int(self._held.getsockname()[1])

    def release(self) -> None:
        """Leave the port to the job."""
        if self._held is not None:
            self._held.close()
            self._held = None


def _listening(port: int) -> socket.socket:
    """Two that do so at once don't both succeed: the kernel looks again when the second listens."""
    held = _bound(port, reused=True)
    try:
        held.listen(0)
    except OSError:
        held.close()
        raise
    return held


def _bound(port: int, *, reused: bool = False) -> socket.socket:
    """Both families where the host has IPv6, as rank 0's store may listen on either."""
    try:
        return _bound_by(socket.AF_INET6, "::", port, reused)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise
        return _bound_by(socket.AF_INET, "0.0.0.0", port, reused)  # noqa: S104 - nobody is answered


def _bound_by(family: int, address: str, port: int, reused: bool) -> socket.socket:
    held = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        if reused:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((address, port))
    except OSError:
        held.close()
        raise
    return held
