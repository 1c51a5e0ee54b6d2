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
from typing import Any, Iterator, List, NamedTuple, Sequence, Union

from trainctl.base.failure import Failure
from trainctl.base.protocol import host
from trainctl.base.system.processes import boot_id

_SIOCGIFADDR = 0x8915
"""linux/sockios.h: the address of an interface, in bytes 20 to 23 of a struct ifreq."""

_IGNORED_INTERFACES = ("lo", "docker", "virbr", "veth", "cni", "podman")

_LOOPBACK = "127.0.0.1"

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


def connection_address() -> str:
    """Where the caller's SSH connection came to; loopback without one, or where it came by no network. Source: sshd(8), SSH_CONNECTION."""
    words = os.environ.get("SSH_CONNECTION", "").split()
    address = words[2].partition("%")[0] if len(words) == 4 else ""
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(address))
    return _LOOPBACK


def network_id() -> str:
    """What tells the network that this process sees from that of every other host: who shares it shares its loopback."""
    try:
        return f"{boot_id()} {os.readlink('/proc/self/ns/net')}"
    except OSError:
        return ""


def shared_loopback_network(known: Sequence[str]) -> str:
    """The network within which what listens at these addresses is reached by loopback, too; empty if none of them is that."""
    return network_id() if any(map(is_loopback, known)) else ""


def has_tls() -> bool:
    """Whether this Python does; there are ones that were built without."""
    return find_spec("_ssl") is not None


class ServingAddresses(NamedTuple):
    """How this host hands out weights: at these addresses, the likeliest first; ``why`` nobody on another host reaches it, if so."""

    addresses: List[str]
    why: str

    @classmethod
    def here(cls) -> ServingAddresses:
        """Where the caller came to, then every other address; of the public ones none where Python has no TLS."""
        known = list(dict.fromkeys([connection_address(), *addresses()]))
        usable = [one for one in known if has_tls() or is_private(one)]
        if not all(map(is_loopback, usable)):
            return cls(usable, "")
        public = [one for one in known if one not in usable]
        if public:
            lacks = f"{public[0]} is no private address, and {sys.executable} there has no TLS"
            return cls(usable, lacks)
        return cls(usable, f"ssh comes to its loopback ({known[0]}), and it has no other address")

    def to_json(self) -> host.ServingFacts:
        """What a plan wants to know."""
        outside = [address for address in self.addresses if not is_loopback(address)]
        tls = bool(outside) and not is_private(outside[0])
        return {"tls": tls, "why": self.why, "loopback": shared_loopback_network(self.addresses)}


def address_family(address: Any) -> socket.AddressFamily:
    """The family of an address that a server may listen on; Failure for all addresses at once, groups, and names."""
    found = _address(address)
    if found.is_unspecified or found.is_multicast:
        raise Failure(
            "request", f"weights are served at single addresses, of which {address} is none"
        )
    return socket.AF_INET if found.version == 4 else socket.AF_INET6


def is_loopback(address: Any) -> bool:
    """Whether it means whoever asks for it; Failure for what is no address."""
    return _address(address).is_loopback


def is_private(address: Any) -> bool:
    """Whether it is of a network that the world doesn't route to, or of this host alone; Failure for what is no address."""
    found = _address(address)
    return any(found in ipaddress.ip_network(one) for one in _PRIVATE)


def _address(text: Any) -> Union[ipaddress.IPv4Address, ipaddress.IPv6Address]:
    try:
        return ipaddress.ip_address(str(text))
    except ValueError:
        raise Failure("request", f"{text!r} is no IP address to listen on") from None


def _ipv4() -> Iterator[str]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        for _, name in socket.if_nameindex():
            if not name.startswith(_IGNORED_INTERFACES):
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
        if scope == "00" and not name.startswith(_IGNORED_INTERFACES):
            yield str(ipaddress.IPv6Address(bytes.fromhex(digits)))
