"""A port at which the ranks of a gang meet: nobody else's until just before their commands begin."""

from __future__ import annotations

import errno
import socket
from typing import Optional

from trainctl.node.system.ports import at_one_of

_PORTS = range(20000, 30000)
"""Below the ports that Linux gives to outgoing connections (net.ipv4.ip_local_port_range, from 32768 on), so that none takes it as soon as
it is given up."""


class Rendezvous:
    """Holds one of the ports of this host, on all of its addresses: bound and not listening, so that nobody can connect to it meanwhile."""

    def __init__(self, ports: Optional[range] = None) -> None:
        self._ports = _PORTS if ports is None else ports
        self._held: Optional[socket.socket] = None

    def allocate(self) -> int:
        """A port that is free, another each time. Failure if there is none."""
        self.release()
        self._held = at_one_of(self._ports, _bound)
        return int(self._held.getsockname()[1])

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
