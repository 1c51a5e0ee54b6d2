"""How a node reads a mirror: from a directory, from a server, and from a bucket by presigned URLs."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.cases import cases
from tests.support.network.faulty_proxy import proxy
from tests.support.node_program.nodes import MirrorFixture
from tests.support.servers.blob_server import serve_mirror, server_address
from tests.support.servers.raw_server import RawRequest, raw_response, serve_responses
from tests.support.storage.mirrors import MemorySource, ingest, mirror_at
from tests.support.storage.weights_data import noise
from trainctl.base.listing import CHUNK_BYTES, ListedFile, Listing
from trainctl.base.network.addresses import network_id
from trainctl.base.network.http_errors import NoReachableAddress
from trainctl.base.network.object_server import ObjectServer, serve_in_thread
from trainctl.base.protocol.wire import CallerGone
from trainctl.base.retry import RetryPolicy
from trainctl.base.throughput import RateLimiter
from trainctl.errors import NodeError, SourceError, TrainctlError
from trainctl.node.transfer import http_reader
from trainctl.node.transfer.fetch_pool import units_of
from trainctl.node.transfer.http_reader import BucketReader, ServerReader, SignedUrls
from trainctl.node.transfer.object_readers import DirectoryReader, MirrorReader
from trainctl.resources.mirror_access import ObjectUrlSigner
from trainctl.store import keys
from trainctl.store.mirror_objects import MirrorObjectSource
from trainctl.store.objects import DirectoryObjects

TOKEN = "a-token-of-a-server-in-tests"
A, B, C = "127.0.0.3", "127.0.0.4", "127.0.0.5"
QUICK = RetryPolicy(attempts=4, base=0.01, patience=0.05, unanswered=2)
ABSENT = keys.blob("0" * 64)
FILES = {
    "big.bin": noise(CHUNK_BYTES + 12345, 1),
    "medium.bin": noise(2**20 + 7, 2),
    "empty": b"",
    **{f"small/{n:03}": noise(100 + n, 100 + n) for n in range(200)},
}


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Listing]:
    """A store with ``FILES``, as the operator fills it."""
    root = tmp_path_factory.mktemp("mirror") / "store"
    source = MemorySource(FILES, piece=2**20)
    return root, ingest(mirror_at(root), source.resolve("memory://model", None, None), source)


@dataclass
class Bucket:
    """Objects behind URLs that may expire, and the operator that signs them. ``cut``: the length of the next body."""

    objects: Callable[[str], bytes | None]
    ranges: bool = True
    expired: set[str] = field(default_factory=set)
    cut: int | None = None
    is_gone: bool = False
    requests: list[str | None] = field(default_factory=list)
    signed: list[list[str]] = field(default_factory=list)
    url: str = ""

    def request(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        """Sign URLs, as the operator does."""
        if self.is_gone:
            raise CallerGone
        self.signed.append(list(question["keys"]))
        link = f"?link={len(self.signed)}"
        return {"links": [self._without_packs(f"{key}{link}") for key in question["keys"]]}

    def _without_packs(self, target: str) -> str:
        no_pack = target.startswith("packs/") and self.objects(target.partition("?")[0]) is None
        return "" if no_pack else f"{self.url}/{target}"

    def respond(self, request: RawRequest) -> bytes | list[bytes]:
        key, _, link = request.target.strip("/").partition("?")
        self.requests.append(request.headers.get("range"))
        data = self.objects(key)
        if link in self.expired or data is None:
            return raw_response(status="403 Forbidden" if link in self.expired else "404 Not Found")
        response = raw_response(data)
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("range", ""))
        if wanted and self.ranges:
            part = data[int(wanted[1]) : int(wanted[2]) + 1]
            position = f"bytes {wanted[1]}-{int(wanted[1]) + len(part) - 1}/*"
            response = raw_response(part, "206 Partial Content", Content_Range=position)
        cut, self.cut = self.cut, None
        return response if cut is None else [response[: response.index(b"\r\n\r\n") + 4 + cut]]


@contextmanager
def serve_bucket(objects: Callable[[str], bytes | None], **settings: Any) -> Iterator[Bucket]:
    bucket = Bucket(objects, **settings)
    with serve_responses(bucket.respond) as server:
        bucket.url = server.url
        yield bucket


def open_bucket(bucket: Bucket, listing: Listing) -> MirrorReader:
    urls = SignedUrls(bucket)  # type: ignore[arg-type]
    urls.begin(listing.unique_files)
    return MirrorReader(BucketReader(urls), listing, QUICK)


@pytest.fixture(params=["directory", "server", "bucket"])
def reader(request: pytest.FixtureRequest, mirror: tuple[Path, Listing]) -> Iterator[MirrorReader]:
    """A reader of the mirror; the bucket's server ignores ranges."""
    root, listing = mirror

    def stored(key: str) -> bytes | None:
        return (root / key).read_bytes() if (root / key).exists() else None

    with ExitStack() as stack:
        if request.param == "bucket":
            opened = open_bucket(stack.enter_context(serve_bucket(stored, ranges=False)), listing)
        elif request.param == "server":
            source = MirrorObjectSource(root)
            server = stack.enter_context(serve_in_thread(ObjectServer(source, TOKEN)))
            where = {"urls": server.urls, "token": TOKEN}
            opened = MirrorReader(ServerReader(where), listing)
        else:
            opened = MirrorReader(DirectoryReader(str(root), RateLimiter()), listing)
        yield opened
        opened.close()


