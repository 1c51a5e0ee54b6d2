"""A source is copied into a store on a host by the packed node program there, in a process of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import pytest

from tests.support.node_program.agents import node_at
from tests.support.servers.raw_server import RawRequest, raw_response, serve_responses
from tests.support.storage.mirrors import immediate_retry
from tests.support.storage.store_contents import OTHER, REFERENCE, read_file, sha256
from trainctl.base.listing import CHUNK_BYTES, ResolvedSource, SourceFile
from trainctl.errors import SourceDenied, SourceNotFound
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


class Web:
    """A server of FILES: ``seen`` are the paths that were asked for, ``refused`` the queries that get 403."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.refused: set[str] = set()

    def answer(self, request: RawRequest) -> bytes:
        path, _, query = request.target[1:].partition("?")
        self.seen.append(path)
        if query in self.refused:
            return raw_response(status="403 Forbidden")
        data = FILES[path]
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("range", ""))
        if asked is None:
            return raw_response(data)
        first, last = int(asked[1]), int(asked[2] or len(data) - 1)
        headers = {"Content_Range": f"bytes {first}-{last}/{len(data)}"}
        return raw_response(data[first : last + 1], status="206 Partial Content", **headers)


@pytest.fixture
def web() -> Iterator[tuple[str, Web]]:
    web = Web()
    with serve_responses(web.answer) as server:
        yield server.url, web


@pytest.fixture
def masked() -> list[str]:
    return []


@pytest.fixture
def store(tmp_path: Path, masked: list[str]) -> HostStore:
    node = node_at(tmp_path)

    def register(value: str) -> str:
        masked.append(value)
        return value

    agent = NodeAgent(node, LocalTransport())
    directory = HostDirectory("node://lab/store", str(tmp_path / "store"))
    return HostStore(lambda: directory, lambda installs: agent, immediate_retry(), register)


def content(tmp_path: Path, store: HostStore) -> dict[str, bytes]:
    """What the host has of the source, by its own files."""
    objects = DirectoryObjects(tmp_path / "store")
    listing = store.mirrored(SOURCE)
    assert listing is not None
    locator = BlobLocator(objects, listing)
    return {file.path: read_file(locator, file) for file in listing.files}


def test_what_can_not_be_linked_is_relayed(
    store: HostStore, tmp_path: Path, masked: list[str]
) -> None:
    heard = [(0, 0, 0)]
    listing = store.ingest(SOURCE, Plain(), REFERENCE, progress=lambda *now: heard.append(now))

    assert content(tmp_path, store) == FILES
    assert heard[-1] == (SOURCE.size, SOURCE.size, len(FILES))
    (stored,) = references.read_references(DirectoryObjects(tmp_path / "store")).stored
    assert (stored.listing, stored.record["owner"]) == (listing.id, REFERENCE.owner)
    assert len(masked) == 1


def test_a_host_downloads_by_links(
    store: HostStore,
    tmp_path: Path,
    masked: list[str],
    web: tuple[str, Web],
) -> None:
    url, server = web
    upstream = Linking(url)
    store.ingest(SOURCE, upstream, REFERENCE)

    assert content(tmp_path, store) == FILES
    assert set(server.seen) == set(FILES)
    assert len(masked) == upstream.made
    server.seen.clear()
    store.ingest(SOURCE, upstream, OTHER)
    assert server.seen == []


def test_an_expired_link_is_replaced(
    store: HostStore, tmp_path: Path, web: tuple[str, Web]
) -> None:
    url, server = web
    upstream = Linking(url)
    server.refused = {"signature=2"}  # of the second small file, made along with the first
    small = [file for file in SOURCE.files if file.size < 100]
    store.ingest(ResolvedSource(SOURCE.source, "2", tuple(small)), upstream, REFERENCE)
    assert server.seen.count("more/tokens") == 2


def test_a_refused_link_is_the_error(store: HostStore, web: tuple[str, Web]) -> None:
    url, server = web
    server.refused = {f"signature={number}" for number in range(100)}
    with pytest.raises(SourceDenied, match="presigned URL denied"):
        store.ingest(SOURCE, Linking(url), REFERENCE)


def test_an_error_of_the_relay_is_raised_as_it_was(store: HostStore) -> None:
    class Gone(Plain):
        @contextmanager
        def open(self, file: SourceFile, offset: int) -> Iterator[Iterator[bytes]]:
            raise SourceNotFound("hf://acme/model: it was deleted")
            yield

    with pytest.raises(SourceNotFound, match=r"^hf://acme/model: it was deleted"):
        store.ingest(SOURCE, Gone(), REFERENCE)
