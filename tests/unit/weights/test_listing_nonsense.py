"""A listing under its right name that names something that is no content: whoever may write to a mirror can put one there. It is damaged, and stops nobody."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.bucket_mirrors import Directory
from tests.support.mirrors import REFERENCE, MemorySource, impatient
from trainctl.base.json import canonical
from trainctl.base.listing import Listing
from trainctl.errors import StorageError
from trainctl.spi.sources import WeightSource
from trainctl.weights.bucket.mirror import BucketMirror
from trainctl.weights.bucket.shelf import Shelf
from trainctl.weights.mirror import Reference
from trainctl.weights.mirror.afresh import Origin
from trainctl.weights.mirror.checked import checked
from trainctl.weights.mirror.collect import Collecting
from trainctl.weights.mirror.here import HereMirror
from trainctl.weights.mirror.port import Mirror
from trainctl.weights.mirror.verify import Outcome

OTHER = Reference("lineage-2", "weights.other", "bob@desk", "second")
NONSENSE: dict[str, dict[str, Any]] = {
    "no hex": {"sha256": "zz" * 32},
    "a path": {"sha256": "../../../etc/passwd"},
    "short": {"sha256": "ab"},
    "capitals": {"sha256": "AB" * 32},
    "a number": {"sha256": 7},
    "none": {"sha256": None},
    "a chunk": {"chunks": ["zz" * 32]},
    "no chunks": {"chunks": None},
    "a size": {"size": "7"},
    "a negative size": {"size": -7},
    "no path": {"path": None},
    "no text": {"path": "\ud800"},
}


def here(root: Path) -> Mirror:
    return HereMirror(root, impatient())


def in_a_bucket(root: Path) -> Mirror:
    return BucketMirror(Shelf(Directory(root)), impatient())


class Forged:
    """A mirror of two sources. The reference of one leads to a listing of nonsense, and so does what else says which it has."""

    def __init__(
        self, made: Callable[[Path], Mirror], root: Path, nonsense: dict[str, Any]
    ) -> None:
        self._made = made
        self.root = root
        self.source = MemorySource({"a": b"first", "b": b"second"})
        self.resolved = self.source.resolve("hf://a/b", None, None)
        listing = self.mirror.mirror(self.resolved, _plain(self.source), REFERENCE)
        self.right = listing.id
        other = MemorySource({"c": b"another"})
        self.other = other.resolve("hf://c/d", None, None)
        self.mirror.mirror(self.other, _plain(other), OTHER)
        files = [dict(one.document) for one in listing.files]
        files[0].update(nonsense)
        head, _, _ = listing.to_bytes().partition(b"[")
        data = head + json.dumps(files, separators=(",", ":")).encode() + b',"version":1}'
        self.forged = hashlib.sha256(data).hexdigest()
        path = root / "listings" / f"{self.right}.json"
        path.with_stem(self.forged).write_bytes(data)
        for one in (*root.glob("references/*/*.json"), *root.glob("fingerprints/*/*.json")):
            self._lead(one)
        path.unlink()
        self.source.asked.clear()

    def _lead(self, path: Path) -> None:
        """To the forged one what led to the right one."""
        said = path.read_bytes()
        if self.right.encode() in said:
            record = json.loads(said.replace(self.right.encode(), self.forged.encode()))
            del record["check"]
            path.unlink()
            path.write_bytes(checked(record) if "references" in path.parts else canonical(record))

    @property
    def mirror(self) -> Mirror:
        """As a new process has it."""
        return self._made(self.root)

    def origin(self, record: object, halt: threading.Event) -> Origin:
        """The source is as it was."""
        return Origin(_plain(self.source), self.resolved, None, impatient())


def _plain(source: MemorySource) -> WeightSource:
    return source


@pytest.fixture(params=[here, in_a_bucket], ids=["directory", "bucket"])
def made(request: pytest.FixtureRequest) -> Callable[[Path], Mirror]:
    """Both kinds of mirrors."""
    found: Callable[[Path], Mirror] = request.param
    return found


@pytest.mark.parametrize("nonsense", NONSENSE.values(), ids=NONSENSE)
def test_nonsense_in_a_listing_stops_nobody(
    made: Callable[[Path], Mirror], tmp_path: Path, nonsense: dict[str, Any]
) -> None:
    """It is told by a verification and a list, a collection refuses; plans and applies have it written anew."""
    forged = Forged(made, tmp_path, nonsense)

    seen = forged.mirror.verify(None)
    mended = forged.mirror.verify(forged.origin)
    rows = {row.source: row.listing_is for row in forged.mirror.inventory().rows}
    with pytest.raises(StorageError) as refused:
        forged.mirror.collect(Collecting(grace_seconds=0))
    known = forged.mirror.look([forged.resolved, forged.other]).known
    kept = forged.mirror.kept(forged.resolved)
    listing = forged.mirror.mirror(forged.resolved, _plain(forged.source), REFERENCE)

    for found in (seen, mended):
        assert [(one.path.stem, one.what) for one in found.findings] == [
            (forged.forged, "listing changed")
        ]
        assert found.findings[0].sources == ("hf://a/b",)
        assert found.findings[0].outcome is Outcome.WRONG
    assert rows == {"hf://a/b": "damaged", "hf://c/d": ""}
    assert forged.forged in refused.value.summary
    assert [one.listing is None for one in known] == [True, False]
    assert kept is None
    assert listing.id == forged.right
    assert forged.source.asked == []
    assert {one.outcome for one in forged.mirror.verify(forged.origin).findings} <= {
        Outcome.REMOVED
    }
    forged.mirror.collect(Collecting(grace_seconds=0))
    assert forged.mirror.verify(None).findings == ()


@pytest.mark.parametrize("data", [b"[]", b"{}", b'{"files": 7}', b"[" * 100_000])
def test_what_is_no_listing_at_all_is_damaged(data: bytes) -> None:
    """Whatever it is."""
    with pytest.raises(ValueError, match="it is"):
        Listing.from_bytes(data)
