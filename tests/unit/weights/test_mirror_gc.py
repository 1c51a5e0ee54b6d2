"""Collecting what nobody needs of a mirror."""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.mirrors import REFERENCE, MemorySource, assert_sound, contents, mirror_at, stored
from tests.support.permissions import unreadable
from trainctl.base.exclusive import BEAT_SECONDS, STALE_SECONDS, holder_name, lease
from trainctl.errors import Busy, StorageError
from trainctl.weights.mirror import DirectoryMirror, Reference
from trainctl.weights.mirror.collect import Collected, Collecting, collect
from trainctl.weights.mirror.condemned import Condemned
from trainctl.weights.mirror.known import known
from trainctl.weights.mirror.needs import Watch, needs

OTHER = Reference("lineage-2", "weights.other", "bob@desk", "second")
SHARED, FIRST, SECOND = os.urandom(5000), os.urandom(300), os.urandom(200)
FILES = {REFERENCE: {"shared": SHARED, "own": FIRST}, OTHER: {"shared": SHARED, "own": SECOND}}


@pytest.fixture
def mirror(tmp_path: Path) -> DirectoryMirror:
    """A mirror with two sources of two lineages that share a file."""
    made = mirror_at(tmp_path / "mirror", chunk_bytes=1024)
    for reference in FILES:
        fill(made, reference)
    return made


def fill(mirror: DirectoryMirror, reference: Reference) -> str:
    """Mirror a lineage's source; the listing's id."""
    source = MemorySource(FILES[reference], piece=64)
    resolved = source.resolve(f"memory://{reference.address}", None, None)
    return mirror.mirror(resolved, source, reference).id


def gc(mirror: DirectoryMirror, **asked: object) -> Collected:
    """Collect without waiting."""
    return collect(mirror, replace(Collecting(grace_seconds=0), **asked))  # type: ignore[arg-type]


def during(act: Callable[[], object]) -> dict[str, object]:
    """Ask for a wait, and do something in it."""
    return {"grace_seconds": 1.0, "wait": lambda seconds: act()}


def blobs(mirror: DirectoryMirror) -> int:
    """How many contents there are."""
    return len(stored(mirror.root))


def said(mirror: DirectoryMirror, of: Reference) -> dict[str, Any]:
    """What a reference says."""
    return mirror._layout.read_reference(mirror._layout.reference(of.lineage, of.address)) or {}


def rewrite(mirror: DirectoryMirror, of: Reference, **changes: object) -> Path:
    """Have it say something else; where it is."""
    return mirror._layout.write_reference({**said(mirror, of), **changes})


@pytest.fixture
def reachable() -> Iterator[DirectoryMirror]:
    """The same where other users get to."""
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        made = mirror_at(Path(place) / "mirror", chunk_bytes=1024)
        for reference in FILES:
            fill(made, reference)
        yield made


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("hidden", ["references", f"references/{OTHER.lineage}"])
def test_nothing_goes_where_references_may_not_be_read(
    reachable: DirectoryMirror, hidden: str, *, dry_run: bool
) -> None:
    """Another user's are as good as one's own: nobody knows then who needs what, and the error says where."""
    before = stored(reachable.root)

    with (
        unreadable(reachable.root / hidden, reachable.root),
        pytest.raises(StorageError, match=f"{hidden}.* may not be read"),
    ):
        gc(reachable, dry_run=dry_run)

    assert stored(reachable.root) == before


def test_a_plan_looks_past_references_that_may_not_be_read(reachable: DirectoryMirror) -> None:
    """Nothing is deleted for its sake: it only knows less."""
    own = reachable.root / "references" / OTHER.lineage
    source = MemorySource(FILES[REFERENCE])
    resolved = source.resolve(f"memory://{REFERENCE.address}", None, None)

    with unreadable(own, reachable.root):
        ((found,), _) = known(reachable, [resolved])

    assert found.here == resolved.size


def test_a_writer_does_not_overlook_what_is_condemned(reachable: DirectoryMirror) -> None:
    """It would take a collection that it can't see for none."""
    place = reachable.root / "condemned"
    place.mkdir()

    with unreadable(place, reachable.root), pytest.raises(StorageError, match="condemned"):
        fill(reachable, REFERENCE)


