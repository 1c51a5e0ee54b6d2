"""What others put into a cache that several users share: it stays, and where a link of theirs leads nothing happens."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

from trainctl.base.listing import ListedFile, Listing
from trainctl.node.transfer.shared import SharedCache

MINE, OLD = "lineage-1", 1_600_000_000
FILES = tuple(ListedFile(f"{n}.bin", 4, f"{n:064x}", ()) for n in range(3))


class Place:
    """A cache that a lineage uses, and a place outside it with files by all names that a cache has."""

    def __init__(self, top: Path) -> None:
        self.root = top / "shared"
        self.cache = SharedCache(str(self.root), 8)
        self.fill(self.root)
        self.outside = top / "outside"
        SharedCache(str(self.outside)).refer(MINE, Listing(()))
        self.fill(self.outside)
        for place in (self.outside, self.outside / "incoming"):
            (place / "thesis.txt").write_text("years of work")
            os.utime(place / "thesis.txt", (OLD, OLD))

    def fill(self, root: Path) -> None:
        """As deliveries would have, of which one was killed long ago."""
        SharedCache(str(root)).refer(MINE, Listing(FILES))
        for file in FILES:
            path = SharedCache(str(root)).blob(file.sha256)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"1234")
        for name, at in (
            (f".{'a' * 64}.1.{'0' * 12}", OLD),
            (f".{'b' * 64}.1.{'0' * 12}", 2 * OLD),
        ):
            (root / "incoming").mkdir(exist_ok=True)
            (root / "claims").mkdir(exist_ok=True)
            (root / "incoming" / name).write_bytes(b"half")
            os.utime(root / "incoming" / name, (at, at))

    def use(self) -> None:
        """All that makes or takes something here, as far as links let it."""
        missing = {"f" * 64}
        wanted = [ListedFile("x.bin", 4, "f" * 64, ())]
        for act in (
            lambda: self.cache.refer(MINE, Listing(FILES)),
            lambda: self.cache.bring(wanted, missing, [], lambda: None),
            lambda: self.cache.drop(FILES[0].sha256),
            lambda: self.cache.forget(MINE),
            lambda: self.cache.forget("lineage-2"),
        ):
            with suppress(OSError, IndexError):  # where there is no mirror to ask
                act()


def seen(place: Path) -> dict[str, tuple[int, int, bytes]]:
    """Everything below a place, with modes and times."""
    return {
        str(path): (
            path.lstat().st_mode,
            path.lstat().st_mtime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in sorted(place.rglob("*"))
    }


@pytest.mark.parametrize(
    "name",
    ["blobs", "blobs/sha256", "blobs/sha256/00", "incoming", "references", f"references/{MINE}"],
)
def test_nothing_happens_where_a_link_leads(tmp_path: Path, name: str) -> None:
    """One that stands in a directory's place, were what is behind it another cache."""
    made = Place(tmp_path)
    (made.root / name).rename(tmp_path / "aside")
    (made.root / name).symlink_to(made.outside / name)
    before = seen(made.outside)

    made.use()

    assert seen(made.outside) == before


def test_what_is_not_the_caches_stays(tmp_path: Path) -> None:
    """Beside what is its own, in each of its directories; its own goes as ever."""
    made = Place(tmp_path)
    places = [made.root, *(one for one in made.root.rglob("*") if one.is_dir())]
    strays = [one / name for one in places for name in (".nfs0001", ".DS_Store", "notes.json")]
    for one in strays:
        one.write_text("mine")
        os.utime(one, (OLD, OLD))

    made.use()

    assert {one.read_text() for one in strays} == {"mine"}
    own = {one for one in made.root.rglob("*") if one.is_file()} - set(strays)
    assert {one.name for one in own} == {f".{'b' * 64}.1.{'0' * 12}"}
