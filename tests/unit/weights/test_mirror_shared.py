"""A mirror in a directory that two users of a group share, where each leaves things behind for the other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.mirrors import REFERENCE, MemorySource, assert_sound, contents, mirror_at
from tests.support.permissions import GROUP, ONE, OTHER, as_user, place_of_group
from trainctl.errors import SourceCut, SourceGone, StorageError
from trainctl.weights.mirror import DirectoryMirror, Reference
from trainctl.weights.mirror.afresh import Origin
from trainctl.weights.mirror.collect import Collecting, collect
from trainctl.weights.mirror.verify import Outcome, Verifying, verify

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be two users")

THEIRS = Reference("lineage-2", "weights.other", "bob@desk", "second")
CHUNK = 1024
LARGE, SMALL = os.urandom(10 * CHUNK + 5), b"small"


@pytest.fixture
def mirror() -> Iterator[DirectoryMirror]:
    """One that nobody has made yet, in a directory of the group."""
    with place_of_group() as place:
        yield mirror_at(place / "mirror", chunk_bytes=CHUNK)


def bring(mirror: DirectoryMirror, reference: Reference, source: MemorySource) -> str:
    """Mirror a source for a reference; the listing's id."""
    resolved = source.resolve(f"memory://{reference.address}", None, None)
    return mirror.mirror(resolved, source, reference).id


def modes(root: Path) -> set[int]:
    """Of all directories below, with their groups."""
    assert {path.stat().st_gid for path in root.rglob("*")} == {GROUP}
    return {path.stat().st_mode & 0o7777 for path in (root, *root.rglob("*")) if path.is_dir()}


@pytest.mark.parametrize("announce", [True, False])
def test_each_uses_what_the_other_brought_and_neither_takes_it_away(
    mirror: DirectoryMirror, *, announce: bool
) -> None:
    """Content that both have comes once; a collection by either leaves it, and takes what nobody has any more."""
    ours = MemorySource({"large": LARGE, "small": SMALL, "own": b"ours"}, announce=announce)
    theirs = MemorySource({"large": LARGE, "small": SMALL, "own": b"theirs"}, announce=announce)
    with as_user(ONE):
        first = bring(mirror, REFERENCE, ours)
    with as_user(OTHER):
        second = bring(mirror, THEIRS, theirs)
        kept = collect(mirror, Collecting(grace_seconds=0))
        rows = mirror.sources()
        mirror.renew(REFERENCE.lineage, REFERENCE.address)
        assert mirror.drop_reference(THEIRS.lineage, THEIRS.address)
    with as_user(ONE):
        collected = collect(mirror, Collecting(grace_seconds=0))
        assert contents(mirror, first) == ours.files
        assert_sound(mirror.root)

    assert (kept.bytes, len(rows), second != first) == (0, 2, True)
    assert ("large" in {path for path, _ in theirs.asked}) is not announce
    assert collected.bytes == len(b"theirs")
    assert modes(mirror.root) == {0o2770}


@pytest.mark.parametrize("announce", [True, False])
def test_each_finishes_what_the_other_has_begun(mirror: DirectoryMirror, *, announce: bool) -> None:
    """Of a large file what arrived is kept; whose it was may not even be asked."""
    files = {"large": LARGE, "small": SMALL}
    cut = MemorySource(files, announce, piece=100, cut_after=40, error=SourceCut("cut"))
    whole = MemorySource(files, announce, piece=100)
    with as_user(ONE), pytest.raises(SourceCut):
        bring(mirror, REFERENCE, cut)
    with as_user(OTHER):
        listing = bring(mirror, Reference("lineage-2", REFERENCE.address, "b", "p"), whole)
        assert contents(mirror, listing) == files
        assert_sound(mirror.root)

    assert [offset > 0 for path, offset in whole.asked if path == "large"] == [True]


def test_each_mends_what_the_other_brought(mirror: DirectoryMirror) -> None:
    """A wrong chunk is fetched again; what its source has no more goes."""
    source = MemorySource({"large": LARGE, "small": SMALL})
    with as_user(ONE):
        listing = bring(mirror, REFERENCE, source)
    source.asked.clear()

    def origin(record: object, halt: object) -> Origin:
        resolved = source.resolve(f"memory://{REFERENCE.address}", None, None)
        return Origin(source, resolved, None, mirror.retry)

    def gone(record: object, halt: object) -> Origin:
        raise SourceGone("gone")

    def damage() -> None:
        (blob,) = mirror.root.glob("blobs/sha256/*/*")
        data = bytearray(blob.read_bytes())
        data[3 * CHUNK] ^= 1
        blob.chmod(0o644)
        blob.write_bytes(data)
        blob.chmod(0o444)

    damage()
    with as_user(OTHER):
        report = verify(mirror, Verifying(repair=True, origins=origin))
        assert contents(mirror, listing) == source.files
    damage()
    with as_user(ONE):
        lost = verify(mirror, Verifying(repair=True, origins=gone))

    assert [one.outcome for one in report.findings] == [Outcome.REPAIRED]
    assert source.asked == [("large", 3 * CHUNK)]
    assert [one.outcome for one in lost.findings] == [Outcome.REMOVED]
    assert not mirror.has_listing(listing)


@pytest.mark.parametrize(
    ("mode", "name"), [(0o755, "m"), (0o770, "m"), (0o2755, "m"), (0o2770, "data/m")]
)
def test_elsewhere_it_is_its_users_alone(mode: int, name: str) -> None:
    """Only what is in a directory that is setgid and writable by its group was meant for it, and no way to there that has to be made."""
    with place_of_group(mode) as place:
        os.chown(place, ONE, GROUP)
        place.chmod(mode)
        mirror = mirror_at(place / name)
        with as_user(ONE):
            bring(mirror, REFERENCE, MemorySource({"small": SMALL}))
        assert {one & 0o777 for one in modes(mirror.root)} == {0o700}
        with as_user(OTHER), pytest.raises(StorageError, match="may not be") as refused:
            bring(mirror, THEIRS, MemorySource({"small": SMALL}))

    assert "mode 2770" in refused.value.detail


@pytest.mark.parametrize(("mode", "word"), [(0o000, "used"), (0o500, "written")])
def test_what_is_refused_is_named_by_what_one_may_not_do(
    mirror: DirectoryMirror, mode: int, word: str
) -> None:
    """Who may not even look is not told that writing is what was refused."""
    with as_user(ONE):
        bring(mirror, REFERENCE, MemorySource({"small": SMALL}))
        (mirror.root / "listings").chmod(mode)
        with pytest.raises(StorageError, match=f"may not be {word} by this user"):
            bring(mirror, THEIRS, MemorySource({"other": b"other"}))