def read(reader: MirrorReader, file: ListedFile) -> bytes:
    content = b""
    for unit in units_of(file):
        if unit.is_small:
            content += reader.read_small({file.sha256: file.size})[file.sha256]
        else:
            view = memoryview(bytearray(unit.chunk.length))
            reader.read(keys.blob(unit.chunk.sha256), view)
            content += view
    return content


def test_every_file_is_read(mirror: tuple[Path, Listing], reader: MirrorReader) -> None:
    """Small files come together."""
    files = mirror[1].files
    small = {file.sha256: file.size for file in files if file.path.startswith("small/")}

    packed = reader.read_small(small)

    for file in files:
        content = packed[file.sha256] if file.sha256 in small else read(reader, file)
        assert bytes(content) == FILES[file.path], file.path


def test_missing_and_truncated_objects_are_named(
    mirror: tuple[Path, Listing], reader: MirrorReader
) -> None:
    root, listing = mirror
    key = keys.blob(listing.files[0].chunks[0])
    content = (root / key).read_bytes()
    (root / key).unlink()
    try:
        with pytest.raises(TrainctlError, match=key) as missing:
            read(reader, listing.files[0])
        (root / key).write_bytes(content[:1000])
        local = MirrorReader(DirectoryReader(str(root), RateLimiter()), listing)
        with pytest.raises(TrainctlError, match=f"{key[-64:]} ends at 1000 bytes") as truncated:
            read(local, listing.files[0])
    finally:
        (root / key).write_bytes(content)
    assert type(missing.value) is type(truncated.value) is NodeError


class SignedDirectory(DirectoryObjects):
    def presigned(self, keys: Sequence[str], seconds: int) -> Sequence[str]:
        return [f"http://127.0.0.1/{key}" for key in keys]


def test_only_the_objects_of_the_listing_are_signed(mirror: tuple[Path, Listing]) -> None:
    root, listing = mirror
    signer = ObjectUrlSigner(SignedDirectory(root), listing)  # type: ignore[arg-type]

    answer = signer.respond({"method": "links", "keys": [keys.packs(listing.id)]})
    with pytest.raises(SourceError):
        signer.respond({"method": "links", "keys": [keys.packs(listing.id), ABSENT]})

    assert len(answer["links"]) == 1


# -- servers


