"""Reading objects by requests: which address of a server is asked, what refusals mean, and what happens after connections break."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support.node_program.nodes import MirrorFixture as Files
from tests.support.storage.weights_data import noise
from trainctl.base.failure import Failure, NoReachableAddress
from trainctl.base.listing import CHUNK_BYTES, Listing
from trainctl.base.network.addresses import network_id
from trainctl.base.network.object_server import ObjectServer, serve_in_thread
from trainctl.base.protocol.callbacks import CallerGone
from trainctl.base.retry import RetryPolicy
from trainctl.node.transfer import http_reader
from trainctl.node.transfer.http_reader import BucketReader, ServerReader, SignedUrls
from trainctl.node.transfer.object_readers import MirrorReader, ObjectReader
from trainctl.node.transfer.transfer_units import units_of
from trainctl.store import keys
from trainctl.store.mirror_objects import MirrorObjectSource

TOKEN = "a-token-of-a-server-in-tests"
A, B, C = "127.0.0.3", "127.0.0.4", "127.0.0.5"
QUICK = RetryPolicy(attempts=4, base=0.01, patience=0.05, unanswered=2)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """A mirror with one file."""
    made = Files(tmp_path / "mirror")
    made.add("config.json", b"{}")
    return made


def at(addresses: Sequence[str], port: int, **more: str) -> ServerReader:
    """A reader of a server with these addresses."""
    return ServerReader({"urls": [f"http://{one}:{port}" for one in addresses], "token": TOKEN, **more})  # fmt: skip


def load(reader: ServerReader, files: Files) -> bytes:
    return reader.load(keys.blob(files.listing.files[0].sha256))


@contextmanager
def auth_errors(addresses: Sequence[str], port: int, answer: bytes) -> Iterator[list[bytes]]:
    """Other servers at these addresses; what they were sent."""
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


def test_the_first_address_that_answers_is_kept(files: Files) -> None:
    """One where nothing listens costs nothing, and isn't tried again."""
    with serve_in_thread(ObjectServer(MirrorObjectSource(files.path), TOKEN, [B])) as server:
        reader = at([A, B, C], server.port)
        assert reader.where == f"{A}:{server.port} or {B}:{server.port} or {C}:{server.port}"
        assert load(reader, files) == b"{}"
        reader.close()
        with auth_errors([A, C], server.port, b"") as told:
            assert load(reader, files) == b"{}"
        reader.close()

    assert reader.where == f"{B}:{server.port}"
    assert told == []


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH_9.9\r\n", b""])
def test_an_address_of_another_program_is_passed_over(files: Files, answer: bytes) -> None:
    with (
        serve_in_thread(ObjectServer(MirrorObjectSource(files.path), TOKEN, [B])) as server,
        auth_errors([A], server.port, answer),
    ):
        reader = at([A, B], server.port)
        assert load(reader, files) == b"{}"
        reader.close()


