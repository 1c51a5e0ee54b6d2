"""The port at which the processes of a gang's job meet, reserved until just before they are started."""

from __future__ import annotations

import errno
import socket
from typing import Optional

from trainctl.base.ports import at_one_of

_PORTS = range(20000, 30000)
"""Below the ports of outgoing connections (net.ipv4.ip_local_port_range, from 32768 on), so that none takes it once it is released."""


class Rendezvous:
    """Holds one of the ports of this host, on all of its addresses.

    It is held by listening with SO_REUSEADDR, so that connections closed a minute ago (TIME_WAIT) don't bar it; servers that
    set the same option, as torch's and Python's do, may listen there afterwards.
    """

    def __init__(self, ports: Optional[range] = None) -> None:
        self._ports = _PORTS if ports is None else ports
        self._held: Optional[socket.socket] = None

    def allocate(self) -> int:
        """A free port, another each time. Failure if there is none."""
        self.release()
        self._held = at_one_of(self._ports, _listening)
        return int(self._held.getsockname()[1])

    def release(self) -> None:
        """Leave the port to the job."""
        if self._held is not None:
            self._held.close()
            self._held = None


def _listening(port: int) -> socket.socket:
    """A listener of both families where the host has IPv6, as rank 0's store may listen on either."""
    try:
        return _listening_by(socket.AF_INET6, "::", port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise
        return _listening_by(socket.AF_INET, "0.0.0.0", port)  # noqa: S104 - nobody is answered


def _listening_by(family: int, address: str, port: int) -> socket.socket:
    held = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((address, port))
        held.listen(0)  # of two that bind at once, the kernel lets one listen
    except OSError:
        held.close()
        raise
    return held
