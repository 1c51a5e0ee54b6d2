"""Removing weights from a node's cache, killed before its n-th effect: the next eviction takes all that is left."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.support.node_program.nodes import MirrorFixture
from tests.support.node_program.verb_forks import CHUNK_BYTES, VerbForkServer
from tests.support.tiers import offset

SHARED = b"of both listings"
STEP = 4
"""One of so many effects is tried; others every day."""


class Cache:
    """A cache with two listings that share a content, each of a lineage of its own that no run needs."""

    def __init__(self, base: Path, zygote: VerbForkServer) -> None:
        base.mkdir()
        self._place = base / "cache"
        self._zygote = zygote
        self._request = {"root": str(base / "node"), "cache": {"dir": str(self._place)}}
        self.listings = {
            name: self._deliver(MirrorFixture(base / name), name) for name in ("one", "two")
        }

    def _deliver(self, mirror: MirrorFixture, name: str) -> str:
        mirror.add("shared", SHARED)
        mirror.add("deep/own", name.encode())
        said = self.call(
            "deliver",
            lineage=name,
            source="file:./weights",
            listing={**json.loads(mirror.listing.to_bytes()), "chunk_bytes": CHUNK_BYTES},
            mirror={"type": "objects", "path": str(mirror.path)},
        )
        return str(said["result"]["listing"])

    def call(self, method: str, die: int = 0, **request: Any) -> dict[str, Any]:
        """Call a verb that is killed before its effect of that number."""
        self._zygote.send(method, {**self._request, **request}, die=die)
        return self._zygote.answer()

    def evict(self, listings: Iterable[str] | None) -> None:
        """Evict these, or all, and let nobody die."""
        said = self.call(
            "cache_evict", listings=None if listings is None else [*listings], dry_run=False
        )
        assert {row["outcome"] for row in said["result"]["listings"]} <= {"evicted"}, said

    def left(self) -> set[bytes]:
        """The contents that are here, whatever their names are."""
        places = (self._place / name for name in ("blobs", "partial", "trees"))
        files = (path for place in places for path in place.rglob("*") if path.is_file())
        return {path.read_bytes() for path in files}


@pytest.mark.parametrize("by_name", [False, True])
def test_an_eviction_killed_at_every_point(
    tmp_path: Path, zygote: VerbForkServer, by_name: bool
) -> None:
    """The same eviction once more takes the rest, without a third; what is named is all that it takes."""
    for lethal in itertools.count(1 + offset(STEP), STEP):
        cache = Cache(tmp_path / str(lethal), zygote)
        chosen = [cache.listings["one"]] if by_name else None
        said = cache.call("cache_evict", die=lethal, listings=chosen, dry_run=False)
        cache.evict(chosen)
        assert cache.left() == ({SHARED, b"two"} if by_name else set()), lethal
        if "result" in said:
            break
    assert lethal > 5


def test_the_end_of_a_lineage_killed_at_every_point(tmp_path: Path, zygote: VerbForkServer) -> None:
    """Evicting everything then takes also what it shares with others."""
    for lethal in itertools.count(1 + offset(STEP), STEP):
        cache = Cache(tmp_path / str(lethal), zygote)
        said = cache.call("forget", die=lethal, lineage="one")
        cache.evict(None)
        assert cache.left() == set(), lethal
        if "result" in said:
            break
    assert lethal > 5
