"""Listings of a mirror that are lost or damaged though somebody needs them: nothing goes for their sake, and they come back."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.mirrors import REFERENCE, MemorySource, contents, impatient, mirror_at, stored
from trainctl.errors import SourceGone, SourceUnreachable, StorageError, TrainctlError
from trainctl.weights.mirror import DirectoryMirror, Reference
from trainctl.weights.mirror.afresh import Origin
from trainctl.weights.mirror.collect import Collected, Collecting, collect
from trainctl.weights.mirror.verify import Outcome, Verified, Verifying, verify

CHUNK = 1024
FILES = {"large": os.urandom(3 * CHUNK), "small": b"small", "left-out": b"left out"}
OTHER = Reference("lineage-2", "weights.other", "bob@desk", "second")
URI = "memory://model"
HOW = pytest.mark.parametrize("how", ["missing", "damaged"])


class Mirrored:
    """A mirror that has lost the listing of one of its two sources, of which patterns leave a file out."""

    def __init__(self, root: Path, how: str, *, announce: bool) -> None:
        self.mirror: DirectoryMirror = mirror_at(root, chunk_bytes=CHUNK)
        self.source = MemorySource(dict(FILES), announce=announce, piece=100)
        some = MemorySource(
            {path: FILES[path] for path in ("large", "small")}, announce=announce, piece=100
        )
        self.resolved = some.resolve(URI, None, None)
        self.listing = self.mirror.mirror(self.resolved, some, REFERENCE).id
        other = MemorySource({"other": b"of another"})
        self.mirror.mirror(other.resolve("memory://other", None, None), other, OTHER)
        self.path = self.mirror._layout.listing(self.listing)
        self.right = self.path.read_bytes()
        self.lose(how)

    def lose(self, how: str) -> None:
        """Have the listing missing or damaged."""
        if how == "missing":
            self.path.unlink()
        else:
            self.path.write_bytes(self.right.replace(b"large", b"lange"))

    def verify(self, *, repair: bool = True) -> Verified:
        """Verify, with the source as it is now."""
        return verify(self.mirror, Verifying(repair, self.origin))

    def origin(self, record: Mapping[str, object], halt: threading.Event) -> Origin:
        """Where a reference's bytes come from: nobody knows its patterns."""
        resolved = self.source.resolve(str(record["source"]), None, None)
        return Origin(self.source, resolved, None, impatient())

    def gc(self, **asked: object) -> Collected:
        """Collect without waiting."""
        return collect(self.mirror, Collecting(grace_seconds=0, **asked))  # type: ignore[arg-type]


@pytest.mark.parametrize("dry_run", [False, True])
@HOW
def test_nothing_goes_while_a_listing_is_lost(tmp_path: Path, how: str, *, dry_run: bool) -> None:
    """What its reference keeps can't be told; the error says whose it is and what to do."""
    mirrored = Mirrored(tmp_path / "mirror", how, announce=True)
    before = stored(mirrored.mirror.root)

    with pytest.raises(StorageError, match=f"{mirrored.listing}.json is {how}") as error:
        mirrored.gc(dry_run=dry_run)

    assert f"{URI} for {REFERENCE.address} of {REFERENCE.project}" in error.value.summary
    assert "mirror verify --repair" in error.value.detail
    assert (
        str(mirrored.mirror._layout.reference("lineage-1", "weights.model")) in error.value.detail
    )
    assert stored(mirrored.mirror.root) == before


def test_nothing_goes_while_the_listing_is_lost_that_is_replaced(tmp_path: Path) -> None:
    """While another version is mirrored, and it was interrupted."""
    mirrored = Mirrored(tmp_path / "mirror", "missing", announce=True)
    layout = mirrored.mirror._layout
    record = layout.read_reference(layout.reference(REFERENCE.lineage, REFERENCE.address)) or {}
    layout.write_reference({**record, "listing": None, "previous": mirrored.listing})
    before = stored(mirrored.mirror.root)

    with pytest.raises(StorageError, match="is missing"):
        mirrored.gc()

    assert stored(mirrored.mirror.root) == before


def test_no_reference_is_dropped_either(tmp_path: Path) -> None:
    """What is refused is refused as a whole."""
    mirrored = Mirrored(tmp_path / "mirror", "missing", announce=True)
    layout = mirrored.mirror._layout
    path = layout.reference(OTHER.lineage, OTHER.address)
    layout.write_reference({**(layout.read_reference(path) or {}), "last_used": 1.0})
    os.utime(path, (1, 1))

    with pytest.raises(StorageError, match="is missing"):
        mirrored.gc(unused_seconds=86400.0)

    assert path.exists()


def test_a_reference_that_is_dropped_stops_nothing(tmp_path: Path) -> None:
    """Of a project that is no more: its content goes then."""
    mirrored = Mirrored(tmp_path / "mirror", "missing", announce=True)
    mirrored.mirror.drop_reference(REFERENCE.lineage, REFERENCE.address)

    assert mirrored.gc().blobs == 2
    assert len(stored(mirrored.mirror.root)) == 1