def test_a_silent_address_is_given_up(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """If no other answers, the error says what was tried."""
    monkeypatch.setattr(http_reader, "_CONNECT_SECONDS_PER_ADDRESS", 0.2)
    with ExitStack() as stack:
        full = stack.enter_context(socket.create_server((A, 0), backlog=0))
        port = full.getsockname()[1]
        for _ in range(2):  # a third gets no answer, as behind a firewall
            one = stack.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex((A, port))
        reader = at([A, B], port)
        with pytest.raises(OSError, match=f"{A}:{port} did not respond.*; .*{B}:{port}.*refused"):
            load(reader, files)
        server = ObjectServer(
            MirrorObjectSource(files.path), TOKEN, [B], ports=range(port, port + 1)
        )
        with serve_in_thread(server):
            assert load(reader, files) == b"{}"
            reader.close()


def test_loopback_is_valid_in_its_own_network_only(files: Files) -> None:
    with serve_in_thread(ObjectServer(MirrorObjectSource(files.path), TOKEN, [A])) as server:
        ours = at([A], server.port, loopback=network_id())
        assert load(ours, files) == b"{}"
        ours.close()
        for other in ("another", ""):
            with pytest.raises(NoReachableAddress, match="a loopback address of another host"):
                load(at([A], server.port, loopback=other), files)


def test_a_python_without_tls_uses_plain_addresses(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_reader, "has_tls", lambda: False)
    with serve_in_thread(ObjectServer(MirrorObjectSource(files.path), TOKEN, [A])) as server:
        secret, plain = f"https://{B}:{server.port}", f"http://{A}:{server.port}"
        where = {"token": TOKEN, "fingerprint": "0" * 64}
        reader = ServerReader({**where, "urls": [secret, plain]})
        assert load(reader, files) == b"{}"
        reader.close()
        with pytest.raises(NoReachableAddress, match=r"requires TLS, which .* does not support"):
            load(ServerReader({**where, "urls": [secret]}), files)


@pytest.mark.parametrize(
    "server",
    [
        {"urls": ["http://127.0.0.1:1"]},
        {"urls": [], "token": TOKEN},
        {"urls": ["ftp://127.0.0.1:1"], "token": TOKEN},
        {"urls": ["http://127.0.0.1"], "token": TOKEN},
        {"urls": ["http://203.0.113.7:1"], "token": TOKEN},
        {"urls": ["https://127.0.0.1:1"], "token": TOKEN},
        {"urls": ["http://localhost:1"], "token": TOKEN},
    ],
)
def test_an_unusable_description_of_a_server_is_refused(server: Mapping[str, Any]) -> None:
    """No token is sent over plain HTTP beyond private networks, nor to a server whose certificate isn't known."""
    with pytest.raises(Failure) as raised:
        ServerReader(server)
    assert raised.value.kind == "request"


@pytest.mark.parametrize(
    ("listens", "why", "advice"),
    [(False, "no response from the mirror at ", "Allow connections"), (True, "is busy", "again after that")],
)  # fmt: skip
def test_a_mirror_that_does_not_answer_is_given_up(
    files: Files, listens: bool, why: str, advice: str
) -> None:
    with ExitStack() as stack:
        server = ObjectServer(MirrorObjectSource(files.path), TOKEN, [B], most_connections=0)
        stack.enter_context(serve_in_thread(server))
        if not listens:
            stack.close()
        mirror = MirrorReader(at([A, B], server.port), files.listing, QUICK)
        with pytest.raises(Failure, match=why) as caught:
            mirror.read_small({files.listing.files[0].sha256: 2})

    assert caught.value.kind == "mirror"
    assert str(server.port) in caught.value.summary
    assert advice in caught.value.detail


@dataclass
class Bucket:
    """Objects behind URLs that may be spent. ``cut``: how many bytes the next response has."""

    objects: dict[str, bytes]
    ranges: bool = True
    spent: set[str] = field(default_factory=set)
    cut: int | None = None
    seen: list[tuple[str, str | None]] = field(default_factory=list)
    signed: list[list[str]] = field(default_factory=list)
    port: int = 0
    is_gone: bool = False

    def request(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        """Sign URLs, as the operator does."""
        if self.is_gone:
            raise CallerGone
        self.signed.append(list(question["keys"]))
        made = len(self.signed)
        return {
            "links": [
                ""
                if key.startswith("packs/")
                else f"http://127.0.0.1:{self.port}/{key}?link={made}"
                for key in question["keys"]
            ]
        }


@contextmanager
def bucket(objects: dict[str, bytes], **more: Any) -> Iterator[Bucket]:
    found = Bucket(objects, **more)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            key, _, link = self.path.strip("/").partition("?")
            found.seen.append((key, self.headers.get("Range")))
            data = found.objects.get(key)
            if link in found.spent or data is None:
                self._answer(403 if link in found.spent else 404, b"")
                return
            asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
            if asked and found.ranges:
                data = data[int(asked[1]) : int(asked[2]) + 1]
                self._answer(206, data, f"bytes {asked[1]}-{int(asked[1]) + len(data) - 1}/*")
            else:
                self._answer(200, data)

        def _answer(self, status: int, data: bytes, position: str = "") -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            if position:
                self.send_header("Content-Range", position)
            self.end_headers()
            cut, found.cut = found.cut, None
            self.wfile.write(data if cut is None else data[:cut])
            self.close_connection = cut is not None

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.port = server.server_port
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()


def stored(tmp_path: Path, contents: Mapping[str, bytes]) -> tuple[Listing, dict[str, bytes]]:
    """A listing of the files, and the objects that they are."""
    files = Files(tmp_path / "bucket")
    for path, data in contents.items():
        files.add(path, data)
    objects = {
        path.relative_to(files.path).as_posix(): path.read_bytes()
        for path in files.path.rglob("*")
        if path.is_file()
    }
    return files.listing, objects


@contextmanager
def opened(found: Bucket, listing: Listing) -> Iterator[MirrorReader]:
    urls = SignedUrls(found)  # type: ignore[arg-type]
    urls.begin(listing.unique_files)
    reader: ObjectReader = BucketReader(urls)
    mirror = MirrorReader(reader, listing, QUICK)
    yield mirror
    mirror.close()


def read(mirror: MirrorReader, listing: Listing) -> dict[str, bytes]:
    found = {}
    for file in listing.unique_files:
        data = b""
        for part in units_of(file):
            view = memoryview(bytearray(part.chunk.length))
            if part.is_small:
                data += mirror.read_small({file.sha256: file.size})[file.sha256]
            else:
                mirror.read(part, view, lambda piece: None)
                data += view
        found[file.path] = data
    return found


def test_urls_are_signed_in_batches_when_their_turn_comes() -> None:
    """No more than 65 at once, so that the last is used before it expires, and each once."""
    chunks = [f"{n:064x}" for n in range(100)]
    large = {"path": "b", "size": 100 * CHUNK_BYTES, "sha256": "b" * 64, "chunks": chunks}
    listing = Listing.parse({"version": 1, "chunk_bytes": CHUNK_BYTES, "files": [large]})
    operator = Bucket({})
    urls = SignedUrls(operator)  # type: ignore[arg-type]
    urls.begin(listing.unique_files)

    for chunk in chunks:
        urls.find(keys.blob(chunk))

    assert [len(some) for some in operator.signed] == [65, 35]


def test_a_url_that_has_expired_is_signed_again_once(tmp_path: Path) -> None:
    """A fresh one that is refused is an error."""
    listing, objects = stored(tmp_path, {"a": noise(2**20)})
    with bucket(objects, spent={"link=1"}) as found:
        with opened(found, listing) as mirror:
            assert read(mirror, listing) == {"a": noise(2**20)}
        found.spent = {f"link={n}" for n in range(9)}
        with (
            opened(found, listing) as mirror,
            pytest.raises(Failure, match="access to weights denied") as raised,
        ):
            read(mirror, listing)

    assert raised.value.kind == "mirror"
    assert len(found.signed) == 4


@pytest.mark.parametrize("ranges", [True, False])
def test_what_broke_off_is_resumed_where_it_was(tmp_path: Path, ranges: bool) -> None:
    """The rest is requested by range; if the server ignores ranges, its beginning is skipped."""
    listing, objects = stored(tmp_path, {"a": noise(3 * 2**20)})
    with bucket(objects, ranges=ranges, cut=2**20 + 100) as found, opened(found, listing) as mirror:
        assert read(mirror, listing) == {"a": noise(3 * 2**20)}

    assert [ranged for _, ranged in found.seen] == [
        f"bytes=0-{3 * 2**20 - 1}",
        f"bytes={2**20}-{3 * 2**20 - 1}",
    ]


@pytest.mark.parametrize("is_gone", [True, False])
def test_what_can_not_be_read_is_said(tmp_path: Path, is_gone: bool) -> None:
    """An operator that has left ends the delivery; an object that isn't there is named, and not waited for."""
    listing, _ = stored(tmp_path, {"a": b"a"})
    key = keys.blob(listing.files[0].sha256)
    with (
        bucket({}, is_gone=is_gone) as found,
        opened(found, listing) as mirror,
        pytest.raises(Failure, match="client disconnected" if is_gone else key) as raised,
    ):
        read(mirror, listing)

    assert raised.value.kind == "mirror"
