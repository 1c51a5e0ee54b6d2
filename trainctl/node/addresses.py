"""The addresses under which others reach this host: of Linux's interfaces, without those of containers; and which may serve them."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import socket
import struct
from pathlib import Path
from typing import Any, Iterator, List

from trainctl.node.failure import Failure

_SIOCGIFADDR = 0x8915
"""linux/sockios.h: the address of an interface, in bytes 20 to 23 of a struct ifreq."""

_INTERNAL = ("lo", "docker", "virbr", "veth", "cni", "podman")


def addresses() -> List[str]:
    """IPv4 first, each once; neither loopback nor link-local."""
    found = []
    for text in (*_ipv4(), *_ipv6()):
        address = ipaddress.ip_address(text)
        if not (address.is_loopback or address.is_link_local) and text not in found:
            found.append(text)
    return found


def private_family(address: Any) -> socket.AddressFamily:
    """The family of an address that a server may listen on; Failure for one that the world can reach."""
    try:
        found = ipaddress.ip_address(str(address))
    except ValueError:
        raise Failure("request", f"{address!a} is no IP address to listen on") from None
    if found.is_global or found.is_unspecified or found.is_multicast:
        raise Failure(
            "request",
            f"weights are not served on {address}, which is no private address",
            "Name an address of a private network of the nodes.",
        )
    return socket.AF_INET if found.version == 4 else socket.AF_INET6


def _ipv4() -> Iterator[str]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        for _, name in socket.if_nameindex():
            if not name.startswith(_INTERNAL):
                with contextlib.suppress(OSError):  # it has none
                    asked = struct.pack("256s", name.encode()[:15])
                    answer = fcntl.ioctl(one.fileno(), _SIOCGIFADDR, asked)
                    yield socket.inet_ntoa(answer[20:24])


def _ipv6() -> Iterator[str]:
    """proc(5), /proc/net/if_inet6: the address in hex, then number, prefix, scope (00: global), flags and the interface."""
    try:
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        digits, _, _, scope, _, name = line.split()
        if scope == "00" and not name.startswith(_INTERNAL):
            yield str(ipaddress.IPv6Address(bytes.fromhex(digits)))
