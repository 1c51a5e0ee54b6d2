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

from tests.support.blob_server import asked
from tests.support.weights_data import noise
from trainctl.base.failure import Failure
from trainctl.base.listing import CHUNK_BYTES, Listing, ResolvedSource, SourceFile
from trainctl.base.object_server import ObjectServer, serving
from trainctl.base.pace import Pace
from trainctl.base.protocol.wire import sent
from trainctl.base.retry import Retry
from trainctl.errors import SourceError
from trainctl.node.cache.deliver import deliver
from trainctl.node.transfer.http_reader import BucketReader, ServerReader, SignedUrls
from trainctl.node.transfer.parts import Part, parts_of
from trainctl.node.transfer.readers import DirectoryReader, Mirror, ObjectReader
from trainctl.resources.mirror.origins import KeySigner
from trainctl.store import keys
from trainctl.store.directory import DirectoryObjects
from trainctl.store.references import Reference
from trainctl.store.served import MirrorContent
from trainctl.store.store import Store

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
    def part(self, file: SourceFile, offset: int, length: int) -> Iterator[None]:
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

    def __init__(self, signer: KeySigner) -> None:
        self.ask: Callable[[Mapping[str, Any]], Mapping[str, Any]] = signer.answer


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Listing]:
    """A store that a source was copied into, as the operator does it."""
    root = tmp_path_factory.mktemp("mirror") / "store"
    files = tuple(
        SourceFile(path, len(data), f"sha256:{hashlib.sha256(data).hexdigest()}")
        for path, data in sorted(FILES.items())
    )
    store = Store(DirectoryObjects(root), Retry())
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


Open = Callable[..., Mirror]
KINDS = ["directory", "server", "bucket"]


@pytest.fixture
def opened(mirror: tuple[Path, Listing]) -> Iterator[Open]:
    """Opens the mirror by a reader of each kind."""
    root, listing = mirror
    with ExitStack() as stack:

        def reader(kind: str, pace: Pace) -> ObjectReader:
            if kind == "directory":
                return DirectoryReader(str(root), pace)
            if kind == "server":
                server = stack.enter_context(serving(ObjectServer(MirrorContent(root), TOKEN)))
                return ServerReader({"urls": server.urls, "token": TOKEN}, pace)
            objects = SignedDirectory(root)
            web = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(root)))
            stack.callback(web.server_close)
            stack.callback(web.shutdown)
            Thread(target=web.serve_forever, args=(0.01,), daemon=True).start()
            objects.port = web.server_port
            urls = SignedUrls(Operator(KeySigner(objects, listing)))  # type: ignore[arg-type]
            urls.begin(listing.contents)
            return BucketReader(urls, pace)

        def make(kind: str, pace: Pace | None = None) -> Mirror:
            found = Mirror(reader(kind, pace or Pace()), listing)
            stack.callback(found.close)
            return found

        yield make


def read(opened: Mirror, part: Part) -> bytes:
    view = memoryview(bytearray(part.chunk.length))
    opened.read(part, view, lambda piece: None)
    return bytes(view)


@pytest.mark.parametrize("kind", KINDS)
def test_every_file_is_read_by_the_keys_of_its_objects(
    mirror: tuple[Path, Listing], opened: Open, kind: str
) -> None:
    """From a bucket's server that ignores ranges, too."""
    _, listing = mirror
    found = opened(kind)
    parts = [part for file in listing.contents for part in parts_of(file)]

    small = found.read_small({p.file.sha256: p.file.size for p in parts if p.is_small})
    content = {path: bytes(small.get(hashlib.sha256(data).hexdigest(), b"")) for path, data in FILES.items()}  # fmt: skip
    for part in parts:
        if not part.is_small:
            content[part.file.path] += read(found, part)

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
            read(found, parts_of(big)[0])
    finally:
        (root / "aside").rename(root / key)
    assert error.value.kind == "origin"


@pytest.mark.parametrize("kind", ["directory", "server"])
def test_reads_keep_to_the_rate(mirror: tuple[Path, Listing], opened: Open, kind: str) -> None:
    """All but the last piece has to be waited for."""
    _, listing = mirror
    clock = Clock()
    big = next(file for file in listing.files if file.path == "big.bin")

    read(opened(kind, Pace(1_000_000, clock.tell, clock.sleep)), parts_of(big)[0])

    assert clock.now == pytest.approx((CHUNK_BYTES - 2**20) / 1_000_000)


def test_a_delivery_builds_the_tree_and_refuses_corrupt_objects(
    mirror: tuple[Path, Listing], tmp_path: Path
) -> None:
    root, listing = mirror
    request: Any = {
        "root": str(tmp_path / "node"),
        "lineage": "lineage",
        "listing": listing.id,
        "origin": {"type": "objects", "path": str(root)},
    }

    def following() -> io.BytesIO:
        return io.BytesIO(b"".join(sent([listing.rows()])))

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
    with serving(ObjectServer(MirrorContent(root), TOKEN)) as server:
        found = {
            stat.key.partition("/")[0]: asked(server, "GET", f"/{stat.key}")[0]
            for stat in objects.list("")
        }
        refused = asked(server, "GET", f"/{keys.packs(listing.id)}", headers={"Authorization": "x"})
        escaped = asked(server, "GET", "/blobs/sha256/../../../etc/passwd")

    assert {kind for kind, status in found.items() if status == 200} == readable
    assert set(found) > readable
    assert (refused[0], escaped[0]) == (403, 404)


def test_only_the_objects_of_the_listing_are_signed(mirror: tuple[Path, Listing]) -> None:
    root, listing = mirror
    signer = KeySigner(SignedDirectory(root), listing)  # type: ignore[arg-type]
    foreign = keys.blob("0" * 64)

    answer = signer.answer({"want": "links", "keys": [keys.packs(listing.id)]})
    with pytest.raises(SourceError):
        signer.answer({"want": "links", "keys": [keys.packs(listing.id), foreign]})

    assert len(answer["links"]) == 1
