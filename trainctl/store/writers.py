"""Fetch files of a source and store them: large ones by chunks, small ones in packs."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from typing import Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple, Union

from trainctl.base.lazy_dataclass import replace
from trainctl.base.listing import ResolvedSource, SourceFile
from trainctl.base.objects import ObjectStore
from trainctl.errors import SourceMismatch, TrainctlError
from trainctl.store import documents, keys
from trainctl.store.coverage import BlobInfo, Groups, SourceCoverage
from trainctl.store.documents import PackEntry
from trainctl.store.file_hash import FileHash, announced_digest, sha256_of
from trainctl.store.file_transfer import (
    PARALLEL_MIN_BYTES,
    BufferedChunk,
    ChunkBufferPool,
    FileTransfer,
)
from trainctl.store.lease import interrupted_error

_UPLOADS = 2
_MAX_CHUNKS = 6
"""Chunks in memory, being received or stored."""


class ChunkWriter:
    """Fetches and stores files; marks stored chunks, to resume later."""

    def __init__(
        self,
        objects: ObjectStore,
        resolved: ResolvedSource,
        transfer: FileTransfer,
        known: SourceCoverage,
        chunk_bytes: int,
    ) -> None:
        self._objects = objects
        self._resolved = resolved
        self._transfer = transfer
        self._known = known
        self._chunk_bytes = chunk_bytes
        self._buffers = ChunkBufferPool(_MAX_CHUNKS, chunk_bytes)
        self._pool = ThreadPoolExecutor(_UPLOADS, thread_name_prefix="upload")

    def fetch(self, file: SourceFile, key: str) -> BlobInfo:
        """Fetch and store a file; ``key`` is its fingerprint."""
        if file.size > self._chunk_bytes:
            blob = self._fetch_chunks(file, key)
        else:
            buffer = self._buffers.acquire(self._transfer.stop)
            try:
                data, digest = memoryview(buffer)[: file.size], FileHash(file)
                self._transfer.read(file, data)
                digest.update(data)
                blob = BlobInfo(digest.verify(self._transfer.upstream), file.size)
                self._objects.put(keys.blob(blob.sha256), data)
            finally:
                self._buffers.release(buffer)
        self._mark(file, key, "whole", blob.sha256)
        return blob

    def close(self) -> None:
        """Wait for active uploads."""
        self._pool.shutdown()

    def _fetch_chunks(self, file: SourceFile, key: str) -> BlobInfo:
        announced = self._with_cheapest_checksum(file)
        with ThreadPoolExecutor(1, "hash") as first, ThreadPoolExecutor(1, "hash") as second:
            hashing = (first, second)  # MD5 takes twice as long as SHA-256
            incoming = _IncomingFile(announced, self._pool, hashing, lambda chunk: self._store(file, key, chunk))  # fmt: skip
            try:
                self._receive(file, key, incoming)
                sha256 = incoming.verify(self._transfer)
            except SourceMismatch:
                incoming.wait()
                self._forget(key)
                raise
            finally:
                incoming.wait()
            digests = incoming.digests
        self._objects.sync([keys.blob(digest) for digest in dict.fromkeys(digests)])
        document = {"version": 1, "size": file.size, "chunks": digests}
        self._objects.put(keys.chunk_list(sha256), documents.encode(document))
        return BlobInfo(sha256, file.size, tuple(digests))

    def _with_cheapest_checksum(self, file: SourceFile) -> SourceFile:
        """Request a checksum that takes the place of an MD5, which takes longer than the request if the file is large."""
        if file.size < PARALLEL_MIN_BYTES or announced_digest(file)[0] != "md5":
            return file
        transfer = self._transfer
        checksum = transfer.retry.run(lambda: transfer.upstream.checksum(file), transfer.stop)
        return replace(file, checksum=checksum)

    def _receive(self, file: SourceFile, key: str, incoming: _IncomingFile) -> None:
        """Reuse chunks of an earlier transfer or repair, and fetch the others."""
        marked = self._known.marked.get(key, {}) if file.identified else {}
        number, count = 0, -(-file.size // self._chunk_bytes)
        while number < count:
            if number in marked:  # the chunk may be missing or corrupt
                sha256, data = marked[number], self._objects.get(keys.blob(marked[number]))
                size = min(self._chunk_bytes, file.size - number * self._chunk_bytes)
                if data is not None and len(data) == size and sha256_of(data) == sha256:
                    incoming.add_stored(data, sha256)
                    self._transfer.on_bytes(size)
                    number += 1
                    continue
            end = next((later for later in range(number + 1, count) if later in marked), count)
            with closing(self._transfer.chunks(file, range(number, end), self._buffers)) as chunks:
                for chunk in chunks:
                    incoming.add(chunk)
            number = end

    def _store(self, file: SourceFile, key: str, chunk: BufferedChunk) -> str:
        sha256 = sha256_of(chunk.data)
        self._objects.put(keys.blob(sha256), chunk.data, durable=False)
        self._mark(file, key, str(chunk.number), sha256)
        return sha256

    def _mark(self, file: SourceFile, *parts: str) -> None:
        if file.identified:
            self._objects.put(keys.mark(self._resolved, *parts), b"", durable=False)

    def _forget(self, key: str) -> None:
        """Delete the marks of a file whose digest differs."""
        marks = keys.mark_prefix(self._resolved)
        stats = self._objects.list(marks)
        self._objects.delete([stat.key for stat in stats if stat.key.startswith(f"{marks}/{key}.")])


class _IncomingFile:
    """Chunks of one file, stored and hashed by other threads."""

    def __init__(
        self,
        file: SourceFile,
        storing: ThreadPoolExecutor,
        hashing: Sequence[ThreadPoolExecutor],
        store: Callable[[BufferedChunk], str],
    ) -> None:
        self._file = file
        self._storing = storing
        self._hashing = hashing
        self._store = store
        self._stored: List[Future[str]] = []
        self._hashed: List[Future[None]] = []
        self._digest = FileHash(file)

    @property
    def digests(self) -> List[str]:
        """The digests of the chunks."""
        return [future.result() for future in self._stored]

    def add_stored(self, data: bytes, sha256: str) -> None:
        """Add a chunk that is already stored."""
        wait(self._hash(data))
        stored: Future[str] = Future()
        stored.set_result(sha256)
        self._stored.append(stored)

    def add(self, chunk: BufferedChunk) -> None:
        """Add the next chunk, or 0 after a restart; raise earlier errors."""
        for future in self._stored:
            if future.done():
                future.result()
        if chunk.number == 0 and self._stored:
            self.wait()
            self._stored, self._hashed, self._digest = [], [], FileHash(self._file)
        hashed = self._hash(chunk.data)
        self._hashed += hashed

        def store() -> str:
            try:
                return self._store(chunk)
            finally:
                wait(hashed)  # these threads read the chunk's memory
                chunk.release()

        self._stored.append(self._storing.submit(store))

    def _hash(self, data: Union[bytes, memoryview]) -> List[Future[None]]:
        pairs = zip(self._hashing, self._digest.hashes)
        return [thread.submit(digest.update, data) for thread, digest in pairs]

    def wait(self) -> None:
        """Wait for the other threads."""
        wait(self._stored)
        wait(self._hashed)

    def verify(self, transfer: FileTransfer) -> str:
        """Return the sha256 of the file; SourceMismatch if it differs upstream."""
        self.wait()
        return self._digest.verify(transfer.upstream)


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
            mark = keys.mark(self._resolved, "pack", sha256)
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
            locations = {sha256: self.locations[key] for key, sha256 in self._digests.items()}
            if len(locations) < len(self.locations):  # remove gaps and duplicates
                view = memoryview(data)
                data = bytearray().join(view[at : at + length] for at, length in locations.values())
                offset, moved = 0, {}
                for sha256, (_, length) in locations.items():
                    moved[sha256] = offset, length
                    offset += length
                locations = moved
            entries = [PackEntry(bytes.fromhex(sha256), *at) for sha256, at in locations.items()]
            yield data, entries, dict(self._identified)
        finally:
            self._data = None
            self._space.release()


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
