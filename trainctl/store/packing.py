"""Small files on their way into packs. Which files share a pack is decided before the first is fetched."""

from __future__ import annotations

import contextlib
import threading
from typing import Dict, Iterable, Iterator, List, Set, Tuple

from trainctl.base.listing import SourceFile
from trainctl.base.objects import ObjectStore
from trainctl.errors import TrainctlError
from trainctl.store import contents, keys, records
from trainctl.store.contents import Slice
from trainctl.store.hashing import FileHash, sha256_of
from trainctl.store.known import Content, Groups
from trainctl.store.transfer import Transfer, stopped

_MOST_FILES = 4096
_MOST_PACKS = 4
"""Packs that are in memory."""
_POLL_SECONDS = 0.2


class Packing:
    """Fetches small files, which must be asked for in the order in which they were given."""

    def __init__(
        self, objects: ObjectStore, marks: str, transfer: Transfer, missing: Groups, pack_bytes: int
    ) -> None:
        self._objects = objects
        self._marks = marks
        self._transfer = transfer
        room = threading.Semaphore(_MOST_PACKS)
        sizes = ((key, files[0].size) for key, files in missing.items())
        self._packs = [_Pack(group, room) for group in _planned(sizes, pack_bytes)]
        self._pack_of = {key: pack for pack in self._packs for key in pack.keys}
        self._lock = threading.Lock()
        self.stored: Set[str] = set()
        """The packs that are in the store."""

    def fetch(self, file: SourceFile, key: str) -> Content:
        """Fetch a file. It is in the store when its pack is complete, or after ``close``."""
        pack = self._pack_of[key]
        pack.open(self._transfer.halt)
        data, digest = bytearray(file.size), FileHash(file)
        self._transfer.read(file, memoryview(data))
        digest.update(data)
        sha256 = digest.checked(self._transfer.upstream)
        if pack.add(key, sha256, data, is_identified=file.identified):
            self._store(pack)
        return Content(sha256, file.size)

    def close(self) -> None:
        """Store what arrived of packs that aren't complete, so that it isn't fetched again. Errors were raised before."""
        with contextlib.suppress(TrainctlError):
            for pack in self._packs:
                self._store(pack)

    def _store(self, pack: _Pack) -> None:
        with pack.closed() as (arrived, known):
            if not arrived:
                return
            data = b"".join(arrived.values())
            sha256 = sha256_of(data)
            self._objects.put(keys.blob(sha256), data)
            self._objects.put(keys.slices(sha256), contents.slices_bytes(_slices(arrived)))
            mark = f"{self._marks}/pack.{sha256}"
            self._objects.put(mark, records.encode({"version": 1, "files": known}), durable=False)
            with self._lock:
                self.stored.add(sha256)


class _Pack:
    """A pack that is being filled."""

    def __init__(self, keys_: List[str], room: threading.Semaphore) -> None:
        self.keys = keys_
        self._room = room
        self._lock = threading.Lock()
        self._is_open = False
        self._is_closed = False
        self._arrived: Dict[str, Tuple[str, bytearray]] = {}
        self._known: Dict[str, str] = {}

    def open(self, halt: threading.Event) -> None:
        """Wait until there is room in memory. Interrupted if ``halt`` is set."""
        with self._lock:
            while not self._is_open:
                if halt.is_set():
                    raise stopped()
                self._is_open = self._room.acquire(timeout=_POLL_SECONDS)

    def add(self, key: str, sha256: str, data: bytearray, *, is_identified: bool) -> bool:
        """Add a file; whether it was the last."""
        with self._lock:
            self._arrived[key] = sha256, data
            if is_identified:
                self._known[key] = sha256
            return len(self._arrived) == len(self.keys) and not self._is_closed

    @contextlib.contextmanager
    def closed(self) -> Iterator[Tuple[Dict[str, bytearray], Dict[str, str]]]:
        """What arrived, once: contents by sha256 in the files' order, and the sha256 of identified files by fingerprint."""
        with self._lock:
            arrived = {} if self._is_closed else self._arrived
            was_open, self._is_closed = self._is_open and not self._is_closed, True
        try:
            yield dict(arrived[key] for key in self.keys if key in arrived), dict(self._known)
        finally:
            self._arrived = {}
            if was_open:
                self._room.release()


def _planned(files: Iterable[Tuple[str, int]], pack_bytes: int) -> Iterator[List[str]]:
    """Files and their sizes, in order, as the packs they will be in."""
    group: List[str] = []
    room = pack_bytes
    for key, size in files:
        if group and (size > room or len(group) == _MOST_FILES):
            yield group
            group, room = [], pack_bytes
        group.append(key)
        room -= size
    if group:
        yield group


def _slices(arrived: Dict[str, bytearray]) -> Iterator[Slice]:
    offset = 0
    for sha256, data in arrived.items():
        yield Slice(bytes.fromhex(sha256), offset, len(data))
        offset += len(data)
