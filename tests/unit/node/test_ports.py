"""Where a host's servers listen where only some ports may be reached."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from trainctl.base.failure import Failure
from trainctl.base.network.listener import listen, parse_port_range
from trainctl.base.network.object_server import ObjectServer, ObjectSource, serve_in_thread
from trainctl.node.rendezvous.coordinator import PortReservation

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
    """Three neighbouring ports at which nobody listens."""
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
    """Each port is given once, all of them are used, and then an error names the host and the range."""
    with ExitStack() as stack:
        found = [open_one(free, stack) for _ in free]
        with pytest.raises(Failure) as raised:
            open_one(free, stack)

    assert sorted(found) == list(free)
    said = f"none of the ports {free[0]}-{free[-1]} is free on {os.uname().nodename}"
    assert (raised.value.kind, raised.value.summary) == ("ports", said)


def test_they_are_in_each_others_way(free: range) -> None:
    """A port that one of them has is none for another, whichever it is."""
    with ExitStack() as stack:
        found = {one(free, stack) for one in (rendezvous, blobs, gang)}

        assert found == set(free)


@pytest.mark.parametrize("open_one", [blobs, gang, rendezvous])
def test_a_connection_that_was_closed_bars_no_port(
    open_one: Callable[[range, ExitStack], int], free: range
) -> None:
    """The server's side closes first, which leaves a port waiting for a minute; the next server has it all the same."""
    use(free[0])
    with ExitStack() as stack:
        assert open_one(free[:1], stack) == free[0]


@pytest.mark.parametrize("other", [blobs, gang, rendezvous])
def test_a_port_that_is_kept_after_a_connection_is_nobody_elses(
    other: Callable[[range, ExitStack], int], free: range
) -> None:
    """It is kept as well as any other, and is the job's as soon as it is released."""
    use(free[0])
    with ExitStack() as stack:
        assert {rendezvous(free[:2], stack) for _ in "12"} == {free[0], free[1]}
        with pytest.raises(Failure, match="is free on"):
            other(free[:2], stack)
    with socket.create_server((HERE, free[0])) as listener:
        assert listener.getsockname() == (HERE, free[0])


def use(port: int) -> None:
    """Have a connection there that the server closes first."""
    with socket.create_server((HERE, port)) as listener:
        client = socket.create_connection((HERE, port))
        connection, _ = listener.accept()
        connection.close()
    client.close()


def test_without_a_range_any_port_will_do() -> None:
    """As ever."""
    assert parse_port_range(None) is None
    assert parse_port_range("") is None
    assert parse_port_range("29000-29001") == range(29000, 29002)


@pytest.mark.parametrize("text", ["29000", "2-1", "0-5", "1-65536", "a-b", "1-2-3", 29000, "1-2\n"])
def test_what_is_no_range(text: object) -> None:
    """It is refused before anything listens."""
    with pytest.raises(Failure, match="not a range of ports"):
        parse_port_range(text)
