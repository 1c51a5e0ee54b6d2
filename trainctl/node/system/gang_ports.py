"""Check the connections between the hosts of a gang: each listens, and connects to all others."""

from __future__ import annotations

import contextlib
import fcntl
import select
import socket
import struct
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

from trainctl.base.failure import Failure
from trainctl.base.network.listener import bind_first_free, listen, parse_port_range
from trainctl.base.parallel import each
from trainctl.base.protocol.preflight import (
    PortOfRank,
    PreflightPortsRequest,
    PreflightPortsResponse,
)

_SECONDS = 1.5
"""Time until all hosts must have reached each other; calls may begin late."""

_ANY_PORT = range(20000, 32000)
"""Below the range of outgoing connections, which could take the port."""

_CONNECT_SECONDS = 0.3
_RETRY_SECONDS = 0.05
_SIOCGIFADDR, _SIOCGIFMTU = 0x8915, 0x8921
"""linux/sockios.h: address and MTU of an interface."""


def free_port(text: str) -> int:
    """Return a free port of a range (empty: any); Failure if none is free."""

    def bind(port: int) -> int:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(("0.0.0.0", port))  # noqa: S104 - closed at once
            sock.listen(0)  # SO_REUSEADDR lets bind succeed on a port in use
            return int(sock.getsockname()[1])

    return bind_first_free(parse_port_range(text) or _ANY_PORT, bind)


def preflight_ports(
    request: PreflightPortsRequest, emit: Callable[[Dict[str, Any]], None]
) -> PreflightPortsResponse:
    """Listen until all ranks have connected or the time is over; connect to all of them."""
    rank, hosts = request["rank"], request["hosts"]
    own, deadline = hosts[rank], time.monotonic() + _SECONDS
    others = [other for other in range(len(hosts)) if other != rank]
    try:
        listeners = listen(own["addresses"], range(own["port"], own["port"] + 1))
    except (OSError, Failure) as error:
        return {"unreached": [], "mtu": None, "problem": str(error)}
    answering = threading.Thread(
        target=_answer, args=(listeners, set(others), _reply(request, rank), deadline), daemon=True
    )
    answering.start()

    def reach(other: int) -> Optional[str]:
        return _reach(hosts[other], rank, _reply(request, other), deadline)

    local = each(reach, others, len(others))
    answering.join()
    unreached = [other for other, address in zip(others, local) if address is None]
    return {"unreached": unreached, "mtu": _mtu(local[0]) if local else None, "problem": ""}


def _reply(request: PreflightPortsRequest, rank: int) -> bytes:
    """Another host may have the same private address: a reply names check and rank."""
    return f"{request['token']} {rank}\n".encode()


def _answer(
    listeners: Sequence[socket.socket], missing: Set[int], reply: bytes, deadline: float
) -> None:
    """Send ``reply`` to all that connect, until none of the ranks is missing."""
    with contextlib.ExitStack() as stack:
        for listener in listeners:
            stack.enter_context(listener)
        while missing and time.monotonic() < deadline:
            ready = select.select(listeners, [], [], max(0.0, deadline - time.monotonic()))[0]
            for listener in ready:
                with contextlib.suppress(OSError, ValueError), listener.accept()[0] as connection:
                    connection.settimeout(_CONNECT_SECONDS)
                    missing.discard(int(connection.recv(8)))
                    connection.sendall(reply)


def _reach(host: PortOfRank, rank: int, reply: bytes, deadline: float) -> Optional[str]:
    """Return the local address of the connection to a host; None if there is none in time."""
    while time.monotonic() < deadline:
        for address in host["addresses"]:
            target: Tuple[str, int] = (address, host["port"])
            with contextlib.suppress(OSError):
                seconds = min(_CONNECT_SECONDS, max(0.01, deadline - time.monotonic()))
                with socket.create_connection(target, seconds) as connection:
                    connection.sendall(f"{rank:<8}".encode())
                    if connection.recv(len(reply)) == reply:
                        return str(connection.getsockname()[0])
        time.sleep(_RETRY_SECONDS)
    return None


def _mtu(address: Optional[str]) -> Optional[int]:
    """Return the MTU of the interface with an IPv4 address; None if unknown."""
    if address is None or ":" in address:
        return None
    mtus: List[int] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it has no address
                interface = struct.pack("256s", name.encode()[:15])
                found = fcntl.ioctl(sock.fileno(), _SIOCGIFADDR, interface)[20:24]
                if socket.inet_ntoa(found) == address:
                    answer = fcntl.ioctl(sock.fileno(), _SIOCGIFMTU, interface)
                    mtus.append(int(struct.unpack_from("i", answer, 16)[0]))
    return mtus[0] if mtus else None
