"""What travels between the supervisors of a gang: only the gang's own words, each once and in order."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from trainctl.node.rendezvous.channel import MAX_BYTES, AuthenticatedConnection, ReliableChannel

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Pair]:
    here, there = socket.socketpair()
    with here, there:
        yield here, there


def greeted(
    ends: Pair, token: str = "secret", other: str = "secret"
) -> tuple[AuthenticatedConnection, AuthenticatedConnection]:
    server, client = (
        AuthenticatedConnection(ends[0], token, serves=True),
        AuthenticatedConnection(ends[1], other, serves=False),
    )
    server.flush()
    client.flush()
    client.receive()
    server.receive()
    return server, client


def test_who_knows_the_token_is_heard_both_ways(ends: Pair) -> None:
    server, client = greeted(ends)
    client.send({"rank": 1})
    client.send({"is": "here"})
    assert server.receive() == [{"rank": 1}, {"is": "here"}]
    server.send({"do": "go"})
    assert client.receive() == [{"do": "go"}]


def test_who_does_not_know_the_token_is_not_heard(ends: Pair) -> None:
    server, client = greeted(ends, other="guess")
    client.send({"rank": 1})
    with pytest.raises(ConnectionError, match="not authentic"):
        server.receive()


def test_a_line_is_worth_nothing_twice(ends: Pair) -> None:
    server, client = greeted(ends)
    client.send({"is": "ended"})
    line = ends[0].recv(4096)
    ends[1].sendall(line + line)
    with pytest.raises(ConnectionError, match="not authentic"):
        server.receive()


def test_a_line_without_an_end_is_cut_off(ends: Pair) -> None:
    server, _ = greeted(ends)

    def fill() -> None:
        for _ in range(MAX_BYTES // 1024 + 20):
            ends[1].sendall(b"x" * 1024)
            server.receive()

    with pytest.raises(ConnectionError, match="line too long"):
        fill()


def test_nothing_is_lost_or_told_twice_over_broken_connections() -> None:
    ours, theirs = ReliableChannel(), ReliableChannel()
    lines = [ours.send_value({"number": number}) for number in range(4)]
    assert [theirs.receive(line) for line in lines[:2]] == [{"number": 0}, {"number": 1}]
    again = ours.unacknowledged(theirs.received_count)
    assert [theirs.receive(line) for line in again] == [{"number": 2}, {"number": 3}]
    assert not ours.all_acknowledged
    ours.receive(theirs.heartbeat())
    assert ours.all_acknowledged
