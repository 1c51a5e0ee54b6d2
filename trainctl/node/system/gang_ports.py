"""Check the connections between the hosts of a gang: each listens, and connects to all others."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from typing import Any, Callable, Dict, Optional, Sequence, Set, Tuple

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
_IP_MTU = 14
"""linux/in.h: MTU of the route of a connected socket."""


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

    def reach(other: int) -> Optional[int]:
        return _reach(hosts[other], rank, _reply(request, other), deadline)

    mtus = each(reach, others, len(others))
    answering.join()
    unreached = [other for other, mtu in zip(others, mtus) if mtu is None]
    return {"unreached": unreached, "mtu": next(iter(mtus), None) or None, "problem": ""}


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


def _reach(host: PortOfRank, rank: int, reply: bytes, deadline: float) -> Optional[int]:
    """Return the MTU to a host, 0 if unknown; None if there is no connection in time."""
    while time.monotonic() < deadline:
        for address in host["addresses"]:
            target: Tuple[str, int] = (address, host["port"])
            with contextlib.suppress(OSError):
                seconds = min(_CONNECT_SECONDS, max(0.01, deadline - time.monotonic()))
                with socket.create_connection(target, seconds) as connection:
                    connection.sendall(f"{rank:<8}".encode())
                    if connection.recv(len(reply)) == reply:
                        is_v4 = connection.family is socket.AF_INET
                        return connection.getsockopt(socket.IPPROTO_IP, _IP_MTU) if is_v4 else 0
        time.sleep(_RETRY_SECONDS)
    return None
