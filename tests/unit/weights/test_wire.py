from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from trainctl.errors import SourceCut
from trainctl.weights.sources.http import HttpClient
from trainctl.weights.sources.wire import Answer, Malformed, Wire

MANY = 10_000
"""So often somebody repeats what should have an end."""


class Peer:
    """The other end of a wire: says what it is told to, and closes."""

    def __init__(self) -> None:
        self.theirs, ours = socket.socketpair()
        self.wire = Wire(ours, "example.org", 5.0)

    def answer(self, said: bytes, method: str = "GET", *, close: bool = True) -> Answer:
        self.theirs.sendall(said)
        if close:
            self.theirs.shutdown(socket.SHUT_WR)
        return self.wire.ask(method, "/x", {})


@pytest.fixture
def peer() -> Iterator[Peer]:
    made = Peer()
    yield made
    made.wire.close()
    made.theirs.close()


def body(answer: Answer, portion: int = 3) -> bytes:
    """All of it, in small portions."""
    found = b""
    while not answer.ended and (data := answer.read(portion)):
        found += data
    return found


def test_a_request_is_lines_and_names_its_host_once(peer: Peer) -> None:
    """The Host header is the wire's own, whatever the caller signs."""
    peer.theirs.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    peer.wire.ask("GET", "/a?b=c", {"host": "example.org", "Range": "bytes=1-"})
    sent = peer.theirs.recv(1000)
    assert sent == b"GET /a?b=c HTTP/1.1\r\nHost: example.org\r\nRange: bytes=1-\r\n\r\n"


@pytest.mark.parametrize(
    ("target", "headers"),
    [("/a b", {}), ("/a\r\nX: y", {}), ("/", {"A": "b\r\nC: d"}), ("/", {"A\n": "b"})],
)
def test_what_would_be_more_than_a_line_is_never_sent(
    peer: Peer, target: str, headers: dict[str, str]
) -> None:
    """Neither a path nor a header can smuggle a second request."""
    with pytest.raises(ValueError, match="one line"):
        peer.wire.ask("GET", target, headers)


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0123456789",
        b"HTTP/1.1 200 OK\ncontent-length: 10\n\n0123456789",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200\r\nContent-Length: 10\r\n\r\n0123456789",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4;x=y\r\n0123\r\n6\r\n456789\r\n0\r\nT: 1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n0123456789",
        b"HTTP/1.0 200 OK\r\n\r\n0123456789",
    ],
)
def test_every_way_to_frame_a_body_gives_its_bytes(peer: Peer, said: bytes) -> None:
    """By length, in packets, or up to the end of the connection; behind an interim answer; with bare line ends."""
    answer = peer.answer(said)
    assert answer.status == 200
    assert body(answer) == b"0123456789"
    assert answer.ended


@pytest.mark.parametrize(
    ("said", "method", "reusable"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab", "GET", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nab", "GET", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nab", "GET", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", "HEAD", True),
        (b"HTTP/1.1 204 No\r\n\r\n", "GET", True),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n", "GET", True),
    ],
)
def test_a_connection_is_used_again_only_where_both_sides_know_where_they_are(
    peer: Peer, said: bytes, method: str, *, reusable: bool
) -> None:
    """After a body that was read to its announced end, and not where the peer means to close."""
    answer = peer.answer(said, method)
    body(answer)
    assert answer.reusable is reusable


def test_a_body_that_was_not_read_does_not_run_into_the_next_answer(peer: Peer) -> None:
    """Such a connection is not to be used again."""
    assert not peer.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabcde").reusable


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 999999 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nA: " + b"a" * 200_000,
    ],
)
def test_what_is_no_answer_is_malformed(peer: Peer, said: bytes) -> None:
    """Another protocol, an end amid the head, a head without end: an error, in bounded memory."""
    with pytest.raises(Malformed):
        peer.answer(said)


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n"
        + b"X: y\r\n" * 100,
    ],
)
def test_heads_and_trailers_without_end_are_malformed(peer: Peer, said: bytes) -> None:
    """However fast they come: nobody waits, so no limit of silence ends them."""

    def go_on() -> None:
        with suppress(OSError):
            peer.theirs.sendall(said)
            for _ in range(MANY):
                peer.theirs.sendall(said[-600:])
        peer.theirs.close()

    telling = threading.Thread(target=go_on)
    telling.start()
    with pytest.raises(Malformed, match="without an end"):
        body(peer.wire.ask("GET", "/x", {}))
    peer.wire.close()
    telling.join()


@pytest.mark.parametrize(
    "packets", [b"zz\r\n", b"-1\r\n", b"4\r\n01", b"4\r\n0123456\r\n", b"\r\n"]
)
def test_packets_that_make_no_sense_are_malformed(peer: Peer, packets: bytes) -> None:
    """A wrong length, one that is too small or too large: never taken for the end of the body."""
    answer = peer.answer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + packets)
    with pytest.raises(Malformed):
        body(answer)


def test_headers_are_found_in_any_case_and_the_first_counts(peer: Peer) -> None:
    """A value that goes on in the next line is one; Latin-1 stays what it was."""
    answer = peer.answer(
        b"HTTP/1.1 200 OK\r\nX-A: 1\r\nx-a: 2\r\nLink: <u>;\r\n rel=next\r\nX-B: \xe9\r\n\r\n"
    )
    assert answer.headers.get("X-a") == "1"
    assert answer.headers.get("link") == "<u>; rel=next"
    assert answer.headers.get("X-B") == "\xe9"
    assert answer.headers.get("none") is None


def test_a_body_without_a_length_that_breaks_off_amid_a_part_is_cut() -> None:
    """Memory that is to be filled is filled or it is an error, also where nobody said how much would come."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def talk() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\nabc")

        thread = threading.Thread(target=talk)
        thread.start()
        client = HttpClient(direct=True)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        with client.get(url, "it", {}) as response, pytest.raises(SourceCut, match="ended early"):
            response.fill(memoryview(bytearray(4)))
        thread.join()