@HOW
@pytest.mark.parametrize("announce", [True, False])
def test_a_lost_listing_is_found_and_written_anew(
    tmp_path: Path, how: str, *, announce: bool
) -> None:
    """From what its source has, as far as that is here: nothing is fetched, and what patterns left out stays so."""
    mirrored = Mirrored(tmp_path / "mirror", how, announce=announce)
    mirrored.source.asked.clear()

    told = mirrored.verify(repair=False)
    report = mirrored.verify()

    what = {"missing": "listing missing", "damaged": "listing changed"}[how]
    assert [(one.path, one.what, one.sources, one.outcome) for one in told.findings] == [
        (mirrored.path, what, (URI,), Outcome.WRONG)
    ]
    assert [(one.path, one.what, one.sources, one.outcome) for one in report.findings] == [
        (mirrored.path, what, (URI,), Outcome.REPAIRED)
    ]
    assert (told.whole, report.whole) == (False, True)
    assert mirrored.source.asked == []
    assert mirrored.path.read_bytes() == mirrored.right
    assert mirrored.verify().findings == ()
    assert mirrored.gc().bytes == 0


@pytest.mark.parametrize("told", ["reference", "own", "nobody"])
@pytest.mark.parametrize("announce", [True, False])
def test_patterns_tell_what_of_it_only_others_have(
    tmp_path: Path, told: str, *, announce: bool
) -> None:
    """What they left out is here through another reference: this one's says so, or else its project, and where neither does the next apply mends it."""
    mirrored = Mirrored(tmp_path / "mirror", "missing", announce=announce)
    knows = replace(REFERENCE, ignore_patterns=("left-*",))
    some = replace(mirrored.source, files={path: FILES[path] for path in ("large", "small")})
    mirrored.mirror.mirror(mirrored.resolved, some, knows if told == "reference" else REFERENCE)
    everything = mirrored.source.resolve(URI, None, None)
    mirrored.mirror.mirror(everything, mirrored.source, OTHER)
    mirrored.lose("missing")
    mirrored.source.asked.clear()
    own = [knows.record({}, mirrored.resolved, mirrored.listing, 1.0)] if told == "own" else []

    report = verify(mirrored.mirror, Verifying(repair=True, origins=mirrored.origin, own=own))

    outcome = Outcome.WRONG if told == "nobody" else Outcome.REPAIRED
    assert [(one.path, one.outcome) for one in report.findings] == [(mirrored.path, outcome)]
    assert mirrored.path.exists() == (told != "nobody")
    assert mirrored.source.asked == []


@pytest.mark.parametrize("name", ["large", "small"])
def test_content_that_is_wrong_too_is_mended_by_it(tmp_path: Path, name: str) -> None:
    """The listing comes first, as it says what is right."""
    mirrored = Mirrored(tmp_path / "mirror", "missing", announce=True)
    for path in mirrored.mirror.root.glob("blobs/*/*/*" if name == "large" else "packs/*/data"):
        path.chmod(0o644)
        path.write_bytes(bytes(byte ^ 1 for byte in path.read_bytes()))

    report = mirrored.verify()

    assert {one.outcome for one in report.findings} <= {Outcome.REPAIRED, Outcome.REMOVED}
    wanted = {path: FILES[path] for path in ("large", "small")}
    assert contents(mirrored.mirror, mirrored.listing) == wanted


@HOW
@pytest.mark.parametrize("error", [SourceUnreachable, SourceGone, None])
def test_what_can_not_be_told_keeps_its_content(
    tmp_path: Path, how: str, error: type[TrainctlError] | None
) -> None:
    """Where the source doesn't answer, or has other files now: nothing goes, and an apply has it all."""
    mirrored = Mirrored(tmp_path / "mirror", how, announce=True)
    before = stored(mirrored.mirror.root)

    def changed(record: Mapping[str, object], halt: threading.Event) -> Origin:
        if error is not None:
            raise error("not to be had")
        source = MemorySource({**FILES, "small": b"other"})
        return Origin(source, source.resolve(URI, None, None), None, impatient())

    report = verify(mirrored.mirror, Verifying(repair=True, origins=changed))

    (finding,) = report.findings
    assert finding.outcome is Outcome.WRONG
    assert finding.detail == ("not to be had" if error else "the next apply writes it anew")
    assert stored(mirrored.mirror.root) == before
    asked = len(mirrored.source.asked)
    mirrored.mirror.mirror(mirrored.resolved, mirrored.source, REFERENCE)
    assert len(mirrored.source.asked) == asked
    assert mirrored.verify().findings == ()


@HOW
def test_a_list_goes_on_and_says_which(tmp_path: Path, how: str) -> None:
    """Nobody knows what of it others have; the other row is as ever."""
    mirrored = Mirrored(tmp_path / "mirror", how, announce=True)

    lost, other = mirrored.mirror.sources()

    assert (lost.source, lost.listing, lost.listing_is, lost.bytes_stored) == (
        URI, mirrored.listing, how, 0,
    )  # fmt: skip
    assert (other.listing_is, other.bytes_stored) == ("", len(b"of another"))
