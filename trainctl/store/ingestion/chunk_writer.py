"""Fetch files larger than those in packs, and store them chunk by chunk."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from typing import Callable, List, Sequence

from trainctl.base.listing import ResolvedSource, SourceFile
from trainctl.base.objects import ObjectStore
from trainctl.errors import SourceMismatch
from trainctl.store import documents, keys
from trainctl.store.ingestion.coverage import BlobInfo, SourceCoverage
from trainctl.store.ingestion.file_transfer import BufferedChunk, ChunkBufferPool, FileTransfer
from trainctl.store.ingestion.upstream import FileHash, sha256_of

_UPLOADS = 2
_MAX_CHUNKS = 5
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
            blob = self._fetch_single(file)
        self._mark(file, keys.file_mark(self._resolved, key, blob.sha256))
        return blob

    def close(self) -> None:
        """Wait for active uploads."""
        self._pool.shutdown()

    def _fetch_single(self, file: SourceFile) -> BlobInfo:
        buffer = self._buffers.acquire(self._transfer.stop)
        try:
            data, digest = memoryview(buffer)[: file.size], FileHash(file)
            self._transfer.read(file, data)
            digest.update(data)
            sha256 = digest.verify(self._transfer.upstream)
            self._objects.put(keys.blob(sha256), data)
        finally:
            self._buffers.release(buffer)
        return BlobInfo(sha256, file.size)

    def _fetch_chunks(self, file: SourceFile, key: str) -> BlobInfo:
        with ThreadPoolExecutor(1, thread_name_prefix="hash") as hashing:
            incoming = _IncomingFile(file, self._pool, hashing, lambda chunk: self._store(file, key, chunk))  # fmt: skip
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

    def _receive(self, file: SourceFile, key: str, incoming: _IncomingFile) -> None:
        """Reuse chunks of an earlier transfer or repair, and fetch the others."""
        marked = self._known.marked.get(key, {}) if file.identified else {}
        number, count = 0, -(-file.size // self._chunk_bytes)
        while number < count:
            if number in marked and self._reuse(file, number, marked[number], incoming):
                number += 1
                continue
            end = next((later for later in range(number + 1, count) if later in marked), count)
            with closing(self._transfer.chunks(file, range(number, end), self._buffers)) as chunks:
                for chunk in chunks:
                    incoming.add(chunk)
            number = end

    def _reuse(self, file: SourceFile, number: int, sha256: str, incoming: _IncomingFile) -> bool:
        """Read and hash a stored chunk; False if it is missing or corrupt."""
        data = self._objects.get(keys.blob(sha256))
        size = min(self._chunk_bytes, file.size - number * self._chunk_bytes)
        if data is None or len(data) != size or sha256_of(data) != sha256:
            return False
        incoming.add_stored(data, sha256)
        self._transfer.on_bytes(size)
        return True

    def _store(self, file: SourceFile, key: str, chunk: BufferedChunk) -> str:
        sha256 = sha256_of(chunk.data)
        self._objects.put(keys.blob(sha256), chunk.data, durable=False)
        self._mark(file, keys.chunk_mark(self._resolved, key, chunk.number, sha256))
        return sha256

    def _mark(self, file: SourceFile, mark: str) -> None:
        if file.identified:
            self._objects.put(mark, b"", durable=False)

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
        hashing: ThreadPoolExecutor,
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
        self._hashing.submit(self._digest.update, data).result()
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
        hashed = self._hashing.submit(self._digest.update, chunk.data)
        stored = self._storing.submit(self._store, chunk)
        _call_when_done(chunk.release, (hashed, stored))
        self._hashed.append(hashed)
        self._stored.append(stored)

    def wait(self) -> None:
        """Wait for the other threads."""
        wait(self._stored)
        wait(self._hashed)

    def verify(self, transfer: FileTransfer) -> str:
        """Return the sha256 of the file; SourceMismatch if it differs upstream."""
        self.wait()
        return self._digest.verify(transfer.upstream)


def _call_when_done(act: Callable[[], None], futures: Sequence[Future]) -> None:  # type: ignore[type-arg]
    """Call ``act`` once all futures are done."""
    lock, left = threading.Lock(), [len(futures)]

    def on_done(_: object) -> None:
        with lock:
            left[0] -= 1
            is_last = not left[0]
        if is_last:
            act()

    for future in futures:
        future.add_done_callback(on_done)
