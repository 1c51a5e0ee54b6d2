"""Addresses and ports that a host serves on."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.support.cases import cases
from trainctl.base.network.addresses import (
    ServingAddresses,
    is_private,
    listen,
    network_id,
    parse_port_range,
)
from trainctl.base.network.object_server import ObjectServer, ObjectSource, serve_in_thread
from trainctl.errors import TrainctlError
from trainctl.node.rendezvous.link import PortReservation

PRIVATE = "127.0.0.9 10.1.2.3 172.31.0.1 192.168.0.7 100.64.0.1 ::1 fd00::7 fe80::1"
PUBLIC = "8.8.8.8 172.32.0.1 203.0.113.7 2001:4860:4860::8888 2001:db8::1"


@pytest.mark.parametrize(
    ("connection", "address"),
    [
        ("", "127.0.0.1"),
        ("10.0.0.9 50000 10.0.0.1 22", "10.0.0.1"),
        ("fe80::2%eth0 50000 fe80::1%eth0 22", "fe80::1"),
        ("UNKNOWN 65535 UNKNOWN 65535", "127.0.0.1"),
    ],
)
def test_the_connection_address_is_the_servers_side_of_ssh(
    connection: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_CONNECTION", connection)
    monkeypatch.setattr("trainctl.base.network.addresses.addresses", list)
    assert ServingAddresses.here().addresses == [address]


def test_addresses_that_the_internet_cant_route_are_private() -> None:
    """Loopback, private networks, carriers' networks, tunnels and links."""
    assert [address for address in PRIVATE.split() if not is_private(address)] == []
    assert [address for address in PUBLIC.split() if is_private(address)] == []


@pytest.mark.parametrize("case", cases("node/serving_addresses"))
def test_all_addresses_are_offered(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_CONNECTION", f"10.0.0.9 50000 {case['came_to']} 22")
    monkeypatch.setattr("trainctl.base.network.addresses.addresses", lambda: case["others"])
    if case.get("lacks_tls"):
        monkeypatch.setattr("trainctl.base.network.addresses.find_spec", lambda name: None)

    serving = ServingAddresses.here()
    document = serving.to_json()

    assert serving.addresses == case["offers"]
    assert document["tls"] is case.get("tls", False)
    assert document["why"].startswith(case.get("why", ""))
    assert bool(document["why"]) == ("why" in case)
    assert document["loopback"] == (network_id() if case["came_to"] == "127.0.0.1" else "")


HERE = "127.0.0.1"


def blobs(ports: range, stack: ExitStack) -> int:
    server = ObjectServer(ObjectSource(), "t" * 16, [HERE], ports=ports)
    return stack.enter_context(serve_in_thread(server)).port


def gang(ports: range, stack: ExitStack) -> int:
    (listener,) = listen([HERE, "203.0.113.1"], ports)
    stack.callback(listener.close)
    return int(listener.getsockname()[1])


def rendezvous(ports: range, stack: ExitStack) -> int:
    held = PortReservation(ports)
    stack.callback(held.release)
    return held.allocate()


@pytest.fixture
def free() -> Iterator[range]:
    """Three neighbouring free ports."""
    with ExitStack() as stack:
        while True:
            first = stack.enter_context(socket.create_server((HERE, 0))).getsockname()[1]
            try:
                for port in (first + 1, first + 2):
                    stack.enter_context(socket.create_server((HERE, port)))
            except (OSError, OverflowError):
                continue
            break
        stack.close()
        yield range(first, first + 3)


@pytest.mark.parametrize("open_one", [blobs, gang, rendezvous])
def test_every_listener_keeps_to_the_range(
    open_one: Callable[[range, ExitStack], int], free: range
) -> None:
    with ExitStack() as stack:
        result = [open_one(free, stack) for _ in free]
        with pytest.raises(TrainctlError) as raised:
            open_one(free, stack)

    assert sorted(result) == list(free)
    text = f"none of the ports {free[0]}-{free[-1]} is free on {os.uname().nodename}"
    assert (raised.value.code, raised.value.summary) == ("no-free-port", text)
    with ExitStack() as stack:
        assert {value(free, stack) for value in (rendezvous, blobs, gang)} == set(free)


def test_a_range_of_ports_is_parsed() -> None:
    assert parse_port_range(None) is parse_port_range("") is None
    assert parse_port_range("29000-29001") == range(29000, 29002)


@pytest.mark.parametrize("text", ["29000", "2-1", "0-5", "1-65536", "a-b", "1-2-3", 29000, "1-2\n"])
def test_an_invalid_range_is_refused(text: object) -> None:
    with pytest.raises(TrainctlError, match="not a range of ports"):
        parse_port_range(text)
