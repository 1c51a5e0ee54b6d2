"""How many bytes of memory looking after a mirror in a bucket takes at most for so many small files: ``python -m tests.support.bucket_memory WHAT COUNT PLACE``."""

from __future__ import annotations

import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from tests.support.bucket_mirrors import Directory, gc, names
from tests.support.memory import measured
from tests.support.mirror_memory import MadeUp
from tests.support.mirrors import REFERENCE
from trainctl.base import json_stream
from trainctl.base.listing import ResolvedSource
from trainctl.base.retry import Retry
from trainctl.weights.bucket import hints, keys, long, mirror, packs
from trainctl.weights.bucket import verify as verify_module
from trainctl.weights.bucket.mirror import BucketMirror
from trainctl.weights.bucket.objects import Found
from trainctl.weights.bucket.shelf import Shelf
from trainctl.weights.bucket.where import Where
from trainctl.weights.mirror import fetch
from trainctl.weights.mirror.afresh import Origin
from trainctl.weights.mirror.verify import Outcome

_IN_A_PACK = 100
_LINKS_AT_ONCE = 64
Do = Callable[[], object]


class Listed(Directory):
    """See Objects: a file that stands for a bucket, with long objects beside it; no list of what is there is in memory."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._lock = threading.Lock()
        self._rows = sqlite3.connect(f"{root}.rows", isolation_level=None, check_same_thread=False)
        self._rows.execute("PRAGMA synchronous = OFF")
        self._rows.execute(
            "CREATE TABLE IF NOT EXISTS rows (key TEXT PRIMARY KEY, data BLOB, size INT, put REAL)"
        )

    def get(self, key: str) -> bytes | None:
        for (data,) in self._ask("SELECT data FROM rows WHERE key = ?", key):
            return super().get(key) if data is None else bytes(data)
        return None

    def fetch(self, key: str, into: BinaryIO) -> bool:
        for (data,) in self._ask("SELECT data FROM rows WHERE key = ? AND data NOTNULL", key):
            into.seek(0)
            into.truncate()
            into.write(data)
            return True
        return super().fetch(key, into)

    def put(self, key: str, data: bytes | bytearray | Path) -> None:
        size, content = 0, None
        if isinstance(data, Path):
            super().put(key, data)
            size = data.stat().st_size
        else:
            size, content = len(data), bytes(data)
        self._ask(
            "INSERT OR REPLACE INTO rows VALUES (?, ?, ?, ?)", key, content, size, time.time()
        )

    def head(self, key: str) -> Found | None:
        words = "SELECT key, size, put FROM rows WHERE key = ?"
        return next((Found(*one) for one in self._ask(words, key)), None)

    def _listed(self, prefix: str) -> Iterator[Found]:
        words = "SELECT key, size, put FROM rows WHERE key > ? AND key < ? ORDER BY key LIMIT 100"
        after, end = f"{prefix}/", f"{prefix}0"
        while some := self._ask(words, after, end):
            yield from (Found(*one) for one in some)
            after = some[-1][0]

    def delete(self, keys: Sequence[str], before: Callable[[], None] = lambda: None) -> None:
        for key in keys:
            for (data,) in self._ask("DELETE FROM rows WHERE key = ? RETURNING data", key):
                if data is None:
                    super().delete([key])

    def _ask(self, words: str, *values: object) -> Sequence[Any]:
        with self._lock:
            return self._rows.execute(words, values).fetchall()


def _mirror_at(place: Path, chunk_bytes: int = 2**14) -> BucketMirror:
    """As a new process has it."""
    place.mkdir(exist_ok=True)
    return BucketMirror(Shelf(Listed(place / "mirror"), chunk_bytes), Retry())


def _mirrored(
    place: Path, count: int, first: int = 0, every: int = 1, chunk_bytes: int = 2**14
) -> BucketMirror:
    """A mirror that has such a source, under a name of its own by its ``first`` file and how many it leaves out."""
    mirror, source = _mirror_at(place, chunk_bytes), MadeUp(count, first, every)
    reference = replace(REFERENCE, address=f"weights.of-{first}-{every}")
    mirror.mirror(source.resolved(), source, reference)  # type: ignore[arg-type]
    return _mirror_at(place, chunk_bytes)


def _mirror(place: Path, count: int) -> Do:
    return lambda: _mirrored(place, count)


def _alone(place: Path, count: int) -> Do:
    """Each file is an object of its own, with a mark as long as not all are there."""
    return lambda: _mirrored(place, count, chunk_bytes=8)


def _newer(place: Path, count: int) -> Do:
    """A plan of another version, of which all is there."""
    mirror, source = _mirrored(place, count), MadeUp(count)

    def look() -> None:
        (known,) = mirror.look([replace(source.resolved(), revision="2", known_as="2")]).known
        assert known.listing is None
        assert all(here for _, _, here in known.files)

    return look


def _list(place: Path, count: int) -> Do:
    """Of two sources that share files."""
    _mirrored(place, count)
    mirror = _mirrored(place, count, every=3)

    def look() -> None:
        assert len(mirror.inventory().rows) == 2

    return look


def _collect(place: Path, count: int) -> Do:
    """Of two sources the larger goes."""
    mirror = _mirrored(place, count)
    _mirrored(place, 10, first=count)
    mirror.drop_reference(REFERENCE.lineage, "weights.of-0-1")
    return lambda: _collected(mirror)


def _collect_alone(place: Path, count: int) -> Do:
    """The same where each file is an object of its own."""
    mirror = _mirrored(place, count, chunk_bytes=8)
    mirror.drop_reference(REFERENCE.lineage, "weights.of-0-1")
    return lambda: _collected(mirror)


def _anew(place: Path, count: int) -> Do:
    """Of each pack a part goes, and the rest is put together anew."""
    mirror = _mirrored(place, count)
    _mirrored(place, count, every=3)
    mirror.drop_reference(REFERENCE.lineage, "weights.of-0-1")
    return lambda: _collected(mirror)


def _collected(mirror: BucketMirror) -> None:
    assert gc(mirror)


def _verify(place: Path, count: int) -> Do:
    mirror = _mirrored(place, count)

    def look() -> None:
        assert mirror.verify(None).whole

    return look


def _verify_alone(place: Path, count: int) -> Do:
    """The same of objects of their own."""
    mirror = _mirrored(place, count, chunk_bytes=8)

    def look() -> None:
        assert mirror.verify(None).whole

    return look


def _wrong(place: Path, count: int) -> Do:
    """Each content is wrong, and told."""
    mirror = _mirrored(place, count)
    _spoil(mirror, 1)

    def look() -> None:
        assert len(mirror.verify(None).findings) == count

    return look


def _repair(place: Path, count: int) -> Do:
    """Half of all packs are wrong and half of them have gone, and everything comes again."""
    mirror, source = _mirrored(place, count), MadeUp(count)
    _spoil(mirror, 2)
    mirror.shelf.objects.delete(names(mirror, keys.BLOBS)[1::2])

    @cache
    def resolved() -> ResolvedSource:
        return source.resolved()

    def origin(record: Mapping[str, object], halt: threading.Event) -> Origin:
        return Origin(source, resolved(), None, Retry())  # type: ignore[arg-type]

    def mend() -> None:
        found = mirror.verify(origin).findings
        assert len(found) >= count
        assert not any(one.outcome is Outcome.WRONG for one in found)

    return mend


def _spoil(mirror: BucketMirror, every: int) -> None:
    """Have every byte of some objects wrong."""
    for one in list(mirror.shelf.objects.list(keys.BLOBS))[::every]:
        mirror.shelf.objects.put(one.key, b"x" * one.size)


def _links(place: Path, count: int) -> Do:
    """Where a delivery of all files finds them."""
    mirror = _mirrored(place, count)
    listing = mirror.kept(MadeUp(count).resolved())
    assert listing is not None

    def find() -> None:
        where = Where(mirror.shelf)
        for first in range(0, count, _LINKS_AT_ONCE):
            some = [one.sha256 for one in listing.files[first : first + _LINKS_AT_ONCE]]
            assert all(where.of(listing.id, some, lost=False))

    return find


if __name__ == "__main__":
    packs.MOST_FILES = _IN_A_PACK
    mirror._KEYS_AT_ONCE = 100
    long._READ_BYTES = json_stream._READ = 2**12
    fetch.AT_ONCE = verify_module._CONTENTS_AT_ONCE = hints._FILES_AT_ONCE = 500
    kinds = {
        "mirror": _mirror, "alone": _alone, "newer": _newer, "list": _list, "collect": _collect,
        "collect alone": _collect_alone, "anew": _anew, "verify": _verify, "verify alone": _verify_alone, "wrong": _wrong,
        "repair": _repair, "links": _links,
    }  # fmt: skip
    sys.exit(measured(kinds))