@pytest.fixture
def files(tmp_path: Path) -> MirrorFixture:
    """A mirror with one small file."""
    mirror = MirrorFixture(tmp_path / "mirror")
    mirror.add("config.json", b"{}")
    return mirror


def reader_of(addresses: Sequence[str], port: int, **more: str) -> ServerReader:
    """A reader of a server with these addresses."""
    return ServerReader(
        {"urls": [f"http://{address}:{port}" for address in addresses], "token": TOKEN, **more}
    )


def load(reader: ServerReader, files: MirrorFixture) -> bytes:
    content = reader.load(keys.blob(files.listing.files[0].sha256))
    reader.close()
    return content


def test_the_first_address_that_answers_is_kept(files: MirrorFixture) -> None:
    """Also if another program answers at one before it."""
    with (
        serve_in_thread(ObjectServer(MirrorObjectSource(files.path), TOKEN, [B])) as server,
        socket.create_server((A, server.port)) as other,
    ):
        reader = reader_of([A, B, C], server.port)
        assert reader.where == f"{A}:{server.port} or {B}:{server.port} or {C}:{server.port}"
        thread = threading.Thread(target=lambda: other.accept()[0].close(), daemon=True)
        thread.start()
        assert load(reader, files) == b"{}"
        thread.join(60)
        assert load(reader, files) == b"{}"

    assert reader.where == f"{B}:{server.port}"