def test_what_somebody_refers_to_stays(mirror: DirectoryMirror) -> None:
    """Nothing goes, and it is said for whom it is kept; nobody has to wait for that."""

    def never(seconds: float) -> None:
        raise AssertionError

    report = collect(mirror, Collecting(wait=never))

    assert (report.bytes, report.blobs, report.listings) == (0, 0, ())
    assert sorted(need.record["project"] for need in report.kept) == ["demo", "second"]
    assert blobs(mirror) == 3


def test_what_nobody_refers_to_goes(mirror: DirectoryMirror) -> None:
    """Of a dropped source what another shares stays; the last one's end leaves no content, listing or record."""
    mirror.drop_reference(REFERENCE.lineage, REFERENCE.address)

    told = gc(mirror, dry_run=True)
    before = blobs(mirror)
    report = gc(mirror)
    left = needs(mirror._layout)
    mirror.drop_reference(OTHER.lineage, OTHER.address)
    last = gc(mirror)

    assert (told.bytes, told.blobs, len(told.listings), before) == (300, 1, 1, 3)
    assert (report.bytes, report.blobs, len(report.listings)) == (300, 1, 1)
    assert [need.record["project"] for need in left] == ["second"]
    assert (last.bytes, last.blobs) == (5200, 2)
    assert [path for path in mirror.root.rglob("*") if path.is_file()] == []


def test_a_listing_that_is_replaced_stays_until_it_is(mirror: DirectoryMirror) -> None:
    """While a source's new version is mirrored the old one is kept."""
    listing = said(mirror, REFERENCE)["listing"]
    rewrite(mirror, REFERENCE, listing=None, previous=listing)

    assert gc(mirror).bytes == 0
    assert contents(mirror, listing) == FILES[REFERENCE]


def test_a_source_that_is_wanted_again_meanwhile_is_not_fetched_again(
    mirror: DirectoryMirror,
) -> None:
    """A writer that comes in the grace period takes back what was condemned, and the collection lets it."""
    mirror.drop_reference(REFERENCE.lineage, REFERENCE.address)
    listing: list[str] = []
    source = MemorySource(FILES[REFERENCE])
    resolved = source.resolve(f"memory://{REFERENCE.address}", None, None)

    report = gc(
        mirror,
        **during(lambda: listing.append(mirror.mirror(resolved, source, REFERENCE).id)),
    )

    assert (report.bytes, report.listings) == (0, ())
    assert source.asked == []
    assert contents(mirror, listing[0]) == FILES[REFERENCE]
    assert_sound(mirror.root)


