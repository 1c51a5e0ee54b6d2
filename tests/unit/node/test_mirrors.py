"""A mirror on nodes: read from a directory, from a server, and from a bucket by presigned URLs."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.support.servers.blob_server import send_request
from tests.support.storage.weights_data import noise
from trainctl.base.failure import Failure
from trainctl.base.listing import CHUNK_BYTES, Listing, ResolvedSource, SourceFile
from trainctl.base.network.object_server import ObjectServer, serve_in_thread
from trainctl.base.protocol.wire import encode_rows
from trainctl.base.retry import RetryPolicy
from trainctl.base.throughput import RateLimiter
from trainctl.errors import SourceError
from trainctl.node.cache.delivery import deliver
from trainctl.node.transfer.http_reader import BucketReader, ServerReader, SignedUrls
from trainctl.node.transfer.object_readers import DirectoryReader, MirrorReader, ObjectReader
from trainctl.node.transfer.transfer_units import TransferUnit, units_of
from trainctl.resources.mirror.access import ObjectUrlSigner
from trainctl.store import keys
from trainctl.store.backends.directory import DirectoryObjects
from trainctl.store.mirror_objects import MirrorObjectSource
from trainctl.store.references import Reference
from trainctl.store.store import MirrorStore

TOKEN = "a-token-of-objects-in-tests"
FILES = {
    "big.bin": noise(CHUNK_BYTES + 12345, 1),
    "medium.bin": noise(2**20 + 7, 2),
    "empty": b"",
    **{f"small/{n:03}": noise(100 + n, 100 + n) for n in range(200)},
}


class Upstream:
    """A source in memory."""

    source = "file:./weights"

    @contextmanager
    def open(self, file: SourceFile, offset: int) -> Iterator[Iterator[bytes]]:
        data = FILES[file.path][offset:]
        yield (data[at : at + 2**20] for at in range(0, len(data), 2**20))

    @contextmanager
    def read_range(self, file: SourceFile, offset: int, length: int) -> Iterator[None]:
        yield None

    def checksum(self, file: SourceFile) -> str:
        return file.checksum


class SignedDirectory(DirectoryObjects):
    """Objects in a directory, each behind a URL of a server of this machine."""

    port = 0

    def sign(self, keys: Sequence[str], seconds: int) -> Sequence[str]:
        return [f"http://127.0.0.1:{self.port}/{key}" for key in keys]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


class Operator:
    """Answers a node's questions in this process."""

    def __init__(self, signer: ObjectUrlSigner) -> None:
        self.request: Callable[[Mapping[str, Any]], Mapping[str, Any]] = signer.respond


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Listing]:
    """A store that a source was copied into, as the operator does it."""
    root = tmp_path_factory.mktemp("mirror") / "store"
    files = tuple(
        SourceFile(path, len(data), f"sha256:{hashlib.sha256(data).hexdigest()}")
        for path, data in sorted(FILES.items())
    )
    store = MirrorStore(DirectoryObjects(root), RetryPolicy())
    reference = Reference("lineage", "weights.w", "somebody", "project")
    listing = store.ingest(ResolvedSource("file:./weights", "1", files), Upstream(), reference)
    return root, listing


class Clock:
    """Time that passes only while somebody sleeps."""

    now = 0.0

    def tell(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


Open = Callable[..., MirrorReader]
KINDS = ["directory", "server", "bucket"]


@pytest.fixture
def opened(mirror: tuple[Path, Listing]) -> Iterator[Open]:
    """Opens the mirror by a reader of each kind."""
    root, listing = mirror
    with ExitStack() as stack:

        def reader(kind: str, rate_limiter: RateLimiter) -> ObjectReader:
            if kind == "directory":
                return DirectoryReader(str(root), rate_limiter)
            if kind == "server":
                server = stack.enter_context(
                    serve_in_thread(ObjectServer(MirrorObjectSource(root), TOKEN))
                )
                return ServerReader({"urls": server.urls, "token": TOKEN}, rate_limiter)
            objects = SignedDirectory(root)
            web = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(root)))
            stack.callback(web.server_close)
            stack.callback(web.shutdown)
            Thread(target=web.serve_forever, args=(0.01,), daemon=True).start()
            objects.port = web.server_port
            urls = SignedUrls(Operator(ObjectUrlSigner(objects, listing)))  # type: ignore[arg-type]
            urls.begin(listing.unique_files)
            return BucketReader(urls, rate_limiter)

        def make(kind: str, rate_limiter: RateLimiter | None = None) -> MirrorReader:
            found = MirrorReader(reader(kind, rate_limiter or RateLimiter()), listing)
            stack.callback(found.close)
            return found

        yield make


def read(opened: MirrorReader, read_range: TransferUnit) -> bytes:
    view = memoryview(bytearray(read_range.chunk.length))
    opened.read(read_range, view, lambda piece: None)
    return bytes(view)


