"""The addresses under which others reach this host: of Linux's interfaces, without those of containers; and which of them are private."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import socket
import struct
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Dict, Iterator, List, Union

from trainctl.node.system.failure import Failure

_SIOCGIFADDR = 0x8915
"""linux/sockios.h: the address of an interface, in bytes 20 to 23 of a struct ifreq."""

_INTERNAL = ("lo", "docker", "virbr", "veth", "cni", "podman")

_PRIVATE = (
    "127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "169.254.0.0/16",
    "::1/128", "fc00::/7", "fe80::/10",
)  # fmt: skip
"""Never routed to the world: RFC 1122, 1918, 6598 and 3927; RFC 4291 and 4193."""


def addresses() -> List[str]:
    """IPv4 first, each once; neither loopback nor link-local."""
    found = []
    for text in (*_ipv4(), *_ipv6()):
        address = ipaddress.ip_address(text)
        if not (address.is_loopback or address.is_link_local) and text not in found:
            found.append(text)
    return found


def own_address() -> str:
    """Where others reach this host: the address that the caller's SSH connection came to; loopback without one. Source: sshd(8), SSH_CONNECTION."""
    words = os.environ.get("SSH_CONNECTION", "").split()
    return words[2].partition("%")[0] if len(words) == 4 else "127.0.0.1"


def serving_terms() -> Dict[str, Any]:
    """How this host would hand out weights to others: whether over ``tls``, and ``why`` it can't, if it can't."""
    address = own_address()
    tls = not is_private(address)
    lacking = tls and find_spec("_ssl") is None
    why = f"{address} is no private address, and {sys.executable} there has no TLS"
    return {"tls": tls, "why": why if lacking else ""}


def family(address: Any) -> socket.AddressFamily:
    """The family of an address that a server may listen on; Failure for all addresses at once, groups, and names."""
    found = _address(address)
    if found.is_unspecified or found.is_multicast:
        raise Failure("request", f"weights are served on one address, which {address} is not")
    return socket.AF_INET if found.version == 4 else socket.AF_INET6


def is_private(address: Any) -> bool:
    """Whether it is of a network that the world doesn't route to, or of this host alone; Failure for what is no address."""
    found = _address(address)
    return any(found in ipaddress.ip_network(one) for one in _PRIVATE)


def _address(text: Any) -> Union[ipaddress.IPv4Address, ipaddress.IPv6Address]:
    try:
        return ipaddress.ip_address(str(text))
    except ValueError:
        raise Failure("request", f"{text!a} is no IP address to listen on") from None


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
