"""Removing weights from a node's cache, killed before its n-th effect: the next eviction removes the rest."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.node_program.nodes import MirrorFixture
from tests.support.node_program.verb_forks import CHUNK_BYTES, VerbForkServer

SHARED = b"of both listings"
STEP = 6
"""One of so many effects is tried."""


class Cache:
    """A cache with two listings that share a blob, each of a lineage of its own that no run needs."""

    def __init__(self, base: Path, server: VerbForkServer) -> None:
        base.mkdir()
        self._server = server
        self._directory = base / "cache"
        self._request = {"root": str(base / "node"), "cache": {"dir": str(self._directory)}}
        self.listings = {name: self._deliver(MirrorFixture(base / name), name) for name in ("one", "two")}  # fmt: skip

    def _deliver(self, mirror: MirrorFixture, name: str) -> str:
        mirror.add("shared", SHARED)
        mirror.add("deep/own", name.encode())
        response = self.call(
            "deliver",
            lineage=name,
            source="file:./weights",
            listing={**json.loads(mirror.listing.to_bytes()), "chunk_bytes": CHUNK_BYTES},
            mirror={"path": str(mirror.path)},
        )
        return str(response["result"]["listing"])

    def call(self, method: str, die: int = 0, **request: Any) -> dict[str, Any]:
        """Call a method that is killed before its effect of that number."""
        self._server.send(method, {**self._request, **request}, die=die)
        return self._server.answer()

    def left(self) -> set[bytes]:
        """The contents that are here, whatever their names are."""
        directories = (self._directory / name for name in ("blobs", "partial", "trees"))
        files = (path for top in directories for path in top.rglob("*") if path.is_file())
        return {path.read_bytes() for path in files}


@pytest.mark.parametrize("removal", ["of one listing", "of all listings", "of a lineage"])
def test_a_removal_killed_at_every_point(
    tmp_path: Path, zygote: VerbForkServer, removal: str
) -> None:
    for lethal in itertools.count(1, STEP):
        cache = Cache(tmp_path / str(lethal), zygote)
        named = [cache.listings["one"]] if removal == "of one listing" else None
        if removal == "of a lineage":
            killed = cache.call("forget", die=lethal, lineage="one")
        else:
            killed = cache.call("cache_evict", die=lethal, listings=named, dry_run=False)

        rest = cache.call("cache_evict", listings=named, dry_run=False)

        assert {row["outcome"] for row in rest["result"]["listings"]} <= {"evicted"}, lethal
        assert cache.left() == ({SHARED, b"two"} if named else set()), lethal
        if "result" in killed:
            break
    assert lethal > 5
