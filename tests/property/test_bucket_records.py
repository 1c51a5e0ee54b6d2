"""What sources turned out to be, in a bucket, with any one bit of it wrong: it delivers nothing wrong and loses nothing, but is fetched again at most."""

from __future__ import annotations

import hashlib
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.bucket_mirrors import Directory, contents, names
from tests.support.flipping import flip
from tests.support.mirrors import REFERENCE, MemorySource, impatient
from trainctl.base.listing import ResolvedSource
from trainctl.errors import SourceCut
from trainctl.weights.bucket import keys
from trainctl.weights.bucket.look import Looking
from trainctl.weights.bucket.mirror import BucketMirror
from trainctl.weights.bucket.shelf import Shelf
from trainctl.weights.mirror.afresh import Origin
from trainctl.weights.mirror.fetch import by_fingerprint
from trainctl.weights.mirror.layout import fingerprint
from trainctl.weights.mirror.verify import Outcome, Verified

CHUNK = 100
FILES = {"large": bytes(range(250)), "small": b"of a few bytes"}
URI = "hf://a/b"


def mirror_at(root: Path) -> BucketMirror:
    """As a new process has it."""
    return BucketMirror(Shelf(Directory(root), CHUNK), replace(impatient(), attempts=1))


def resolved_of(source: MemorySource, revision: str = "1") -> ResolvedSource:
    return replace(source.resolve(URI, None, None), revision=revision)


def only(root: Path, prefix: str) -> Path:
    """Where the only object below a prefix lies."""
    (found,) = names(mirror_at(root), prefix)
    return root / found


def each_bit(path: Path, every: int = 1) -> Iterator[int]:
    """Have one bit after another wrong, or some of them, and all right at last."""
    right = path.read_bytes()
    for bit in range(0, 8 * len(right), every):
        wrong = bytearray(right)
        wrong[bit // 8] ^= 1 << bit % 8
        path.write_bytes(wrong)
        yield bit
    path.write_bytes(right)


def known(root: Path, resolved: ResolvedSource) -> dict[str, str]:
    """By path what is said to be there of a source that isn't whole."""
    found = Looking(mirror_at(root).shelf, resolved).have(by_fingerprint(resolved)).contents
    named = {file.path: found.get(fingerprint(resolved, file)) for file in resolved.files}
    return {path: content.sha256 for path, content in named.items() if content}


TRUTH = {path: hashlib.sha256(data).hexdigest() for path, data in FILES.items()}


@pytest.mark.parametrize(
    "every", [pytest.param(5, id="short"), pytest.param(1, id="long", marks=pytest.mark.long)]
)
def test_no_bit_of_a_record_makes_anything_known_that_is_not_so(tmp_path: Path, every: int) -> None:
    """A newer version takes over what is there; at most the one file that the bit speaks of comes again."""
    source = MemorySource(dict(FILES), announce=False)
    old = resolved_of(source)
    listing = mirror_at(tmp_path).mirror(old, source, REFERENCE)
    source.files["new"] = b"new"
    newer, again = resolved_of(source, "2"), 0

    for bit in each_bit(only(tmp_path, keys.FINGERPRINTS), every):
        found = known(tmp_path, newer)
        assert found.items() <= TRUTH.items(), bit
        assert len(found) >= len(TRUTH) - 1, bit
        again += len(found) < len(TRUTH)
        assert mirror_at(tmp_path).shelf.whole(old) in (None, listing), bit

    assert again >= 2 * 2 * 64 * 8 // every * 0.9


def test_a_newer_version_after_a_flipped_bit_is_what_upstream_has(tmp_path: Path) -> None:
    """All the way: what is listed can be read, and is right."""
    source = MemorySource(dict(FILES), announce=False)
    mirror_at(tmp_path / "right").mirror(resolved_of(source), source, REFERENCE)
    record = only(tmp_path / "right", keys.FINGERPRINTS).relative_to(tmp_path / "right")
    source.files["new"] = b"new"
    for at in range(0, (tmp_path / "right" / record).stat().st_size, 5):
        shutil.copytree(tmp_path / "right", tmp_path / "wrong")
        flip(tmp_path / "wrong" / record, at)

        mirror = mirror_at(tmp_path / "wrong")
        listing = mirror.mirror(resolved_of(source, "2"), source, REFERENCE)

        assert contents(mirror, listing.id) == source.files, at
        shutil.rmtree(tmp_path / "wrong")


def test_no_bit_of_a_packs_mark_makes_anything_known_that_is_not_so(tmp_path: Path) -> None:
    """Of a source that broke off, too."""
    source = MemorySource({"a": b"first", "b": bytes(range(250))}, announce=False)
    source.cut_after, source.error = 20, SourceCut("it broke off")
    with pytest.raises(SourceCut):
        mirror_at(tmp_path).mirror(resolved_of(source), source, REFERENCE)
    (mark,) = (one for one in names(mirror_at(tmp_path), keys.PARTIAL) if "/pack." in one)

    for bit in each_bit(tmp_path / mark):
        found = known(tmp_path, resolved_of(source))
        assert found.get("a") in (None, hashlib.sha256(b"first").hexdigest()), bit


def verified(root: Path, source: MemorySource, resolved: ResolvedSource) -> Verified:
    """With repair."""

    def origins(record: object, halt: threading.Event) -> Origin:
        return Origin(source, resolved, None, impatient())

    return mirror_at(root).verify(origins)


def test_a_wrong_content_whose_record_is_wrong_is_fetched_again(tmp_path: Path) -> None:
    """Which of the source's files it is, its listing says, too: it isn't given up as gone."""
    source = MemorySource(dict(FILES), announce=False)
    listing = mirror_at(tmp_path).mirror(resolved_of(source), source, REFERENCE)
    record, pack = only(tmp_path, keys.FINGERPRINTS), only(tmp_path, keys.SLICES)
    flip(record, record.read_bytes().index(TRUTH["small"].encode()))
    flip(tmp_path / keys.blob(pack.name))

    told = verified(tmp_path, source, resolved_of(source))

    assert [one.outcome for one in told.findings] == [Outcome.REPAIRED] * 2
    assert contents(mirror_at(tmp_path), listing.id) == FILES


def test_a_record_without_a_check_is_read(tmp_path: Path) -> None:
    """Earlier releases wrote none."""
    source = MemorySource(dict(FILES), announce=False)
    mirror_at(tmp_path).mirror(resolved_of(source), source, REFERENCE)
    record = only(tmp_path, keys.FINGERPRINTS)
    text, _, _ = record.read_bytes().rpartition(b',"check":')
    record.write_bytes(text + b"}")

    assert known(tmp_path, resolved_of(source, "2")) == TRUTH
