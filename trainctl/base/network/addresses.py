"""Addresses by which other hosts reach this one (Linux), and listening on them."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import ipaddress
import os
import random
import socket
import struct
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Callable, Iterator, List, Optional, Sequence, TypeVar, Union

from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.base.protocol import host
from trainctl.base.system.processes import boot_id
from trainctl.errors import NodeError

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
        words = os.environ.get("SSH_CONNECTION", "").split()  # see sshd(8)
        connected = _LOOPBACK
        with contextlib.suppress(ValueError, IndexError):
            connected = str(ipaddress.ip_address(words[2].partition("%")[0]))
        known = list(dict.fromkeys([connected, *addresses()]))
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
    """Return the family of a listening address; TrainctlError if not unicast."""
    parsed = _parse_address(address)
    if parsed.is_unspecified or parsed.is_multicast:
        raise NodeError(f"cannot serve weights on {address}: not a unicast address")
    return socket.AF_INET if parsed.version == 4 else socket.AF_INET6


def is_loopback(address: Any) -> bool:
    """Return whether this is a loopback address; TrainctlError if it is not an address."""
    return _parse_address(address).is_loopback


def is_private(address: Any) -> bool:
    """Return whether an address is not routed publicly; TrainctlError if invalid."""
    parsed = _parse_address(address)
    return any(parsed in ipaddress.ip_network(network) for network in _PRIVATE)


def _parse_address(text: Any) -> Union[ipaddress.IPv4Address, ipaddress.IPv6Address]:
    try:
        return ipaddress.ip_address(str(text))
    except ValueError:
        raise NodeError(f"{text!r} is not an IP address") from None


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


T = TypeVar("T")
_BACKLOG = 256
_RANGE = compile_lazily(r"([0-9]{1,5})-([0-9]{1,5})")


def parse_port_range(text: Any) -> Optional[range]:
    """Parse ``29000-29100`` (inclusive); None for no text, TrainctlError if invalid."""
    if not text:
        return None
    match = _RANGE.fullmatch(str(text))
    ports = range(int(match[1]), int(match[2]) + 1) if match else range(0)
    if not ports or ports[0] < 1 or ports[-1] > 65535:
        raise NodeError(f"{text!r} is not a range of ports")
    return ports


def bind_first_free(ports: range, bind: Callable[[int], T]) -> T:
    """Return what ``bind`` returns for a free port; TrainctlError if none is free."""
    for port in random.sample(ports, len(ports)):
        try:
            return bind(port)
        except OSError as error:  # noqa: PERF203
            if error.errno != errno.EADDRINUSE:
                raise
    raise NodeError(
        f"none of the ports {ports[0]}-{ports[-1]} is free on {os.uname().nodename}",
        "Stop the programs that listen there, or give the host more ports.",
        code="no-free-port",
    )


def listen(addresses: Sequence[str], ports: Optional[range] = None) -> List[socket.socket]:
    """Listen on those of the addresses that exist, at one of ``ports`` or any.

    OSError if it has none of the addresses, TrainctlError if none of the ports is free.
    """
    if ports is not None:
        return bind_first_free(ports, lambda port: _bind_listeners(addresses, port))
    return _bind_listeners(addresses, 0)


def _bind_listeners(addresses: Sequence[str], port: int) -> List[socket.socket]:
    """Bind all addresses; OSError (EADDRINUSE) if ``port`` is taken on one."""
    listeners: List[socket.socket] = []
    for address in addresses:
        chosen = port or (listeners[0].getsockname()[1] if listeners else 0)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            if port:  # connections of a stopped server don't block its port
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address, chosen))
            listener.listen(_BACKLOG)
            listener.setblocking(False)
            listeners.append(listener)
        except OSError as error:
            listener.close()
            if port and error.errno == errno.EADDRINUSE:
                for other in listeners:
                    other.close()
                raise
    if not listeners:
        raise OSError(f"this host has none of the addresses {', '.join(addresses)}")
    return listeners
