"""Who serves a source is part of what it is: what one server told of a URI says nothing of another's content."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.bucket_mirrors import Directory
from tests.support.mirrors import REFERENCE, MemorySource, impatient
from trainctl.base.json import digest, hex_digest
from trainctl.base.listing import CHUNK_BYTES, ListedFile, Listing, ResolvedSource, listed_in_order
from trainctl.errors import Interrupted, SourceWrong
from trainctl.sources import source_for
from trainctl.spi.sources import Credential
from trainctl.weights.bucket.mirror import BucketMirror
from trainctl.weights.bucket.shelf import Shelf
from trainctl.weights.lock import LockEntry
from trainctl.weights.locked import locked_version
from trainctl.weights.mirror.here import HereMirror
from trainctl.weights.mirror.layout import Reference, fingerprint
from trainctl.weights.mirror.needs import Need
from trainctl.weights.mirror.port import Mirror
from trainctl.weights.mirror.report import rows_of
from trainctl.weights.resolve import Wanted, asked, resolve

URI = "s3://models/llm"
ELSEWHERE = "http://127.0.0.1:9000"
OTHER = Reference("lineage-2", "weights.else", "bob@desk", "other")
SIZES = [5, CHUNK_BYTES + 5]
Make = Callable[[Path], Mirror]


def in_a_directory(root: Path) -> Mirror:
    return HereMirror(root, impatient())


def in_a_bucket(root: Path) -> Mirror:
    return BucketMirror(Shelf(Directory(root)), impatient())


EVERY: list[Make] = [in_a_directory, in_a_bucket]


def at(server: str | None, letter: bytes, size: int = 5) -> MemorySource:
    """A source whose file has the same name, size and tag wherever it is, and other content."""
    return MemorySource({"model.bin": letter * size}, announce=False, piece=2**20, at=server)


def version(source: MemorySource) -> ResolvedSource:
    return asked(source, URI, None, None)


def digests(listing: Listing) -> list[str]:
    return [one.sha256 for one in listing.files]


@pytest.mark.parametrize("make", EVERY)
def test_two_servers_of_a_uri_are_two_rows(make: Make, tmp_path: Path) -> None:
    """Also where both show the very same: who uses one of them uses nothing of the other's."""
    mirror = make(tmp_path)
    for server, reference in ((None, REFERENCE), (ELSEWHERE, OTHER)):
        source = at(server, b"a")
        mirror.mirror(version(source), source, reference)

    rows = mirror.inventory().rows

    assert [(row.source, row.endpoint, row.projects) for row in rows] == [
        (URI, None, ("demo",)),
        (URI, ELSEWHERE, ("other",)),
    ]
    assert [(row.bytes_shared, row.bytes_stored, row.bytes_saved) for row in rows] == [
        (5, 5, 0),
        (5, 0, 5),
    ]


def test_listing_a_mirror_does_not_take_memory(tmp_path: Path) -> None:
    """However many files sources have, and share."""
    record = {"revision": "1", "files": 1, "bytes": 1, "project": "p", "owner": "o"}
    needs = [
        Need(tmp_path, {**record, "source": f"hf://a/{one}", "listing": str(one)}, 0, 0.0)
        for one in range(2)
    ]

    def peak(count: int) -> int:
        files = (ListedFile(f"{one:06}", 1, hex_digest(one)) for one in range(count))
        listing = Listing(listed_in_order(files))
        tracemalloc.start()
        rows = rows_of(needs, lambda listing_id: listing)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert [(row.bytes_stored, row.bytes_shared) for row in rows] == [
            (count, count),
            (0, count),
        ]
        return found

    assert peak(60_000) < 1.25 * peak(30_000)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("make", EVERY)
def test_another_servers_bytes_are_not_taken_for_ones_own(
    tmp_path: Path, make: Make, size: int
) -> None:
    """Neither where a reference, nor where a fingerprint would tell what the file is; and each stays what it was."""
    evil, good = at(ELSEWHERE, b"E", size), at(None, b"G", size)
    mirror = make(tmp_path)
    first = mirror.mirror(version(evil), evil, OTHER)

    assert mirror.look([version(good)]).known[0].here == 0
    second = mirror.mirror(version(good), good, REFERENCE)

    assert good.asked
    assert digests(first) != digests(second)
    again = mirror.look([version(evil), version(good)])
    assert [one.listing for one in again.known] == [first.id, second.id]
    locked = LockEntry(URI, None, None, "1", version(good).pin, 1, size)
    for server, listing in ((ELSEWHERE, first), (None, second)):
        assert mirror.kept(locked_version(URI, server, locked)) == listing
    assert mirror.kept(locked_version(URI, "http://127.0.0.1:9001", locked)) is None


@pytest.mark.parametrize("make", EVERY)
def test_a_resource_that_changes_its_server_has_nothing_of_the_old_one(
    tmp_path: Path, make: Make
) -> None:
    """Not even where mirroring ends early, its reference being there: the pin is the same, the listing isn't."""
    evil, good = at(ELSEWHERE, b"E"), at(None, b"G")
    mirror = make(tmp_path)
    mirror.mirror(version(evil), evil, REFERENCE)
    stopped = threading.Event()
    stopped.set()

    with pytest.raises(Interrupted):
        mirror.mirror(version(good), good, REFERENCE, cancelled=stopped)

    known = mirror.look([version(good)]).known[0]
    assert (known.here, known.listing) == (0, None)


