"""What others put into a mirror: it stays, it stops nobody, and where a link of theirs leads nothing happens."""

from __future__ import annotations

import os
import shutil
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.support.mirrors import REFERENCE, MemorySource, contents, mirror_at
from tests.support.permissions import ONE, as_user, place_of_group
from trainctl.base.exclusive import holder_name
from trainctl.errors import SourceCut, SourceGone, StorageError
from trainctl.weights.mirror import DirectoryMirror, Reference
from trainctl.weights.mirror.afresh import Origin
from trainctl.weights.mirror.collect import Collected, Collecting, collect
from trainctl.weights.mirror.known import known, stored_bytes
from trainctl.weights.mirror.verify import Outcome, Verified, Verifying, verify

CHUNK = 1024
FILES = {"large": os.urandom(5 * CHUNK + 5), "small": b"small", "one": os.urandom(CHUNK)}
OTHER = Reference("lineage-2", "weights.other", "bob@desk", "second")


class Shared:
    """A mirror of two sources, one of which nobody refers to any more, and a place outside that is nobody's business."""

    def __init__(self, top: Path) -> None:
        self.mirror: DirectoryMirror = mirror_at(top / "mirror", chunk_bytes=CHUNK)
        self.root = self.mirror.root
        self.source = MemorySource(dict(FILES), announce=False, piece=100)
        self.listing = self.bring(REFERENCE, self.source)
        garbage = MemorySource({"g": os.urandom(3 * CHUNK), "h": b"h"}, announce=False)
        self.bring(OTHER, garbage)
        self.mirror.drop_reference(OTHER.lineage, OTHER.address)
        self.outside = top / "outside"
        self.outside.mkdir()
        for name in ("secret", "proj/code.py", "data", "index", "journal", f"{'0' * 64}.json"):
            path = self.outside / name
            path.parent.mkdir(exist_ok=True)
            path.write_text("years of work")
        self.before = seen(self.outside)

    def bring(self, reference: Reference, source: MemorySource) -> str:
        """Mirror a source."""
        resolved = source.resolve(f"memory://{reference.address}", None, None)
        return self.mirror.mirror(resolved, source, reference).id

    def untouched(self) -> bool:
        """Whether all that is outside is as it was."""
        return seen(self.outside) == self.before

    def origin(self, record: object, halt: object) -> Origin:
        """Where its bytes come from."""
        resolved = self.source.resolve(f"memory://{REFERENCE.address}", None, None)
        return Origin(self.source, resolved, None, self.mirror.retry)


@pytest.fixture
def shared(tmp_path: Path) -> Shared:
    """One in a directory of this user."""
    return Shared(tmp_path)


