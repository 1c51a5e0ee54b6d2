"""Addresses by which other hosts reach this one (Linux)."""

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
from typing import Any, Iterator, List, NamedTuple, Sequence, Union

from trainctl.base.failure import Failure
from trainctl.base.protocol import host
from trainctl.base.system.processes import boot_id

_SIOCGIFADDR = 0x8915
"""linux/sockios.h: address of an interface, in bytes 20 to 23 of struct ifreq."""

_IGNORED_INTERFACES = ("lo", "docker", "virbr", "veth", "cni", "podman")

_LOOPBACK = "127.0.0.1"

_PRIVATE = (
    "127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "169.254.0.0/16",
    "::1/128", "fc00::/7", "fe80::/10",
)  # fmt: skip
"""Not routed publicly: RFC 1122, 1918, 6598 and 3927; RFC 4291 and 4193."""


def addresses() -> List[str]:
    """Return the host's addresses, IPv4 first, without loopback and containers."""
    unique = []
    for text in (*_ipv4(), *_ipv6()):
        address = ipaddress.ip_address(text)
        if not (address.is_loopback or address.is_link_local) and text not in unique:
            unique.append(text)
    return unique


def connection_address() -> str:
    """Return the local address of the SSH connection, or loopback; see sshd(8)."""
    words = os.environ.get("SSH_CONNECTION", "").split()
    address = words[2].partition("%")[0] if len(words) == 4 else ""
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(address))
    return _LOOPBACK


def network_id() -> str:
    """Return an id of the network namespace, which has one loopback interface."""
    try:
        return f"{boot_id()} {os.readlink('/proc/self/ns/net')}"
    except OSError:
        return ""


def shared_loopback_network(listening: Sequence[str]) -> str:
    """Return the network id if one of the addresses is loopback, else ``""``."""
    return network_id() if any(map(is_loopback, listening)) else ""


def has_tls() -> bool:
    """Return whether this Python was built with TLS."""
    return find_spec("_ssl") is not None


class ServingAddresses(NamedTuple):
    """Addresses to serve weights on, or ``why`` other hosts can't reach them."""

    addresses: List[str]
    why: str

    @classmethod
    def here(cls) -> ServingAddresses:
        """Return this host's addresses, the SSH connection's first."""
        known = list(dict.fromkeys([connection_address(), *addresses()]))
        usable = [address for address in known if has_tls() or is_private(address)]
        if not all(map(is_loopback, usable)):
            return cls(usable, "")
        public = [address for address in known if address not in usable]
        if public:
            return cls(
                usable, f"{public[0]} is a public address, and {sys.executable} there has no TLS"
            )
        return cls(usable, f"SSH connects to {known[0]}, and the host has no other address")

    def to_json(self) -> host.ServingFacts:
        """Return the facts that a plan needs."""
        outside = [address for address in self.addresses if not is_loopback(address)]
        tls = bool(outside) and not is_private(outside[0])
        return {"tls": tls, "why": self.why, "loopback": shared_loopback_network(self.addresses)}


def address_family(address: Any) -> socket.AddressFamily:
    """Return the family of a listening address; Failure if not unicast."""
    parsed = _parse_address(address)
    if parsed.is_unspecified or parsed.is_multicast:
        raise Failure("request", f"cannot serve weights on {address}: not a unicast address")
    return socket.AF_INET if parsed.version == 4 else socket.AF_INET6


def is_loopback(address: Any) -> bool:
    """Return whether this is a loopback address; Failure if it is not an address."""
    return _parse_address(address).is_loopback


def is_private(address: Any) -> bool:
    """Return whether an address is not routed publicly; Failure if invalid."""
    parsed = _parse_address(address)
    return any(parsed in ipaddress.ip_network(network) for network in _PRIVATE)


def _parse_address(text: Any) -> Union[ipaddress.IPv4Address, ipaddress.IPv6Address]:
    try:
        return ipaddress.ip_address(str(text))
    except ValueError:
        raise Failure("request", f"{text!r} is not an IP address") from None


def _ipv4() -> Iterator[str]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            if not name.startswith(_IGNORED_INTERFACES):
                with contextlib.suppress(OSError):  # it has no address
                    request = struct.pack("256s", name.encode()[:15])
                    response = fcntl.ioctl(sock.fileno(), _SIOCGIFADDR, request)
                    yield socket.inet_ntoa(response[20:24])


def _ipv6() -> Iterator[str]:
    """Read /proc/net/if_inet6 (proc(5)): address, number, prefix, scope, flags, name."""
    try:
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        digits, _, _, scope, _, name = line.split()
        if scope == "00" and not name.startswith(_IGNORED_INTERFACES):
            yield str(ipaddress.IPv6Address(bytes.fromhex(digits)))
