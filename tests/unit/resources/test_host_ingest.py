"""A source is copied into a store on a host by the packed node program there, in a process of its own."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.node_program.agents import node_at
from tests.support.storage.mirrors import immediate_retry
from tests.support.storage.store_contents import OTHER, REFERENCE, read_file, sha256
from trainctl.base.listing import CHUNK_BYTES, ResolvedSource, SourceFile
from trainctl.errors import SourceDenied, SourceNotFound, UserInterrupt
from trainctl.remote.agent import NodeAgent
from trainctl.remote.objects import HostDirectory
from trainctl.resources.mirror.host_store import HostStore
from trainctl.store import references
from trainctl.store.backends.directory import DirectoryObjects
from trainctl.store.reader import BlobLocator
from trainctl_local import LocalTransport

FILES = {
    "config.json": b"{}",
    "large.bin": bytes(range(256)) * (CHUNK_BYTES // 256 + 3),
    "more/tokens": b"tokens",
}
SOURCE = ResolvedSource(
    "hf://acme/model",
    "1",
    tuple(SourceFile(path, len(data), f"sha256:{sha256(data)}") for path, data in sorted(FILES.items())),
)  # fmt: skip


class Plain:
    """An upstream that can make no links."""

    source = SOURCE.source

    @contextmanager
    def open(self, file: SourceFile, offset: int) -> Iterator[Iterator[bytes]]:
        data = FILES[file.path]
        yield (data[at : at + 2**20] for at in range(offset, len(data), 2**20))

    def read_range(
        self, file: SourceFile, offset: int, length: int
    ) -> AbstractContextManager[None]:
        return nullcontext()

    def checksum(self, file: SourceFile) -> str:
        return ""


class Linking(Plain):
    """One that makes links to a server, each with a number that the server may refuse."""

    def __init__(self, server: str) -> None:
        self._server = server
        self.made = 0

    def presigned_url(self, file: SourceFile) -> str:
        self.made += 1
        return f"{self._server}/{file.path}?signature={self.made}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    seen: list[str]
    refused: set[str]

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        data = FILES[parts.path[1:]]
        self.seen.append(parts.path[1:])
        if parts.query in self.refused:
            self.send_response(403)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        first = int(asked[1]) if asked else 0
        last = int(asked[2]) if asked and asked[2] else len(data) - 1
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(last + 1 - first))
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        self.end_headers()
        self.wfile.write(data[first : last + 1])

    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture
def web() -> Iterator[tuple[str, type[_Handler]]]:
    handler = type("Handler", (_Handler,), {"seen": [], "refused": set()})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", handler
        server.shutdown()
        thread.join()


@pytest.fixture
def masked() -> list[str]:
    return []


@pytest.fixture
def make_store(tmp_path: Path, masked: list[str]) -> Callable[[], HostStore]:
    node = node_at(tmp_path)

    def register(value: str) -> str:
        masked.append(value)
        return value

    def make() -> HostStore:
        agent = NodeAgent(node, LocalTransport())
        directory = HostDirectory("node://lab/store", str(tmp_path / "store"))
        return HostStore(lambda: directory, lambda installs: agent, immediate_retry(), register)

    return make


def content(tmp_path: Path, store: HostStore) -> dict[str, bytes]:
    """What the host has of the source, by its own files."""
    objects = DirectoryObjects(tmp_path / "store")
    listing = store.mirrored(SOURCE)
    assert listing is not None
    locator = BlobLocator(objects, listing)
    return {file.path: read_file(locator, file) for file in listing.files}


def test_what_can_not_be_linked_is_relayed(
    make_store: Callable[[], HostStore], tmp_path: Path, masked: list[str]
) -> None:
    store, heard = make_store(), [(0, 0, 0)]
    listing = store.ingest(SOURCE, Plain(), REFERENCE, progress=lambda *now: heard.append(now))

    assert content(tmp_path, store) == FILES
    assert heard[-1] == (SOURCE.size, SOURCE.size, len(FILES))
    (stored,) = references.read_references(DirectoryObjects(tmp_path / "store")).stored
    assert (stored.listing, stored.record["owner"]) == (listing.id, REFERENCE.owner)
    assert len(masked) == 1


def test_a_host_downloads_by_links(
    make_store: Callable[[], HostStore],
    tmp_path: Path,
    masked: list[str],
    web: tuple[str, type[_Handler]],
) -> None:
    url, server = web
    store, upstream = make_store(), Linking(url)
    store.ingest(SOURCE, upstream, REFERENCE)

    assert content(tmp_path, store) == FILES
    assert set(server.seen) == set(FILES)
    assert len(masked) == upstream.made
    server.seen.clear()
    store.ingest(SOURCE, upstream, OTHER)
    assert server.seen == []


def test_an_expired_link_is_replaced(
    make_store: Callable[[], HostStore], tmp_path: Path, web: tuple[str, type[_Handler]]
) -> None:
    url, server = web
    store, upstream = make_store(), Linking(url)
    server.refused = {"signature=2"}  # of the second small file, made along with the first
    small = [file for file in SOURCE.files if file.size < 100]
    store.ingest(ResolvedSource(SOURCE.source, "2", tuple(small)), upstream, REFERENCE)
    assert server.seen.count("more/tokens") == 2


def test_a_refused_link_is_the_error(
    make_store: Callable[[], HostStore], web: tuple[str, type[_Handler]]
) -> None:
    url, server = web
    server.refused = {f"signature={number}" for number in range(100)}
    with pytest.raises(SourceDenied, match="presigned URL denied"):
        make_store().ingest(SOURCE, Linking(url), REFERENCE)


def test_an_error_of_the_relay_is_raised_as_it_was(make_store: Callable[[], HostStore]) -> None:
    class Gone(Plain):
        @contextmanager
        def open(self, file: SourceFile, offset: int) -> Iterator[Iterator[bytes]]:
            raise SourceNotFound("hf://acme/model: it was deleted")
            yield

    with pytest.raises(SourceNotFound, match=r"^hf://acme/model: it was deleted"):
        make_store().ingest(SOURCE, Gone(), REFERENCE)


def test_a_cancelled_copy_resumes(make_store: Callable[[], HostStore], tmp_path: Path) -> None:
    store, cancelled, offsets = make_store(), threading.Event(), list[int]()

    class Slow(Plain):
        @contextmanager
        def open(self, file: SourceFile, offset: int) -> Iterator[Iterator[bytes]]:
            if file.path != "large.bin":
                with super().open(file, offset) as pieces:
                    yield pieces
                return
            offsets.append(offset)
            yield self._halting(offset)

        def _halting(self, offset: int) -> Iterator[bytes]:
            yield FILES["large.bin"][offset:CHUNK_BYTES]
            while not _has_mark(tmp_path):
                threading.Event().wait(0.02)
            cancelled.set()
            threading.Event().wait(1)

    with pytest.raises(UserInterrupt):
        store.ingest(SOURCE, Slow(), REFERENCE, cancelled=cancelled)
    assert store.mirrored(SOURCE) is None
    offsets.clear()

    class Resumed(Plain):
        @contextmanager
        def open(self, file: SourceFile, offset: int) -> Iterator[Iterator[bytes]]:
            if file.path == "large.bin":
                offsets.append(offset)
            with super().open(file, offset) as pieces:
                yield pieces

    make_store().ingest(SOURCE, Resumed(), REFERENCE)
    assert offsets == [CHUNK_BYTES]
    assert content(tmp_path, store) == FILES


def _has_mark(tmp_path: Path) -> bool:
    return any((tmp_path / "store" / "partial").glob("*/*.0.*"))
