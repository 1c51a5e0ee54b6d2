"""A switch and hosts as network namespaces of this machine, each host's sending limited. Needs root, ``ip`` and ``tc``."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class NetnsHost:
    """One host: ``prefix`` goes before a command that is to run on it."""

    address: str
    prefix: tuple[str, ...]


@contextmanager
def switched_hosts(count: int, mbit: int) -> Iterator[list[NetnsHost]]:
    """So many hosts on one switch, each of which sends at most so many megabits a second."""
    names = [f"tc{os.getpid()}-{number}" for number in range(count)]
    switch = f"tc{os.getpid()}-sw"
    switches: list[str] = []
    try:
        _ip("netns", "add", switch)
        switches.append(switch)
        _ip("-n", switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", switch, "link", "set", "br0", "up")
        for number, name in enumerate(names):
            _ip("netns", "add", name)
            switches.append(name)
            _connect(name, switch, number, mbit)
        yield [
            NetnsHost(_address(number), ("ip", "netns", "exec", name))
            for number, name in enumerate(names)
        ]
    finally:
        for name in reversed(switches):
            subprocess.run(["ip", "netns", "del", name], check=False)


def _address(number: int) -> str:
    return f"10.77.0.{number + 1}"


def _connect(name: str, switch: str, number: int, mbit: int) -> None:
    port = f"p{number}"
    _ip("-n", switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
    _ip("-n", switch, "link", "set", port, "master", "br0")
    _ip("-n", switch, "link", "set", port, "up")
    _ip("-n", name, "addr", "add", f"{_address(number)}/24", "dev", "eth0")
    _ip("-n", name, "link", "set", "eth0", "up")
    _ip("-n", name, "link", "set", "lo", "up")
    limit = ["rate", f"{mbit}mbit", "burst", "256kb", "latency", "50ms"]
    command = ["tc", "-n", name, "qdisc", "add", "dev", "eth0", "root", "tbf", *limit]
    subprocess.run(command, check=True)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
