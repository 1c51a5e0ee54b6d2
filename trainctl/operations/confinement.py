"""Confine this process while it plans for an author who is not trusted.

An audit hook (https://docs.python.org/3/library/audit_events.html) refuses programs, as if none were installed, and
connections to addresses that are not public, after DNS and redirects. Servers and proxies that the environment names
are allowed.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from trainctl.base.http.urls import PORTS
from trainctl.errors import PermissionDenied

_PROGRAMS = frozenset(
    {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "pty.spawn"}
)  # fmt: skip
_CONNECTIONS = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg"})
_VARIABLES = ("HF_ENDPOINT", "HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_confined: list[frozenset[tuple[str, int]]] = []
"""The addresses that are allowed although they are not public, of each ``confined`` that is active."""


@contextmanager
def confined(directory: Path, environ: Mapping[str, str]) -> Iterator[None]:
    """Refuse programs and private addresses, in all threads, with the OSErrors of a machine without them.

    PermissionDenied if a symlink leaves the directory, as any file could be read through it.
    """
    root = os.path.realpath(directory)
    paths = (os.path.join(at, name) for at, *names in os.walk(root) for name in chain(*names))  # noqa: PTH118
    for path in filter(os.path.islink, paths):
        if os.path.commonpath([root, os.path.realpath(path)]) != root:
            raise PermissionDenied(
                f"symlink {os.path.relpath(path, root)} leaves the directory of the manifest",
                "Replace it with the file, or remove it.",
                code="untrusted-path",
            )
    allowed = frozenset(_own_servers(environ))
    _install()
    _confined.append(allowed)
    try:
        yield
    finally:
        _confined.pop()


@contextmanager
def unconfined() -> Iterator[None]:
    """Suspend ``confined``, while no other thread reads anything of the author."""
    active = [*_confined]
    _confined.clear()
    try:
        yield
    finally:
        _confined[:] = active


@cache
def _install() -> None:
    sys.addaudithook(_check)  # hooks can't be removed


def _check(event: str, args: tuple[Any, ...]) -> None:
    if not _confined:
        return
    if event in _PROGRAMS:
        raise FileNotFoundError(errno.ENOENT, "not available to an untrusted plan")
    if event in _CONNECTIONS:
        address = args[1]
        with suppress(ValueError):
            if isinstance(address, tuple) and (
                address[:2] in _confined[-1] or is_public(str(address[0]))
            ):
                return
        raise PermissionError(errno.EACCES, "not a public address")


def is_public(text: str) -> bool:
    """Return whether an IP address is on the internet; ValueError if it is none."""
    address = ipaddress.ip_address(text.partition("%")[0])
    if address in _NAT64:
        address = ipaddress.IPv4Address(int(address) % 2**32)
    inner = getattr(address, "ipv4_mapped", None) or getattr(address, "sixtofour", None)
    return (inner or address).is_global and not address.is_multicast


def _own_servers(environ: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    """Yield the addresses of the servers that the environment names."""
    for name in _VARIABLES:
        with suppress(OSError, ValueError):
            text = environ.get(name) or environ.get(name.lower()) or ""
            parts = urlsplit(text if "://" in text else f"http://{text}")
            port = parts.port or PORTS.get(parts.scheme, 0)
            for found in socket.getaddrinfo(parts.hostname, port) if parts.hostname else ():
                yield str(found[4][0]), port
