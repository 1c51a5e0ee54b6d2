"""Where a host's servers listen if only some ports can be reached."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from trainctl.base.failure import Failure
from trainctl.base.network.listener import listen, parse_port_range
from trainctl.base.network.object_server import ObjectServer, ObjectSource, serve_in_thread
from trainctl.node.rendezvous.link import PortReservation

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
    """Each port is used once; after the last the error names the host and the range."""
    with ExitStack() as stack:
        found = [open_one(free, stack) for _ in free]
        with pytest.raises(Failure) as raised:
            open_one(free, stack)

    assert sorted(found) == list(free)
    said = f"none of the ports {free[0]}-{free[-1]} is free on {os.uname().nodename}"
    assert (raised.value.kind, raised.value.summary) == ("ports", said)
    with ExitStack() as stack:
        assert {one(free, stack) for one in (rendezvous, blobs, gang)} == set(free)


def test_a_range_of_ports_is_parsed() -> None:
    assert parse_port_range(None) is parse_port_range("") is None
    assert parse_port_range("29000-29001") == range(29000, 29002)


@pytest.mark.parametrize("text", ["29000", "2-1", "0-5", "1-65536", "a-b", "1-2-3", 29000, "1-2\n"])
def test_an_invalid_range_is_refused(text: object) -> None:
    with pytest.raises(Failure, match="not a range of ports"):
        parse_port_range(text)
