"""A server that has several addresses is asked at the first that answers and is the server; nobody else is told anything."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.nodes import Mirror
from trainctl.base.addresses import network
from trainctl.base.failure import Failure, Unreachable
from trainctl.node.transfer import http_origin, reaching
from trainctl.node.transfer import server as server_module
from trainctl.node.transfer.blob_client import BlobClient
from trainctl.node.transfer.blob_requests import BlobRequests
from trainctl.node.transfer.http_origin import HttpOrigin
from trainctl.node.transfer.server import BlobServer, serving
from trainctl.node.transfer.shelf import MirrorShelf

TOKEN = "a-token-that-nobody-else-hears"
A, B, C = "127.0.0.3", "127.0.0.4", "127.0.0.5"


@pytest.fixture
def mirror(tmp_path: Path) -> Mirror:
    """With one content."""
    made = Mirror(tmp_path / "mirror")
    made.add("config.json", b"{}")
    return made


def at(addresses: Sequence[str], port: int, **more: str) -> BlobClient:
    """A client of what has these addresses."""
    urls = [f"http://{one}:{port}" for one in addresses]
    return BlobClient({"urls": urls, "token": TOKEN, **more})


def read(client: BlobClient, mirror: Mirror) -> bytes:
    """The content, by one request."""
    data = bytearray(2)
    sum(client.read(mirror.listing.files[0].sha256, 0, memoryview(data)))
    return bytes(data)


@contextmanager
def strangers(addresses: Sequence[str], port: int, answer: bytes) -> Iterator[list[bytes]]:
    """Somebody else at these addresses; what they were told."""
    told: list[bytes] = []
    with ExitStack() as stack:
        for address in addresses:
            listener = stack.enter_context(socket.create_server((address, port)))
            stack.callback(listener.shutdown, socket.SHUT_RDWR)

            def listen(listener: socket.socket = listener) -> None:
                while True:
                    try:
                        connection = listener.accept()[0]
                    except OSError:
                        return
                    with connection:
                        told.append(connection.recv(65536))
                        connection.sendall(answer)

            threading.Thread(target=listen, daemon=True).start()
        yield told


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 64\r\n\r\n" + b"0" * 64


def test_the_first_that_answers_is_kept(mirror: Mirror) -> None:
    """One where nobody listens costs nothing, and is asked no more."""
    with serving(BlobServer(MirrorShelf(mirror.path), TOKEN, [B])) as server:
        client = at([A, B], server.port)
        assert f"{A}:{server.port} or {B}:{server.port}" == client.where
        assert read(client, mirror) == b"{}"
        client.close()
        with strangers([A], server.port, OK) as told:
            assert read(client, mirror) == b"{}"
        client.close()

    assert client.where == f"{B}:{server.port}"
    assert told == []


def test_an_address_that_answers_is_the_only_one_that_is_tried(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody connects to the others; of a server with several addresses one thing is asked beforehand, once, of others nothing."""
    asked: list[str] = []

    class Noting(BlobRequests):
        """Notes what is asked for."""

        def parse_request(self) -> bool:
            """See BlobRequests."""
            found = super().parse_request()
            asked.append(self.path.split("/")[1])
            return found

    monkeypatch.setattr(server_module, "BlobRequests", Noting)
    with (
        serving(BlobServer(MirrorShelf(mirror.path), TOKEN, [A])) as server,
        strangers([B, C], server.port, OK) as told,
    ):
        for addresses in ([A, B, C], [A]):
            client = at(addresses, server.port)
            assert read(client, mirror) == read(client, mirror)
            client.close()

    assert told == []
    assert asked == ["proof", "blobs", "blobs", "blobs", "blobs"]


@pytest.mark.parametrize("answer", [OK, b"SSH-2.0-OpenSSH_9.9\r\n", b""])
def test_who_is_somebody_else_hears_no_token(mirror: Mirror, answer: bytes) -> None:
    """Another host may have the address too, or this one itself: the next address is asked, and says that it is the server."""
    with (
        serving(BlobServer(MirrorShelf(mirror.path), TOKEN, [C])) as server,
        strangers([A, B], server.port, answer) as told,
    ):
        client = at([A, B, C], server.port)
        assert read(client, mirror) == b"{}"
        client.close()

    assert len(told) == 2
    assert TOKEN.encode() not in b"".join(told)


def test_another_server_of_ours_is_somebody_else(mirror: Mirror) -> None:
    """As is one with the same port on this very host, where ports are few: it has another token."""
    with serving(BlobServer(MirrorShelf(mirror.path), TOKEN, [B])) as server:
        ports = range(server.port, server.port + 1)
        other = BlobServer(MirrorShelf(mirror.path / "none"), "another-token", [A], ports=ports)
        with serving(other):
            client = at([A, B], server.port)
            assert read(client, mirror) == b"{}"
            client.close()


def test_a_proof_holds_at_its_address_only(mirror: Mirror) -> None:
    """Who passes questions on to the server can't be taken for it."""
    with serving(BlobServer(MirrorShelf(mirror.path), TOKEN, [B])) as server:

        class Between(threading.Thread):
            """Has the server answer what it is asked itself."""

            told = b""

            def run(self) -> None:
                """Once."""
                with listener.accept()[0] as client, socket.create_connection((B, server.port)) as behind:  # fmt: skip
                    self.told = client.recv(65536)
                    behind.sendall(self.told)
                    client.sendall(behind.recv(65536))

        with socket.create_server((A, server.port)) as listener:
            between = Between(daemon=True)
            between.start()
            client = at([A, C], server.port)
            with pytest.raises(OSError, match="somebody else answers"):
                read(client, mirror)
            between.join()

    assert b"/proof/" in between.told
    assert TOKEN.encode() not in between.told
    assert not client.reached


