"""What a power cut leaves of a mirror in a directory: whatever has its name is whole, and so is all that it names."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.mirrors import (
    REFERENCE,
    MemorySource,
    contents,
    impatient,
    left_behind,
    mirror_at,
)
from tests.support.power import Disk
from tests.support.weights_data import noise
from trainctl.weights.mirror.afresh import Origin
from trainctl.weights.mirror.verify import Verifying, verify

MIB = 2**20
BEFORE = {
    "blobs": (),
    "packs": (),
    "listings": ("blobs", "packs"),
    "references": ("blobs", "packs", "listings"),
}
"""By directory of the mirror, those that all lies durably in before anything gets its name there."""


class Watched:
    """A mirror's directory in which each thing that gets its name is looked at. ``wrong`` is what a power cut would then leave without what it needs."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.disk = Disk(root, patch)
        self.disk.before = self._moved
        self.named: list[str] = []
        self.wrong: list[str] = []
        self._root = root

    def _moved(self, source: Path, target: Path) -> None:
        kind = target.relative_to(self._root).parts[0]
        if kind in BEFORE:
            self.named.append(kind)
            lost = self.disk.lost(*BEFORE[kind])
            if not self.disk.is_whole(source):
                lost.append("itself")
            self.wrong += [f"{kind} before {one}" for one in lost]


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("size", "kind"), [(10, "packs"), (MIB + MIB // 2, "blobs"), (2 * MIB + 10, "blobs")]
)
@pytest.mark.parametrize("announce", [True, False])
def test_content_is_durable_before_what_names_it(
    tmp_path: Path, watched: Watched, size: int, kind: str, announce: bool
) -> None:
    """A pack, a file of one chunk and one of several: bytes before their name, their directory before the listing, that before the reference."""
    source = MemorySource({"a": noise(size)}, announce=announce, piece=MIB)
    resolved = source.resolve("memory://model", None, None)
    mirror = mirror_at(tmp_path, 2 * MIB)

    listing = mirror.mirror(resolved, source, REFERENCE)

    assert watched.wrong == []
    assert watched.named == ["references", kind, "listings", "references"]
    assert watched.disk.lost(*BEFORE) == []
    assert contents(mirror, listing.id) == source.files


def test_a_mirror_that_is_made_is_durable_with_the_way_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what is missing above it."""
    disk = Disk(tmp_path, monkeypatch)
    source = MemorySource({"a": noise(10)})
    resolved = source.resolve("memory://model", None, None)

    mirror_at(tmp_path / "new" / "one" / "mirror").mirror(resolved, source, REFERENCE)

    assert disk.lost("new") == []


def test_what_a_killed_process_left_of_a_pack_is_durable_before_it_is_one(
    tmp_path: Path, watched: Watched
) -> None:
    """Who takes it over doesn't know what was synced of it."""
    files = {f"{number:04}": b"%010d" % number for number in range(300)}
    resolved, _, _ = left_behind(tmp_path, files, announce=True)

    mirror_at(tmp_path).mirror(resolved, MemorySource(files), REFERENCE)

    assert watched.wrong == []
    assert watched.named.count("packs") == 2


@pytest.mark.parametrize("size", [10, 2 * MIB + 10])
def test_what_is_repaired_is_as_durable_as_what_comes(
    tmp_path: Path, watched: Watched, size: int
) -> None:
    """Content that was damaged and is fetched again is synced before it gets the name."""
    source = MemorySource({"a": noise(size)}, piece=MIB)
    resolved = source.resolve("memory://model", None, None)
    mirror = mirror_at(tmp_path, MIB)
    mirror.mirror(resolved, source, REFERENCE)
    (place,) = [*tmp_path.glob("blobs/sha256/*/*"), *tmp_path.glob("packs/*/data")]
    place.chmod(0o644)
    with place.open("r+b") as stream:
        stream.write(b"wrong")
    watched.named.clear()

    origin = Origin(source, resolved, None, impatient())
    verify(mirror, Verifying(repair=True, origins=lambda record, halt: origin))

    assert watched.wrong == []
    assert watched.named == [place.relative_to(tmp_path).parts[0]]
    assert watched.disk.lost(*BEFORE) == []
