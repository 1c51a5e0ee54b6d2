"""Listening at several addresses of this host, all at one port."""

from __future__ import annotations

import errno
import socket
from typing import List, Optional, Sequence

from trainctl.base.network.ports import bind_first_free

_BACKLOG = 256


def listen(addresses: Sequence[str], ports: Optional[range] = None) -> List[socket.socket]:
    """Listeners at those of the addresses that this host has, all at one port, which is one of ``ports`` or any.

    OSError if it has none of the addresses, Failure if none of the ports is free.
    """
    if ports is not None:
        return bind_first_free(ports, lambda port: _bind_listeners(addresses, port))
    return _bind_listeners(addresses, 0)


def _bind_listeners(addresses: Sequence[str], port: int) -> List[socket.socket]:
    """The first one chooses where ``port`` is 0. OSError (EADDRINUSE) where a port that was named is another's at one of the addresses."""
    found: List[socket.socket] = []
    for address in addresses:
        chosen = port or (found[0].getsockname()[1] if found else 0)
        try:
            one = _bind_listener(address, chosen, named=port != 0)
        except OSError as error:
            if port and error.errno == errno.EADDRINUSE:
                for other in found:
                    other.close()
                raise
            continue
        found.append(one)
    if not found:
        raise OSError(f"this host has none of the addresses {', '.join(addresses)}")
    return found


def _bind_listener(address: str, port: int, *, named: bool) -> socket.socket:
    one = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        if named:  # connections of a server that has ended bar no port
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind((address, port))
        one.listen(_BACKLOG)
        one.setblocking(False)
    except OSError:
        one.close()
        raise
    return one
