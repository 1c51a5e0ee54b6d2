"""What others put into a cache that several users share stays."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from trainctl.base.listing import ListedFile, Listing
from trainctl.node.transfer.shared_cache import SharedCache

MINE, OLD = "lineage-1", 1_600_000_000
FILES = tuple(ListedFile(f"{n}.bin", 4, f"{n:064x}", ()) for n in range(3))


class Place:
    """A cache that a lineage uses."""

    def __init__(self, top: Path) -> None:
        self.root = top / "shared"
        self.cache = SharedCache(str(self.root), 8)
        self.fill(self.root)

    def fill(self, root: Path) -> None:
        """As deliveries would have, of which one was killed long ago."""
        SharedCache(str(root)).refer(MINE, Listing(FILES))
        for file in FILES:
            path = Path(SharedCache(str(root)).blob(file.sha256))
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
        """All that creates or deletes something here."""
        missing = {"f" * 64}
        wanted = [ListedFile("x.bin", 4, "f" * 64, ())]
        for act in (
            lambda: self.cache.refer(MINE, Listing(FILES)),
            lambda: self.cache.fetch_missing(wanted, missing, [], lambda: None),
            lambda: self.cache.drop(FILES[0].sha256),
            lambda: self.cache.forget(MINE),
            lambda: self.cache.forget("lineage-2"),
        ):
            with suppress(OSError, IndexError):  # where there is no mirror to ask
                act()


def test_what_is_not_the_caches_stays(tmp_path: Path) -> None:
    """Beside what is its own, in each of its directories; its own goes as ever."""
    made = Place(tmp_path)
    places = [made.root, *(one for one in made.root.rglob("*") if one.is_dir())]
    remove_orphans = [
        one / name for one in places for name in (".nfs0001", ".DS_Store", "notes.json")
    ]
    for one in remove_orphans:
        one.write_text("mine")
        os.utime(one, (OLD, OLD))

    made.use()

    assert {one.read_text() for one in remove_orphans} == {"mine"}
    own = {one for one in made.root.rglob("*") if one.is_file()} - set(remove_orphans)
    assert {one.name for one in own} == {f".{'b' * 64}.1.{'0' * 12}"}
