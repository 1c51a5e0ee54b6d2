"""Collecting a mirror whose mirroring, or whose collection, was interrupted."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.mirrors import REFERENCE, MemorySource, assert_sound, contents, mirror_at, stored
from trainctl.base.listing import ResolvedSource, SourceFile
from trainctl.errors import SourceDenied, StorageError
from trainctl.spi.sources import Credential
from trainctl.weights.mirror import DirectoryMirror, Reference
from trainctl.weights.mirror.collect import Collected, Collecting, collect
from trainctl.weights.mirror.needs import needs

OTHER = Reference("lineage-2", "weights.other", "bob@desk", "second")
LARGE, SHARED = os.urandom(3_000_000), os.urandom(2_000_000)
FILES = {"large": LARGE, "shared": SHARED, "small": b"small", "less": b"less"}


class Refusing(MemorySource):
    """Gives all but one file."""

    @contextmanager
    def open(
        self, resolved: ResolvedSource, file: SourceFile, offset: int, credential: Credential | None
    ) -> Iterator[Iterator[bytes]]:
        if file.path == "refused":
            raise SourceDenied("not this one")
        with super().open(resolved, file, offset, credential) as pieces:
            yield pieces


def gc(mirror: DirectoryMirror, *, dry_run: bool = False) -> Collected:
    """Collect without waiting."""
    return collect(mirror, Collecting(dry_run=dry_run, grace_seconds=0))


def fill(mirror: DirectoryMirror, reference: Reference, files: dict[str, bytes]) -> str:
    """Mirror some files for a reference; the listing's id."""
    source = MemorySource(files, piece=2**20)
    resolved = source.resolve(f"memory://{reference.address}", None, None)
    return mirror.mirror(resolved, source, reference).id


def rewrite(mirror: DirectoryMirror, **changes: object) -> None:
    """Have a reference say something else."""
    path = mirror._layout.reference(REFERENCE.lineage, REFERENCE.address)
    record = mirror._layout.read_reference(path) or {}
    mirror._layout.write_reference({**record, **changes})


def cut_short(mirror: DirectoryMirror, *, announce: bool) -> Callable[[], list[str]]:
    """Mirror some of a source, until a file is refused; what mirrors the rest, and says what upstream was asked for."""
    files = {**FILES, "refused": b"refused" * 200_000}
    source = Refusing(files, announce=announce, piece=2**20)
    resolved = source.resolve("memory://model", None, None)
    with pytest.raises(SourceDenied):
        mirror.mirror(resolved, source, REFERENCE, parallelism=1)
    assert mirror.mirrored_bytes(resolved)[0] == len(LARGE) + len(SHARED)
    rewrite(mirror, holder=None)  # this process lives

    def resume() -> list[str]:
        again = MemorySource(files, announce=announce, piece=2**20)
        assert contents(mirror, mirror.mirror(resolved, again, REFERENCE).id) == files
        return sorted(path for path, _ in again.asked)

    return resume


@pytest.mark.parametrize("announce", [True, False])
def test_what_came_for_a_source_that_is_not_whole_stays(tmp_path: Path, *, announce: bool) -> None:
    """Its reference stands, and has no listing yet: the next apply counts on the files that are whole."""
    mirror = mirror_at(tmp_path / "mirror")
    resume = cut_short(mirror, announce=announce)

    told, report = gc(mirror, dry_run=True), gc(mirror)

    assert (told.bytes, report.bytes, len(report.kept)) == (0, 0, 1)
    assert resume() == ["less", "refused", "small"]


def test_packs_of_a_source_that_is_not_whole_stay(tmp_path: Path) -> None:
    """As a writer leaves them that is killed before it writes the listing."""
    mirror = mirror_at(tmp_path / "mirror")
    small = {f"{number}": bytes([number]) * number for number in range(50)}
    listing = fill(mirror, REFERENCE, small)
    rewrite(mirror, listing=None)
    mirror._layout.listing(listing).unlink()

    told, report = gc(mirror, dry_run=True), gc(mirror)

    assert (told.bytes, report.bytes) == (0, 0)
    assert len(stored(mirror.root)) == len(small)


def test_what_others_do_not_want_any_more_goes_meanwhile(tmp_path: Path) -> None:
    """A mirroring that nobody goes on with keeps what may be its own, and nothing else."""
    mirror = mirror_at(tmp_path / "mirror")
    fill(mirror, OTHER, {"other": b"x" * 2_500_000, "packed": b"packed"})
    resume = cut_short(mirror, announce=True)
    mirror.drop_reference(OTHER.lineage, OTHER.address)

    told, report = gc(mirror, dry_run=True), gc(mirror)

    assert (told.bytes, report.bytes, len(report.listings)) == (2_500_006, 2_500_006, 1)
    assert resume() == ["less", "refused", "small"]