def test_a_silent_address_is_given_up(
    files: MirrorFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If no other answers, the error says what was tried."""
    monkeypatch.setattr(http_reader, "_CONNECT_SECONDS_PER_ADDRESS", 0.2)
    with ExitStack() as stack:
        full = stack.enter_context(socket.create_server((A, 0), backlog=0))
        port = full.getsockname()[1]
        for _ in range(2):  # a third gets no answer, as behind a firewall
            item = stack.enter_context(socket.socket())
            item.setblocking(False)
            item.connect_ex((A, port))
        reader = reader_of([A, B], port)
        with pytest.raises(OSError, match=f"{A}:{port} did not respond.*; .*{B}:{port}.*refused"):
            load(reader, files)
        source = MirrorObjectSource(files.path)
        with serve_in_thread(ObjectServer(source, TOKEN, [B], ports=range(port, port + 1))):
            assert load(reader, files) == b"{}"


def test_loopback_is_valid_in_its_own_network_only(files: MirrorFixture) -> None:
    with serve_in_thread(ObjectServer(MirrorObjectSource(files.path), TOKEN, [A])) as server:
        assert load(reader_of([A], server.port, loopback=network_id()), files) == b"{}"
        for other in ("another", ""):
            with pytest.raises(NoReachableAddress, match="a loopback address of another host"):
                load(reader_of([A], server.port, loopback=other), files)


@pytest.mark.parametrize("server", cases("node/unusable_servers"))
def test_an_unusable_description_of_a_server_is_refused(server: Mapping[str, Any]) -> None:
    """No token is sent over plain HTTP beyond private networks, nor to a server whose certificate isn't known."""
    with pytest.raises(TrainctlError) as raised:
        ServerReader(server)
    assert type(raised.value) is NodeError


@pytest.mark.parametrize(
    ("listens", "why", "advice"),
    [(False, "no response from the mirror at ", "Allow connections"), (True, "is busy", "again after that")],
)  # fmt: skip
def test_a_mirror_that_does_not_answer_is_given_up(
    files: MirrorFixture, listens: bool, why: str, advice: str
) -> None:
    with ExitStack() as stack:
        server = ObjectServer(MirrorObjectSource(files.path), TOKEN, [B], most_connections=0)
        stack.enter_context(serve_in_thread(server))
        if not listens:
            stack.close()
        mirror = MirrorReader(reader_of([A, B], server.port), files.listing, QUICK)
        with pytest.raises(TrainctlError, match=why) as caught:
            read(mirror, files.listing.files[0])

    assert type(caught.value) is NodeError
    assert str(server.port) in caught.value.summary
    assert advice in caught.value.detail


def test_a_server_that_refuses_the_token_is_not_asked_again(files: MirrorFixture) -> None:
    with serve_mirror(files) as server:
        where = {**server_address(server), "token": "another"}
        mirror = MirrorReader(ServerReader(where), files.listing, QUICK)
        with pytest.raises(TrainctlError, match="access to weights denied") as caught:
            read(mirror, files.listing.files[0])
    assert type(caught.value) is NodeError


@pytest.mark.parametrize("after", [10, 5_000_000, CHUNK_BYTES + 500])
def test_reading_resumes_after_connections_broke(tmp_path: Path, after: int) -> None:
    """Within the head of the response, within a chunk, and after one."""
    content = noise(2 * CHUNK_BYTES + 12345)
    files = MirrorFixture(tmp_path)
    files.add("model.bin", content)
    with serve_mirror(files) as server, proxy(f"http://127.0.0.1:{server.port}") as between:
        between.cuts, between.after = 3, after
        reader = ServerReader({**server_address(server), "urls": [between.endpoint]})
        mirror = MirrorReader(reader, files.listing, QUICK)
        assert read(mirror, files.listing.files[0]) == content
        mirror.close()
    assert between.cuts == 0


# -- buckets


def objects_of(tmp_path: Path, content: bytes) -> tuple[ListedFile, Listing, dict[str, bytes]]:
    """A file, its listing and its objects."""
    files = MirrorFixture(tmp_path / "bucket")
    files.add("a", content)
    objects = {
        path.relative_to(files.path).as_posix(): path.read_bytes()
        for path in files.path.rglob("*")
        if path.is_file()
    }
    return files.listing.files[0], files.listing, objects


def test_urls_are_signed_in_batches_when_they_are_needed() -> None:
    """No more than 65 at once, so that the last is used before it expires, and each once."""
    chunks = tuple(f"{n:064x}" for n in range(100))
    listing = Listing((ListedFile("b", 100 * CHUNK_BYTES, "b" * 64, chunks),))
    operator = Bucket(lambda key: b"")
    urls = SignedUrls(operator)  # type: ignore[arg-type]
    urls.begin(listing.unique_files)

    for chunk in chunks:
        urls.find(keys.blob(chunk))

    assert [len(some) for some in operator.signed] == [65, 35]


def test_an_expired_url_is_signed_again_once(tmp_path: Path) -> None:
    """A fresh one that is refused is an error."""
    file, listing, objects = objects_of(tmp_path, noise(2**20))
    with serve_bucket(objects.get, expired={"link=1"}) as bucket:
        assert read(open_bucket(bucket, listing), file) == noise(2**20)
        bucket.expired = {f"link={n}" for n in range(9)}
        with pytest.raises(TrainctlError, match="access to weights denied") as raised:
            read(open_bucket(bucket, listing), file)

    assert type(raised.value) is NodeError
    assert len(bucket.signed) == 4


@pytest.mark.parametrize("ranges", [True, False])
def test_a_response_that_was_cut_is_resumed(tmp_path: Path, ranges: bool) -> None:
    """The rest is requested by range; if the server ignores ranges, its beginning is skipped."""
    file, listing, objects = objects_of(tmp_path, noise(3 * 2**20))
    with serve_bucket(objects.get, ranges=ranges, cut=2**20 + 100) as bucket:
        assert read(open_bucket(bucket, listing), file) == noise(3 * 2**20)

    end = 3 * 2**20 - 1
    assert bucket.requests == [f"bytes=0-{end}", f"bytes={2**20}-{end}"]


def test_an_absent_operator_is_an_error(tmp_path: Path) -> None:
    file, listing, _ = objects_of(tmp_path, b"a")
    with (
        serve_bucket(lambda key: None, is_gone=True) as bucket,
        pytest.raises(TrainctlError, match="client disconnected") as raised,
    ):
        read(open_bucket(bucket, listing), file)
    assert type(raised.value) is NodeError