def test_what_is_needed_after_all_is_back_before_the_grace_period(
    mirror: DirectoryMirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reference that appears while things are condemned: whoever it is of finds its content in its place all the time that the collection waits."""
    path = mirror._layout.reference(REFERENCE.lineage, REFERENCE.address)
    hidden = path.rename(mirror.root.parent / "hidden.json")
    take, out_of_sight = Condemned.take, list[int]()

    def shown(self: Condemned, paths: Iterable[Path]) -> None:
        take(self, paths)
        hidden.rename(path.parent / path.name)

    monkeypatch.setattr(Condemned, "take", shown)

    gc(mirror, **during(lambda: out_of_sight.append(3 - blobs(mirror))))

    assert not any(out_of_sight)
    assert blobs(mirror) == 3


def test_a_reference_that_shows_late_counts(mirror: DirectoryMirror) -> None:
    """One that a network file system shows only after the first look still saves its content."""
    path = mirror._layout.reference(REFERENCE.lineage, REFERENCE.address)
    hidden = path.rename(mirror.root.parent / "hidden.json")

    report = gc(mirror, **during(lambda: hidden.rename(path.parent / path.name)))

    assert report.bytes == 0
    assert contents(mirror, str(report.kept[0].record["listing"])) == FILES[REFERENCE]


def test_nothing_goes_while_somebody_mirrors(mirror: DirectoryMirror) -> None:
    """What a writer has looked at must stay, whatever it is; the report says who it was."""
    mirror.drop_reference(OTHER.lineage, OTHER.address)
    rewrite(mirror, REFERENCE, holder="another.machine-1-1")

    report = gc(mirror)

    assert (report.bytes, [need.record["owner"] for need in report.busy]) == (0, ["ann@laptop"])
    assert blobs(mirror) == 3


def test_a_writer_that_died_keeps_nothing(mirror: DirectoryMirror) -> None:
    """On this machine that is known at once; elsewhere after half a minute without a sign, by the watcher's own clock."""
    path = rewrite(mirror, REFERENCE, holder="another.machine-1-1")
    now = [100.0]
    watch = Watch(lambda: now[0])
    first = watch.busy(needs(mirror._layout))
    now[0] += 29
    os.utime(path, (1, 1))
    second = watch.busy(needs(mirror._layout))
    now[0] += 29
    third = watch.busy(needs(mirror._layout))
    now[0] += 2
    last = watch.busy(needs(mirror._layout))

    assert [len(one) for one in (first, second, third, last)] == [1, 1, 1, 0]


def test_a_reference_says_who_mirrors_for_it(mirror: DirectoryMirror) -> None:
    """Its holder is there while files come, shows itself several times in a watcher's patience, and is gone afterwards."""
    path = mirror._layout.reference(OTHER.lineage, "weights.new")
    seen: list[object] = []

    def note(done: int, total: int, files: int) -> None:
        seen.append(json.loads(path.read_bytes())["holder"])

    source = MemorySource({"x": b"new"})
    resolved = source.resolve("memory://new", None, None)
    mirror.mirror(resolved, source, replace(OTHER, address="weights.new"), progress=note)

    assert set(seen) == {holder_name()}
    assert json.loads(path.read_bytes())["holder"] is None
    assert BEAT_SECONDS * 3 < STALE_SECONDS


def test_references_that_nobody_renews_are_dropped_when_asked(mirror: DirectoryMirror) -> None:
    """Of whatever lineage; those that were used since stay."""
    old = time.time() - 91 * 86400
    path = rewrite(mirror, OTHER, last_used=old)
    os.utime(path, (old, old))

    kept = gc(mirror)
    told = gc(mirror, unused_seconds=90 * 86400.0, dry_run=True)
    report = gc(mirror, unused_seconds=90 * 86400.0)

    assert (kept.dropped, kept.bytes) == ((), 0)
    assert (told.bytes, report.bytes) == (200, 200)
    assert [need.record["project"] for need in report.dropped] == ["second"]


def test_use_renews_a_reference(mirror: DirectoryMirror) -> None:
    """A deployment counts as use, without anything being mirrored."""
    path = rewrite(mirror, OTHER, last_used=1.0)
    os.utime(path, (1, 1))
    mirror.renew(OTHER.lineage, OTHER.address)

    assert gc(mirror, unused_seconds=60.0).dropped == ()
    assert {row.last_used > 60.0 for row in mirror.sources()} == {True}


def test_a_reference_that_cant_be_read_stops_it(mirror: DirectoryMirror) -> None:
    """Nobody can know what it keeps."""
    mirror.drop_reference(OTHER.lineage, OTHER.address)
    mirror._layout.reference(REFERENCE.lineage, REFERENCE.address).write_text("{")

    with pytest.raises(StorageError, match="is damaged"):
        gc(mirror)
    assert blobs(mirror) == 3


def test_two_at_once_is_one_at_a_time(mirror: DirectoryMirror) -> None:
    """The second says so at once."""
    with lease(mirror.root / "partial" / "collection.lease", threading.Event()) as held:
        assert held
        with pytest.raises(Busy, match="another collection"):
            gc(mirror)


def test_abandoned_transfers_go(mirror: DirectoryMirror) -> None:
    """Half of a file that nobody refers to any more; one that somebody still wants stays."""
    partial = mirror.root / "partial" / f"{'0' * 64}.free.0123abcd"
    partial.mkdir()
    (partial / "data").write_bytes(bytes(777))
    whole = said(mirror, REFERENCE)
    rewrite(mirror, REFERENCE, listing=None, previous=whole["listing"])
    wanted = gc(mirror)
    rewrite(mirror, REFERENCE, **whole)

    assert (wanted.bytes, partial.exists()) == (0, True)
    assert gc(mirror).bytes == 777
    assert not partial.exists()


def test_a_mirror_that_was_never_made(tmp_path: Path) -> None:
    """There is nothing to collect, and nothing is made."""
    assert gc(mirror_at(tmp_path / "none")).bytes == 0
    assert not (tmp_path / "none").exists()