def test_what_came_goes_with_its_reference(tmp_path: Path) -> None:
    """Nobody wants it then."""
    mirror = mirror_at(tmp_path / "mirror")
    cut_short(mirror, announce=True)
    mirror.drop_reference(REFERENCE.lineage, REFERENCE.address)

    assert gc(mirror).bytes == len(LARGE) + len(SHARED)
    assert stored(mirror.root) == {}


class _Stopped(BaseException):
    """As an interrupt: no error of ours."""


def interrupted(mirror: DirectoryMirror, *, killed: bool) -> None:
    """Stop a collection in its grace period: as by Ctrl-C, or dead at once."""

    def wait(seconds: float) -> None:
        if not killed:
            raise _Stopped
        os.kill(os.getpid(), signal.SIGKILL)

    asked = Collecting(grace_seconds=1.0, wait=wait)
    if not killed:
        with pytest.raises(_Stopped):
            collect(mirror, asked)
        return
    child = os.fork()
    if not child:
        try:
            collect(mirror, asked)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


@pytest.fixture
def garbage(tmp_path: Path) -> DirectoryMirror:
    """A mirror with a source that is wanted, and one that isn't."""
    mirror = mirror_at(tmp_path / "mirror")
    fill(mirror, REFERENCE, {"large": LARGE, "small": b"small"})
    fill(mirror, OTHER, {"large": LARGE, "shared": SHARED, "less": b"less"})
    mirror.drop_reference(OTHER.lineage, OTHER.address)
    return mirror


def test_a_collection_that_is_interrupted_puts_everything_back(garbage: DirectoryMirror) -> None:
    """Nothing was deleted yet, so nothing is missing either."""
    before = {path for path in garbage.root.rglob("*") if path.is_file()}

    interrupted(garbage, killed=False)

    assert {path for path in garbage.root.rglob("*") if path.is_file()} == before
    assert not list(garbage.root.glob("condemned/*"))


@pytest.mark.parametrize("killed", [False, True])
def test_what_an_interrupted_collection_condemned_is_told_and_goes(
    garbage: DirectoryMirror, *, killed: bool
) -> None:
    """By --dry-run, which writes nothing, as much as the next collection frees: all of it, and nothing else."""
    first = gc(garbage, dry_run=True)
    interrupted(garbage, killed=killed)
    hidden = list(garbage.root.glob("condemned/*/*"))

    told = gc(garbage, dry_run=True)
    assert list(garbage.root.glob("condemned/*/*")) == hidden
    report = gc(garbage)

    assert bool(hidden) is killed
    assert (told.bytes, told.blobs, told.listings) == (first.bytes, first.blobs, first.listings)
    assert (report.bytes, report.blobs, report.listings) == (told.bytes, told.blobs, told.listings)
    assert (report.bytes, len(report.listings)) == (len(SHARED) + 4, 1)
    assert not list(garbage.root.glob("condemned/*"))
    (need,) = needs(garbage._layout)
    assert contents(garbage, str(need.record["listing"])) == {"large": LARGE, "small": b"small"}
    assert_sound(garbage.root)


def test_what_is_wanted_again_of_what_was_condemned_is_not_told_to_go(
    garbage: DirectoryMirror,
) -> None:
    """As of a reference that a network file system shows late: the next collection puts it back."""
    interrupted(garbage, killed=True)
    (listing,) = garbage.root.glob("condemned/*/listings*")
    wanted = listing.name.rpartition("%2F")[2].removesuffix(".json")
    rewrite(garbage, lineage=OTHER.lineage, listing=wanted)

    told, report = gc(garbage, dry_run=True), gc(garbage)

    assert (told.bytes, told.listings) == (0, ())
    assert (report.bytes, report.listings) == (0, ())
    assert set(contents(garbage, wanted)) == {"large", "shared", "less"}


def test_a_refused_collection_puts_everything_back(garbage: DirectoryMirror) -> None:
    """A listing that is lost while the collection waits."""
    (need,) = needs(garbage._layout)
    listing = garbage._layout.listing(str(need.record["listing"]))
    before = stored(garbage.root)

    with pytest.raises(StorageError, match="is missing"):
        collect(garbage, Collecting(grace_seconds=1.0, wait=lambda seconds: listing.unlink()))

    assert stored(garbage.root) == before
    assert not list(garbage.root.glob("condemned/*"))