@pytest.mark.parametrize("kind", KINDS)
def test_every_file_is_read_by_the_keys_of_its_objects(
    mirror: tuple[Path, Listing], opened: Open, kind: str
) -> None:
    """From a bucket's server that ignores ranges, too."""
    _, listing = mirror
    found = opened(kind)
    parts = [read_range for file in listing.unique_files for read_range in units_of(file)]

    small = found.read_small({p.file.sha256: p.file.size for p in parts if p.is_small})
    content = {path: bytes(small.get(hashlib.sha256(data).hexdigest(), b"")) for path, data in FILES.items()}  # fmt: skip
    for read_range in parts:
        if not read_range.is_small:
            content[read_range.file.path] += read(found, read_range)

    assert content == FILES


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_object_is_named(mirror: tuple[Path, Listing], opened: Open, kind: str) -> None:
    root, listing = mirror
    big = next(file for file in listing.files if file.path == "big.bin")
    key = keys.blob(big.chunks[0])
    found = opened(kind)
    (root / key).rename(root / "aside")
    try:
        with pytest.raises(Failure, match=key) as error:
            read(found, units_of(big)[0])
    finally:
        (root / "aside").rename(root / key)
    assert error.value.kind == "mirror"


def test_a_truncated_object_is_named(mirror: tuple[Path, Listing], opened: Open) -> None:
    """It is an error of the mirror that says how much there is."""
    root, listing = mirror
    big = next(file for file in listing.files if file.path == "big.bin")
    blob = root / keys.blob(big.chunks[0])
    complete = blob.read_bytes()
    blob.write_bytes(complete[:1000])
    try:
        with pytest.raises(Failure, match=f"{blob.name} ends at 1000 bytes") as error:
            read(opened("directory"), units_of(big)[0])
    finally:
        blob.write_bytes(complete)
    assert error.value.kind == "mirror"


@pytest.mark.parametrize("kind", ["directory", "server"])
def test_reads_keep_to_the_rate(mirror: tuple[Path, Listing], opened: Open, kind: str) -> None:
    """All but the last piece has to be waited for."""
    _, listing = mirror
    clock = Clock()
    big = next(file for file in listing.files if file.path == "big.bin")

    read(opened(kind, RateLimiter(1_000_000, clock.tell, clock.sleep)), units_of(big)[0])

    assert clock.now == pytest.approx((CHUNK_BYTES - 2**20) / 1_000_000)


def test_a_delivery_builds_the_tree_and_refuses_corrupt_objects(
    mirror: tuple[Path, Listing], tmp_path: Path
) -> None:
    root, listing = mirror
    request: Any = {
        "root": str(tmp_path / "node"),
        "lineage": "lineage",
        "listing": listing.id,
        "mirror": {"type": "objects", "path": str(root)},
    }

    def following() -> io.BytesIO:
        return io.BytesIO(b"".join(encode_rows([listing.rows()])))

    medium = next(file for file in listing.files if file.path == "medium.bin")
    blob = root / keys.blob(medium.sha256)
    right = blob.read_bytes()
    blob.write_bytes(right[:-1] + bytes([right[-1] ^ 1]))

    with pytest.raises(Failure, match=r"medium\.bin") as error:
        deliver(request, lambda event: None, following())
    blob.write_bytes(right)
    answer = deliver(request, lambda event: None, following())

    assert error.value.kind == "wrong"
    tree = Path(answer["tree"])
    assert {path: (tree / path).read_bytes() for path in FILES} == FILES


def test_a_server_hands_out_content_and_indexes_only(mirror: tuple[Path, Listing]) -> None:
    root, listing = mirror
    objects = DirectoryObjects(root)
    readable = {"blobs", "slices", "packs"}
    with serve_in_thread(ObjectServer(MirrorObjectSource(root), TOKEN)) as server:
        found = {
            stat.key.partition("/")[0]: send_request(server, "GET", f"/{stat.key}")[0]
            for stat in objects.list("")
        }
        refused = send_request(
            server, "GET", f"/{keys.packs(listing.id)}", headers={"Authorization": "x"}
        )
        escaped = send_request(server, "GET", "/blobs/sha256/../../../etc/passwd")

    assert {kind for kind, status in found.items() if status == 200} == readable
    assert set(found) > readable
    assert (refused[0], escaped[0]) == (403, 404)


def test_only_the_objects_of_the_listing_are_signed(mirror: tuple[Path, Listing]) -> None:
    root, listing = mirror
    signer = ObjectUrlSigner(SignedDirectory(root), listing)  # type: ignore[arg-type]
    foreign = keys.blob("0" * 64)

    answer = signer.respond({"method": "links", "keys": [keys.packs(listing.id)]})
    with pytest.raises(SourceError):
        signer.respond({"method": "links", "keys": [keys.packs(listing.id), foreign]})

    assert len(answer["links"]) == 1
