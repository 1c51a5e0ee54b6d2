"""Listen on several addresses of this host, at one port that is free and allowed."""

from __future__ import annotations

import errno
import os
import random
import re
import socket
from typing import Any, Callable, List, Optional, Sequence, TypeVar

from trainctl.base.failure import Failure

T = TypeVar("T")
_BACKLOG = 256
_RANGE = re.compile(r"([0-9]{1,5})-([0-9]{1,5})")


def parse_port_range(text: Any) -> Optional[range]:
    """Parse ``29000-29100`` (inclusive); None for no text, Failure if invalid."""
    if not text:
        return None
    match = _RANGE.fullmatch(str(text))
    ports = range(int(match[1]), int(match[2]) + 1) if match else range(0)
    if not ports or ports[0] < 1 or ports[-1] > 65535:
        raise Failure("request", f"{text!r} is not a range of ports")
    return ports


def bind_first_free(ports: range, bind: Callable[[int], T]) -> T:
    """Return what ``bind`` returns for a free port; Failure if none is free."""
    for port in random.sample(ports, len(ports)):
        try:
            return bind(port)
        except OSError as error:  # noqa: PERF203
            if error.errno != errno.EADDRINUSE:
                raise
    raise Failure(
        "ports",
        f"none of the ports {ports[0]}-{ports[-1]} is free on {os.uname().nodename}",
        "Stop the programs that listen there, or give the host more ports.",
    )


def listen(addresses: Sequence[str], ports: Optional[range] = None) -> List[socket.socket]:
    """Listen on those of the addresses that exist, at one of ``ports`` or any.

    OSError if it has none of the addresses, Failure if none of the ports is free.
    """
    if ports is not None:
        return bind_first_free(ports, lambda port: _bind_listeners(addresses, port))
    return _bind_listeners(addresses, 0)


def _bind_listeners(addresses: Sequence[str], port: int) -> List[socket.socket]:
    """Bind all addresses; OSError (EADDRINUSE) if ``port`` is taken on one."""
    listeners: List[socket.socket] = []
    for address in addresses:
        chosen = port or (listeners[0].getsockname()[1] if listeners else 0)
        try:
            listeners.append(_bind_listener(address, chosen, reuse=port != 0))
        except OSError as error:
            if port and error.errno == errno.EADDRINUSE:
                for listener in listeners:
                    listener.close()
                raise
    if not listeners:
        raise OSError(f"this host has none of the addresses {', '.join(addresses)}")
    return listeners


def _bind_listener(address: str, port: int, *, reuse: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if reuse:  # connections of a stopped server don't block its port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener
