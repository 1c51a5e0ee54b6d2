"""Read and hash all content of a store."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Callable, Dict, Iterator, Optional, Sequence, Set, Tuple

from trainctl.base.objects import ObjectStat, ObjectStore
from trainctl.base.parallel import in_order
from trainctl.errors import StorageError
from trainctl.store import contents, keys, records

Progress = Callable[[int, int, int], None]
"""Called with bytes done, bytes in total, and contents done."""
_AT_ONCE = 3
"""Objects of up to 16 MiB that are in memory."""


@dataclass
class Scan:
    """What is right, by digest, and what is wrong, by key: what it is, and its size in bytes.

    ``chunked`` has the digest over the chunks of each large content. ``unusable`` are keys of large content of which
    chunks are wrong or missing.
    """

    count: int = 0
    size: int = 0
    blobs: Set[bytes] = field(default_factory=set)
    packs: Set[bytes] = field(default_factory=set)
    chunked: Dict[bytes, bytes] = field(default_factory=dict)
    wrong: Dict[str, Tuple[str, int]] = field(default_factory=dict)
    unusable: Set[str] = field(default_factory=set)


def scan(objects: ObjectStore, progress: Progress) -> Scan:
    """Hash all content; chunks of large content first, in order, so that they are read once."""
    return _Scanner(objects, progress).run()


def joined(chunks: Sequence[str]) -> bytes:
    """The digest over the chunks of large content."""
    return hashlib.sha256("".join(chunks).encode()).digest()


def is_right(objects: ObjectStore, key: str) -> bool:
    """Whether a blob is what its key says; also if it is gone."""
    data = objects.get(key)
    return data is None or hashlib.sha256(data).hexdigest() == keys.stem(key)


class _Scanner:
    def __init__(self, objects: ObjectStore, progress: Progress) -> None:
        self._objects = objects
        self._progress = progress
        self._scan = Scan()
        self._packs: Set[bytes] = set()
        self._total = 0

    def run(self) -> Scan:
        chunked = [keys.stem(stat.key) for stat in self._objects.list(keys.CHUNKED)]
        self._packs = {_digest(stat) for stat in self._objects.list(keys.SLICES)}
        self._total = sum(stat.size for stat in self._objects.list(keys.BLOBS))
        for sha256 in chunked:
            self._check_chunked(sha256)
        for stat, result in in_order(self._check_blob, self._unread(), _AT_ONCE):
            if result is not None:
                self._note_blob(stat, *result)
        for digest in self._packs - self._scan.packs:
            self._check_index(digest.hex())
        return self._scan

    def _check_chunked(self, sha256: str) -> None:
        """Hash large content and its chunks."""
        chunks = self._load(keys.chunked(sha256), lambda: contents.chunks_of(self._objects, sha256))
        if chunks is None:
            return
        whole, is_there = hashlib.sha256(), True
        for chunk, data in in_order(self._read_chunk, chunks, _AT_ONCE):
            is_there &= data is not None
            if data is None:
                continue
            whole.update(data)
            if bytes.fromhex(chunk) not in self._scan.blobs:
                self._scan.blobs.add(bytes.fromhex(chunk))
                self._tally(len(data), 0)
        self._tally(0, 1)
        if not is_there:
            self._scan.unusable.add(keys.chunked(sha256))
        elif whole.hexdigest() == sha256:
            self._scan.chunked[bytes.fromhex(sha256)] = joined(chunks)
        else:
            self._scan.wrong[keys.chunked(sha256)] = "chunks changed", 0

    def _read_chunk(self, sha256: str) -> Optional[bytes]:
        """The bytes of a chunk, None if it is missing or wrong."""
        data = self._objects.get(keys.blob(sha256))
        if data is None or bytes.fromhex(sha256) in self._scan.blobs:
            return data
        return data if hashlib.sha256(data).hexdigest() == sha256 else None

    def _unread(self) -> Iterator[ObjectStat]:
        """Blobs that weren't read as chunks, and packs."""
        for stat in self._objects.list(keys.BLOBS):
            if _digest(stat) not in self._scan.blobs or _digest(stat) in self._packs:
                yield stat

    def _check_blob(self, stat: ObjectStat) -> Optional[Tuple[str, int]]:
        """What is wrong with a blob, empty if nothing is, and how many contents are in it; None if it is gone."""
        data = self._objects.get(stat.key)
        if data is None:
            return None
        sha256 = keys.stem(stat.key)
        if hashlib.sha256(data).hexdigest() != sha256:
            return "changed", 1
        if bytes.fromhex(sha256) not in self._packs:
            return "", 1
        try:
            slices = contents.slices_of(self._objects, sha256) or ()
        except StorageError as error:
            if error.code != records.DAMAGED:
                raise
            return "slices changed", 0
        is_same = all(
            hashlib.sha256(data[offset : offset + length]).digest() == digest
            for digest, offset, length in slices
        )
        return "" if is_same else "slices changed", len(slices)

    def _note_blob(self, stat: ObjectStat, what: str, count: int) -> None:
        digest = _digest(stat)
        self._tally(0 if digest in self._scan.blobs else stat.size, count)
        if what != "changed":
            self._scan.blobs.add(digest)
        if not what:
            self._scan.packs |= self._packs & {digest}
        elif what == "changed":
            self._scan.wrong[stat.key] = what, stat.size
        else:
            self._scan.wrong[keys.slices(digest.hex())] = what, stat.size

    def _check_index(self, pack: str) -> None:
        """Note an index without a pack, unless both are gone by now."""
        key = keys.slices(pack)
        wrong = self._scan.wrong
        is_noted = key in wrong or keys.blob(pack) in wrong
        if not is_noted and self._objects.stat(key) and not self._objects.stat(keys.blob(pack)):
            wrong[key] = "pack missing", 0

    def _load(
        self, key: str, read: Callable[[], Optional[Tuple[str, ...]]]
    ) -> Optional[Tuple[str, ...]]:
        try:
            return read()
        except StorageError as error:
            if error.code != records.DAMAGED:
                raise
            self._scan.wrong[key] = "chunks changed", 0
            return None

    def _tally(self, size: int, count: int) -> None:
        self._scan.size += size
        self._scan.count += count
        self._progress(self._scan.size, self._total, self._scan.count)


def _digest(stat: ObjectStat) -> bytes:
    return bytes.fromhex(keys.stem(stat.key))