@pytest.mark.parametrize("make", EVERY)
def test_the_version_that_is_there_can_be_had_until_another_is(tmp_path: Path, make: Make) -> None:
    """So an upgrade that ends early takes nothing from whoever has the old one locked, however often it does."""
    source = at(None, b"G")
    mirror, old = make(tmp_path), version(source)
    listing = mirror.mirror(old, source, REFERENCE)
    stopped = threading.Event()
    stopped.set()

    for size in (6, 6, 7, 5):
        source.files["model.bin"] = b"N" * size
        with suppress(Interrupted):
            mirror.mirror(version(source), source, REFERENCE, cancelled=stopped)
        assert mirror.kept(old) == listing


@pytest.mark.parametrize("make", EVERY)
def test_what_is_announced_is_the_same_wherever_it_is(tmp_path: Path, make: Make) -> None:
    """A digest is checked, so it costs nothing once more; and who announces another's doesn't get in."""
    here, there = (MemorySource({"model.bin": b"G"}, at=one) for one in (None, ELSEWHERE))
    liar = MemorySource({"model.bin": b"G"}, at=ELSEWHERE)
    resolved = version(liar)
    liar.files["model.bin"] = b"E"
    mirror = make(tmp_path)

    with pytest.raises(SourceWrong, match="other content"):
        mirror.mirror(resolved, liar, OTHER)
    listing = mirror.mirror(version(here), here, REFERENCE)

    assert mirror.mirror(version(there), there, OTHER) == listing
    assert (here.asked, there.asked) == ([("model.bin", 0)], [])


def test_a_platforms_own_server_is_left_out() -> None:
    """So what was mirrored before servers counted is still known."""
    (file,) = version(at(None, b"G")).files
    before = digest([URI, file.path, file.size, file.validator]).removeprefix("sha256:")

    assert fingerprint(version(at(None, b"G")), file) == before
    assert fingerprint(version(at(ELSEWHERE, b"G")), file) != before


@pytest.mark.parametrize("make", EVERY)
def test_a_locked_version_comes_from_the_mirror_of_its_own_server(
    tmp_path: Path, make: Make
) -> None:
    """Where upstream has moved: what somebody brought from another server by the same pin is not what was locked."""
    evil, good = at(ELSEWHERE, b"E"), at(None, b"G")
    mirror = make(tmp_path / "mirror")
    pin = version(evil).pin
    mirror.mirror(version(evil), evil, OTHER)
    good.files["new"] = b"new"
    locked = LockEntry(URI, None, None, "1", pin, 1, 5)
    wanted = Wanted(URI, tmp_path)

    with pytest.raises(SourceWrong, match="not upstream any more"):
        resolve(wanted, locked=locked, mirror=mirror, open_source=lambda _: good)
    evil.files["new"] = b"new"
    kept = resolve(wanted, locked=locked, mirror=mirror, open_source=lambda _: evil).resolved

    assert (kept.pin, kept.endpoint) == (pin, ELSEWHERE)


@pytest.mark.parametrize(
    ("uri", "variable", "server", "own"),
    [
        ("hf://a/b", "HF_ENDPOINT", "https://hub.example", "https://huggingface.co"),
        (URI, "AWS_ENDPOINT_URL", ELSEWHERE, "https://s3.eu-west-1.amazonaws.com"),
        (URI, "AWS_ENDPOINT_URL_S3", ELSEWHERE, "https://s3.amazonaws.com"),
        (URI, "AWS_ENDPOINT_URL", "https://s3.us-gov-west-1.amazonaws.com", "https://s3.dualstack.us-east-1.amazonaws.com"),
        (URI, "AWS_ENDPOINT_URL", "https://x.execute-api.us-east-1.amazonaws.com", "https://s3.us-east-2.amazonaws.com/"),
        ("r2://0ac.models/llm", "AWS_ENDPOINT_URL", "https://1ac.r2.cloudflarestorage.com", "https://0ac.r2.cloudflarestorage.com"),
        ("gs://models/llm", "STORAGE_EMULATOR_HOST", "http://127.0.0.1:9000", "https://storage.googleapis.com"),
        ("azure://acme/models", "AZURE_STORAGE_ENDPOINT", "https://blobs.example", "https://acme.blob.core.windows.net"),
    ],
)  # fmt: skip
def test_the_environment_names_servers(
    monkeypatch: pytest.MonkeyPatch, uri: str, variable: str, server: str, own: str
) -> None:
    """Another than the platform's own counts, and so does one that the manifest names; the platform's own doesn't."""
    source = source_for(uri.partition(":")[0])
    assert source.server(uri, None) is None
    monkeypatch.setenv(variable, server)
    assert source_for(uri.partition(":")[0]).server(uri, None) == server
    monkeypatch.setenv(variable, own)
    source = source_for(uri.partition(":")[0])
    assert source.server(uri, None) is None
    if not uri.startswith("hf:"):
        assert source.server(uri, Credential("", "nobody", server)) == server


def test_a_connection_string_names_a_server() -> None:
    """As requests go there, whatever else says nothing."""
    text = "AccountName=acme;AccountKey=a2V5;BlobEndpoint=https://blobs.example/"
    source = source_for("azure")

    assert source.server("azure://acme/models", Credential(text, "test")) == "https://blobs.example"
    own = text.replace("blobs.example", "acme.blob.core.windows.net")
    assert source.server("azure://acme/models", Credential(own, "test")) is None
