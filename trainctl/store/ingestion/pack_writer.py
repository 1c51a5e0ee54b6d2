"""Small files on their way into packs. Which files share a pack is decided before the first is fetched."""

from __future__ import annotations

import contextlib
import threading
from typing import Dict, Iterable, Iterator, List, Optional, Set, Tuple, Union

from trainctl.base.listing import ResolvedSource, SourceFile
from trainctl.base.objects import ObjectStore
from trainctl.errors import TrainctlError
from trainctl.store import documents, keys
from trainctl.store.documents import PackEntry
from trainctl.store.ingestion.coverage import BlobInfo, Groups
from trainctl.store.ingestion.file_transfer import FileTransfer, interrupted_error
from trainctl.store.ingestion.upstream import FileHash, sha256_of

_MAX_FILES = 4096
_MAX_PACKS = 3
"""Packs that are in memory."""
_POLL_SECONDS = 0.2
Data = Union[bytes, bytearray]


class PackWriter:
    """Fetches small files, which must be asked for in the order in which they were given."""

    def __init__(
        self,
        objects: ObjectStore,
        resolved: ResolvedSource,
        transfer: FileTransfer,
        missing: Groups,
        pack_bytes: int,
    ) -> None:
        self._objects = objects
        self._resolved = resolved
        self._transfer = transfer
        space = threading.Semaphore(_MAX_PACKS)
        sizes = ((key, files[0].size) for key, files in missing.items())
        self._packs = [_PackBuffer(group, space) for group in _plan_packs(sizes, pack_bytes)]
        self._pack_of = {key: pack for pack in self._packs for key in pack.places}
        self._lock = threading.Lock()
        self.stored: Set[str] = set()
        """The packs that are in the store."""

    def fetch(self, file: SourceFile, key: str) -> BlobInfo:
        """Fetch a file. It is in the store when its pack is complete, or after ``close``."""
        pack = self._pack_of[key]
        data, digest = pack.open(key, self._transfer.halt), FileHash(file)
        self._transfer.read(file, data)
        digest.update(data)
        sha256 = digest.checked(self._transfer.upstream)
        if pack.add(key, sha256, is_identified=file.identified):
            self._store(pack)
        return BlobInfo(sha256, file.size)

    def close(self) -> None:
        """Store what arrived of packs that aren't complete, so that it isn't fetched again. Errors were raised before."""
        with contextlib.suppress(TrainctlError):
            for pack in self._packs:
                self._store(pack)

    def _store(self, pack: _PackBuffer) -> None:
        with pack.closed() as (data, slices, known):
            if not slices:
                return
            sha256 = sha256_of(data)
            self._objects.put(keys.blob(sha256), data)
            self._objects.put(keys.pack_index(sha256), documents.encode_pack_index(slices))
            mark = keys.pack_mark(self._resolved, sha256)
            self._objects.put(mark, documents.encode({"version": 1, "files": known}), durable=False)
            with self._lock:
                self.stored.add(sha256)


class _PackBuffer:
    """A pack that is being filled. ``places`` are offset and length by the files' keys, in order."""

    def __init__(self, places: Dict[str, Tuple[int, int]], space: threading.Semaphore) -> None:
        self.places = places
        self._space = space
        self._lock = threading.Lock()
        self._data: Optional[bytearray] = None
        self._is_closed = False
        self._arrived: Dict[str, str] = {}
        self._known: Dict[str, str] = {}

    def open(self, key: str, halt: threading.Event) -> memoryview:
        """Memory for a file; waits until a pack more may be in memory. Interrupted if ``halt`` is set."""
        with self._lock:
            while self._data is None:
                if halt.is_set():
                    raise interrupted_error()
                if self._space.acquire(timeout=_POLL_SECONDS):
                    self._data = bytearray(sum(length for _, length in self.places.values()))
            offset, length = self.places[key]
            return memoryview(self._data)[offset : offset + length]

    def add(self, key: str, sha256: str, *, is_identified: bool) -> bool:
        """Note that a file arrived; whether it was the last."""
        with self._lock:
            self._arrived[key] = sha256
            if is_identified:
                self._known[key] = sha256
            return len(self._arrived) == len(self.places) and not self._is_closed

    @contextlib.contextmanager
    def closed(self) -> Iterator[Tuple[Data, List[PackEntry], Dict[str, str]]]:
        """What arrived, once: its bytes, the contents in them, and the sha256 of identified files by fingerprint."""
        with self._lock:
            data, is_first, self._is_closed = self._data, not self._is_closed, True
        if data is None or not is_first:
            yield b"", [], {}
            return
        try:
            yield (*self._arranged(data), dict(self._known))
        finally:
            self._data = None
            self._space.release()

    def _arranged(self, data: bytearray) -> Tuple[Data, List[PackEntry]]:
        """The bytes, without gaps and with each content once."""
        places = {sha256: self.places[key] for key, sha256 in self._arrived.items()}
        if len(places) < len(self.places):
            view = memoryview(data)
            data = bytearray().join(view[at : at + length] for at, length in places.values())
            offset, moved = 0, {}
            for sha256, (_, length) in places.items():
                moved[sha256] = offset, length
                offset += length
            places = moved
        return data, [PackEntry(bytes.fromhex(sha256), *place) for sha256, place in places.items()]


def _plan_packs(
    files: Iterable[Tuple[str, int]], pack_bytes: int
) -> Iterator[Dict[str, Tuple[int, int]]]:
    """Files and their sizes, in order, as the packs they will be in, with their places there."""
    group: Dict[str, Tuple[int, int]] = {}
    offset = 0
    for key, size in files:
        if group and (offset + size > pack_bytes or len(group) == _MAX_FILES):
            yield group
            group, offset = {}, 0
        group[key] = offset, size
        offset += size
    if group:
        yield group
