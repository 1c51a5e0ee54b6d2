"""Fetch small files and store them in packs, planned before the first is fetched."""

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
_MAX_PACKS = 2
"""Packs in memory."""
_POLL_SECONDS = 0.2
Data = Union[bytes, bytearray]


class PackWriter:
    """Fetches small files, which must be requested in the order of ``missing``."""

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
        self._pack_of = {key: pack for pack in self._packs for key in pack.locations}
        self._lock = threading.Lock()
        self.stored: Set[str] = set()
        """Digests of stored packs."""

    def fetch(self, file: SourceFile, key: str) -> BlobInfo:
        """Fetch a file; it is stored with its complete pack, or by ``close``."""
        pack = self._pack_of[key]
        data, digest = pack.open(key, self._transfer.stop), FileHash(file)
        self._transfer.read(file, data)
        digest.update(data)
        sha256 = digest.verify(self._transfer.upstream)
        if pack.add(key, sha256, is_identified=file.identified):
            self._store(pack)
        return BlobInfo(sha256, file.size)

    def close(self) -> None:
        """Store the received files of incomplete packs, so that they aren't fetched again."""
        with contextlib.suppress(TrainctlError):
            for pack in self._packs:
                self._store(pack)

    def _store(self, pack: _PackBuffer) -> None:
        with pack.closed() as (data, entries, identified):
            if not entries:
                return
            sha256 = sha256_of(data)
            self._objects.put(keys.blob(sha256), data)
            self._objects.put(keys.pack_index(sha256), documents.encode_pack_index(entries))
            mark = keys.pack_mark(self._resolved, sha256)
            document = documents.encode({"version": 1, "files": identified})
            self._objects.put(mark, document, durable=False)
            with self._lock:
                self.stored.add(sha256)


class _PackBuffer:
    """A pack being filled; ``locations`` are offset and length by key."""

    def __init__(self, locations: Dict[str, Tuple[int, int]], space: threading.Semaphore) -> None:
        self.locations = locations
        self._space = space
        self._lock = threading.Lock()
        self._data: Optional[bytearray] = None
        self._is_closed = False
        self._digests: Dict[str, str] = {}
        self._identified: Dict[str, str] = {}

    def open(self, key: str, stop: threading.Event) -> memoryview:
        """Return memory for a file; UserInterrupt if ``stop`` is set."""
        with self._lock:
            while self._data is None:
                if stop.is_set():
                    raise interrupted_error()
                if self._space.acquire(timeout=_POLL_SECONDS):
                    self._data = bytearray(sum(length for _, length in self.locations.values()))
            offset, length = self.locations[key]
            return memoryview(self._data)[offset : offset + length]

    def add(self, key: str, sha256: str, *, is_identified: bool) -> bool:
        """Record a received file; return whether it was the last."""
        with self._lock:
            self._digests[key] = sha256
            if is_identified:
                self._identified[key] = sha256
            return len(self._digests) == len(self.locations) and not self._is_closed

    @contextlib.contextmanager
    def closed(self) -> Iterator[Tuple[Data, List[PackEntry], Dict[str, str]]]:
        """Yield, once, the bytes, their entries, and digests by fingerprint."""
        with self._lock:
            data, is_first, self._is_closed = self._data, not self._is_closed, True
        if data is None or not is_first:
            yield b"", [], {}
            return
        try:
            yield (*self._compact(data), dict(self._identified))
        finally:
            self._data = None
            self._space.release()

    def _compact(self, data: bytearray) -> Tuple[Data, List[PackEntry]]:
        """Return the bytes without gaps and duplicates, and their entries."""
        locations = {sha256: self.locations[key] for key, sha256 in self._digests.items()}
        if len(locations) < len(self.locations):
            view = memoryview(data)
            data = bytearray().join(view[at : at + length] for at, length in locations.values())
            offset, moved = 0, {}
            for sha256, (_, length) in locations.items():
                moved[sha256] = offset, length
                offset += length
            locations = moved
        return data, [PackEntry(bytes.fromhex(sha256), *at) for sha256, at in locations.items()]


def _plan_packs(
    files: Iterable[Tuple[str, int]], pack_bytes: int
) -> Iterator[Dict[str, Tuple[int, int]]]:
    """Distribute files with sizes over packs; yield their ``locations``."""
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