def test_a_silent_address_holds_up_nobody(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next is tried before the first was given up; where none answers it ends, and says what was tried."""
    monkeypatch.setattr(reaching, "_HEAD_START_SECONDS", 0.01)
    monkeypatch.setattr(reaching, "_OF_SEVERAL_SECONDS", 0.2)
    with ExitStack() as stack:
        full = stack.enter_context(socket.create_server((A, 0), backlog=0))
        port = full.getsockname()[1]
        for _ in range(2):  # a third is left without an answer, as by a firewall
            one = stack.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex((A, port))
        client = at([A, B], port)
        with pytest.raises(socket.timeout, match=f"{A}:{port}: timed out; {B}:{port}: .*refused"):
            read(client, mirror)
        server = BlobServer(MirrorShelf(mirror.path), TOKEN, [B], ports=range(port, port + 1))
        with serving(server):
            assert read(client, mirror) == b"{}"
            client.close()


def test_who_takes_connections_and_says_nothing_holds_up_nobody(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All the time that one address has goes by until that is known: the next has its own."""
    monkeypatch.setattr(reaching, "_OF_SEVERAL_SECONDS", 0.5)
    with (
        serving(BlobServer(MirrorShelf(mirror.path), TOKEN, [C])) as server,
        socket.create_server((A, server.port)),
        socket.create_server((B, server.port)),
    ):
        client = at([A, B, C], server.port)
        assert read(client, mirror) == b"{}"
        client.close()
        assert client.where == f"{C}:{server.port}"


def test_the_only_address_of_several_that_can_be_asked_proves_itself(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be another host's here as well, when the others are of a loopback elsewhere."""
    monkeypatch.setattr(reaching, "is_loopback", lambda host: host == A)
    with serving(BlobServer(MirrorShelf(mirror.path), TOKEN, [A])) as server:
        client = at([A, B], server.port, loopback="another")
        with strangers([B], server.port, OK) as told, pytest.raises(OSError, match="somebody else"):
            read(client, mirror)

    assert len(told) == 1
    assert TOKEN.encode() not in told[0]


@pytest.mark.parametrize(
    ("listens", "advice"),
    [(False, "Let this host reach that one"), (True, "Apply again")],
)
def test_a_mirror_that_was_never_reached_is_given_up_sooner(
    listens: bool, advice: str, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before the patience ends that is for what breaks off; the error says what was tried."""
    patience = 0.3 if listens else 1e9
    monkeypatch.setattr(http_origin, "_UNREACHED_SECONDS", 0.0 if not listens else 1e9)
    with ExitStack() as stack:
        server = BlobServer(MirrorShelf(mirror.path), TOKEN, [B], most_connections=0)
        stack.enter_context(serving(server))
        port = server.port
        if not listens:
            stack.close()
        urls = [f"http://{one}:{port}" for one in (A, B)]
        origin = HttpOrigin({"urls": urls, "token": TOKEN, "patience": patience})
        with pytest.raises(Failure, match="does not answer: ") as caught:
            origin.read(mirror.listing.files[0].sha256, 0, memoryview(bytearray(2)), lambda _: None)

    assert f"{A}:{port} or {B}:{port}" in caught.value.summary
    assert advice in caught.value.detail


def test_loopback_is_for_who_shares_it(mirror: Mirror) -> None:
    """One that names another network is asked by nobody, and connected to by nobody."""
    with serving(BlobServer(MirrorShelf(mirror.path), TOKEN, [A])) as server:
        ours = at([A], server.port, loopback=network())
        assert read(ours, mirror) == b"{}"
        ours.close()
        with pytest.raises(Unreachable, match="another host's loopback"):
            read(at([A], server.port, loopback="another"), mirror)
        with pytest.raises(Unreachable):
            read(at([A], server.port, loopback=""), mirror)


def test_a_python_without_tls_asks_where_none_is_spoken(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is such an address; else the error says what is missing."""
    monkeypatch.setattr(reaching, "has_tls", lambda: False)
    with serving(BlobServer(MirrorShelf(mirror.path), TOKEN, [A])) as server:
        secret, plain = f"https://{B}:{server.port}", f"http://{A}:{server.port}"
        where = {"token": TOKEN, "fingerprint": "0" * 64}
        client = BlobClient({**where, "urls": [secret, plain]})
        assert read(client, mirror) == b"{}"
        client.close()
        with pytest.raises(Unreachable, match=r"over TLS, and .* has none"):
            read(BlobClient({**where, "urls": [secret]}), mirror)


def test_a_server_at_several_addresses(mirror: Mirror) -> None:
    """All at one port; those that this host lacks are left out, and each says whether it speaks TLS."""
    shelf = MirrorShelf(mirror.path)
    with serving(BlobServer(shelf, TOKEN, [A, "203.0.113.7", "::1"], private=lambda _: True)) as server:  # fmt: skip
        assert server.urls == [f"http://{A}:{server.port}", f"http://[::1]:{server.port}"]
        for url in server.urls:
            client = BlobClient({"urls": [url], "token": TOKEN})
            assert read(client, mirror) == b"{}"
            client.close()