def seen(place: Path) -> dict[str, tuple[int, int, int, bytes]]:
    """Everything below a place, with modes, owners and times."""
    return {
        str(path): (
            path.lstat().st_mode,
            path.lstat().st_uid,
            path.lstat().st_mtime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in sorted(place.rglob("*"))
    }


def gc(mirror: DirectoryMirror, **asked: object) -> Collected:
    """Collect without waiting."""
    return collect(mirror, replace(Collecting(grace_seconds=0), **asked))  # type: ignore[arg-type]


def attempt(command: Callable[[], object]) -> None:
    """Do it, unless that can't be done where links are not followed; no other error is raised."""
    with suppress(StorageError):
        command()


def commands(shared: Shared) -> list[Callable[[], object]]:
    """Whatever goes through a mirror."""
    mirror = shared.mirror
    resolved = shared.source.resolve(f"memory://{REFERENCE.address}", None, None)
    return [
        lambda: known(mirror, [resolved]),
        lambda: stored_bytes(mirror),
        mirror.sources,
        lambda: verify(mirror, Verifying()),
        lambda: gc(mirror, dry_run=True),
        lambda: gc(mirror),
        lambda: verify(mirror, Verifying(repair=True, origins=shared.origin)),
        lambda: shared.bring(REFERENCE, shared.source),
        lambda: mirror.renew(REFERENCE.lineage, REFERENCE.address),
        lambda: gc(mirror, unused_seconds=0.0),
    ]


def strays_in(place: Path, outside: Path) -> Iterator[Path]:
    """Put beside what is the mirror's own: files, a link and a socket."""
    for name in (".nfs000000001234", ".DS_Store", "README", "notes.json.txt", f"{'0' * 63}"):
        (place / name).write_text("mine")
        yield place / name
    if place.name != "references":
        (place / "link").symlink_to(outside)
        yield place / "link"
    os.mknod(place / "socket", stat.S_IFSOCK | 0o600)
    yield place / "socket"


def test_what_is_not_the_mirrors_stays_and_is_told_once(shared: Shared) -> None:
    """In each of its directories, of whatever kind; a collection takes what it did without it."""
    (shared.root / "condemned" / f"{holder_name()}.{'0' * 8}").mkdir(parents=True)
    places = [shared.root, *(one for one in shared.root.rglob("*") if one.is_dir())]
    strays = [one for place in places for one in strays_in(place, shared.outside)]
    (shared.root / "packs" / "old").mkdir()
    (shared.root / "packs" / "old" / "data").write_text("mine")

    names = {one.name for one in strays}
    told = verify(shared.mirror, Verifying())
    collected = gc(shared.mirror)
    for command in commands(shared)[:-1]:
        command()

    assert {one.outcome for one in told.findings} == {Outcome.LEFT}
    assert sorted(one.detail for one in told.findings) == sorted(
        [*(one.relative_to(shared.root).as_posix() for one in strays), "packs/old"]
    )
    assert told.whole
    assert collected.bytes == 3 * CHUNK + 1
    assert contents(shared.mirror, shared.listing) == FILES
    assert Counter(one.name for one in strays) == Counter(
        one.name for one in shared.root.rglob("*") if one.name in names
    )
    assert (shared.root / "packs" / "old" / "data").read_text() == "mine"
    assert shared.untouched()


PLACES = [
    "blobs", "blobs/sha256", "blobs/sha256/*", "packs", "packs/*", "listings", "references", "references/*",
    "partial", "fingerprints", "fingerprints/[0-9a-f][0-9a-f]", "fingerprints/small", "fingerprints/small/*",
]  # fmt: skip


def test_names_that_are_no_text_are_told_as_such(shared: Shared) -> None:
    """Of strays, as a mirror gives none of them."""
    Path(os.fsdecode(os.fsencode(shared.root / "packs") + b"/caf\xe9")).touch()

    told = verify(shared.mirror, Verifying())

    assert [one.detail for one in told.findings] == [r"packs/caf\xe9"]


@pytest.mark.parametrize("place", PLACES)
def test_nothing_happens_where_a_link_leads(shared: Shared, place: str) -> None:
    """One that stands in a directory's place, were all that is behind it what the mirror itself made."""
    moved = [one for one in sorted(shared.root.glob(place)) if one.is_dir()]
    assert moved
    for number, one in enumerate(moved):
        one.rename(shared.outside / f"moved{number}")
        one.symlink_to(shared.outside / f"moved{number}")
    shared.before = seen(shared.outside)

    for command in commands(shared):
        attempt(command)
        assert shared.untouched()


def test_a_link_in_a_files_place_is_no_file(shared: Shared) -> None:
    """Where contents, listings, records and parts of packs were."""
    files = [one for one in sorted(shared.root.rglob("*")) if one.is_file()]
    for number, one in enumerate(files):
        one.rename(shared.outside / f"moved{number}")
        one.symlink_to(shared.outside / f"moved{number}")
    shared.before = seen(shared.outside)

    assert stored_bytes(shared.mirror) == 0
    for command in commands(shared):
        attempt(command)
        assert shared.untouched()

    shared.bring(REFERENCE, shared.source)
    assert contents(shared.mirror, shared.listing) == FILES
    assert shared.untouched()


EVIL = [
    "/outside/secret", "../outside/secret", "blobs/../../outside/secret", "blobs/sha256/ff/../../../../outside/secret", "..", ".",
    "packs", "blobs", "references/lineage-1/weights.model.json", f"blobs/sha256/ab/{'0' * 64}", "listings/x.json", f"packs/{'0' * 32}/data",
]  # fmt: skip


@pytest.mark.parametrize("name", EVIL)
def test_what_is_condemned_comes_back_to_where_a_mirror_has_things_only(
    shared: Shared, name: str
) -> None:
    """A name that no collection gives is none: what bears it stays where it is."""
    absolute = name.startswith("/")
    encoded = quote(f"{shared.outside.parent}{name}" if absolute else name, safe="")
    for place in (f"{holder_name()}.{'1' * 8}", "a.b"):
        stray = (
            shared.root
            / "condemned"
            / place
            / encoded.replace(".", "%2E" if name in ("..", ".") else ".")
        )
        stray.parent.mkdir(parents=True)
        stray.write_text("owned")

    for command in commands(shared):
        command()

    assert shared.untouched()
    assert [one.read_text() for one in shared.root.glob("condemned/*/*")] == ["owned", "owned"]


def test_what_was_begun_is_not_taken_over_through_links(shared: Shared) -> None:
    """A transfer whose place, data or journal leads elsewhere, or has another name elsewhere, is left alone."""
    source = MemorySource({"big": os.urandom(9 * CHUNK)}, announce=False, piece=100)
    source.cut_after, source.error = 40, SourceCut("cut")
    with pytest.raises(SourceCut):
        shared.bring(OTHER, source)
    (left,) = shared.root.glob("partial/*.free.*")
    key = left.name.partition(".")[0]
    shutil.rmtree(left)
    (shared.root / "partial" / f"{key}.free.{'0' * 8}").symlink_to(shared.outside)
    for number, name in enumerate(("data", "journal")):
        place = shared.root / "partial" / f"{key}.free.{number:07}a"
        place.mkdir()
        (place / "data").write_bytes(bytes(CHUNK))
        (place / name).unlink(missing_ok=True)
        (place / name).symlink_to(shared.outside / name)
    hard = shared.root / "partial" / f"{key}.free.{'2' * 8}"
    hard.mkdir()
    os.link(shared.outside / "data", hard / "data")
    shared.before = seen(shared.outside)

    source.cut_after = None
    listing = shared.bring(OTHER, source)

    assert contents(shared.mirror, listing) == source.files
    assert shared.untouched()


@pytest.mark.parametrize("victim", ["condemned", "condemned/*"])
def test_who_turns_a_directory_into_a_link_meanwhile_deletes_nothing_elsewhere(
    shared: Shared, victim: str
) -> None:
    """While a collection waits, between its look and its deletion."""

    def turn(seconds: float) -> None:
        (place,) = shared.root.glob(victim)
        shutil.copytree(place, shared.outside / "copy")
        place.rename(shared.outside.parent / "aside")
        place.symlink_to(shared.outside / "copy")
        shared.before = seen(shared.outside)

    attempt(lambda: gc(shared.mirror, grace_seconds=1.0, wait=turn))

    assert len(shared.before) > 8
    assert shared.untouched()


def test_a_content_that_is_gone_upstream_takes_no_file_from_elsewhere(shared: Shared) -> None:
    """A wrong content that is set aside is the mirror's own file, or none."""
    (blob,) = (
        one for one in shared.root.glob("blobs/sha256/*/*") if one.stat().st_size == 5 * CHUNK + 5
    )
    blob.unlink()
    blob.symlink_to(shared.outside / "secret")

    def gone(record: object, halt: object) -> Origin:
        raise SourceGone("gone")

    report: Verified = verify(shared.mirror, Verifying(repair=True, origins=gone))

    assert [one.outcome.value for one in report.findings] == ["removed"]
    assert shared.untouched()
    assert not list(shared.root.glob("partial/*"))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be two users")
def test_another_user_of_a_shared_mirror_moves_and_deletes_nothing_of_roots() -> None:
    """Not what only root may reach, while root collects, verifies and mirrors."""
    with place_of_group() as place:
        shared = Shared(place)
        shared.outside.chmod(0o700)
        blobs = shared.root / "blobs" / "sha256"
        with as_user(ONE):
            (shared.root / "condemned").mkdir(mode=0o770, exist_ok=True)
            evil = shared.root / "condemned" / f"{holder_name()}.{'1' * 8}"
            evil.mkdir(mode=0o770)
            (evil / quote(str(shared.outside / "secret"), safe="")).write_text("owned")
            free = next(
                one for one in (f"{n:02x}" for n in range(256)) if not (blobs / one).exists()
            )
            (blobs / free).symlink_to(shared.outside)
        shared.before = seen(shared.outside)

        for command in commands(shared):
            command()

        shared.bring(REFERENCE, shared.source)
        assert contents(shared.mirror, shared.listing) == FILES
        assert shared.untouched()
