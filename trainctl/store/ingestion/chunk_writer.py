"""Files that aren't packed on their way into a store: chunk by chunk, each under its own digest."""

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
"""Chunks in memory: those that connections fill, and those that are being stored."""


class ChunkWriter:
    """Fetches files that are larger than those in packs. What arrived is marked, so that an interrupted transfer resumes."""

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
        """Have a file in the store; ``key`` is its fingerprint."""
        content = self._fetch_chunks(file, key) if file.size > self._chunk_bytes else self._fetch_whole(file)  # fmt: skip
        self._mark(file, keys.file_mark(self._resolved, key, content.sha256))
        return content

    def close(self) -> None:
        """Wait for what is being stored."""
        self._pool.shutdown()

    def _fetch_whole(self, file: SourceFile) -> BlobInfo:
        buffer = self._buffers.take(self._transfer.halt)
        try:
            data, digest = memoryview(buffer)[: file.size], FileHash(file)
            self._transfer.read(file, data)
            digest.update(data)
            sha256 = digest.checked(self._transfer.upstream)
            self._objects.put(keys.blob(sha256), data)
        finally:
            self._buffers.release(buffer)
        return BlobInfo(sha256, file.size)

    def _fetch_chunks(self, file: SourceFile, key: str) -> BlobInfo:
        with ThreadPoolExecutor(1, thread_name_prefix="hash") as hashing:
            incoming = _IncomingFile(file, self._pool, hashing, lambda chunk: self._store(file, key, chunk))  # fmt: skip
            try:
                self._receive(file, key, incoming)
                sha256 = incoming.checked(self._transfer)
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
        """Take over the chunks that an earlier transfer or a repair left, and fetch the others."""
        marked = self._known.marked.get(key, {}) if file.identified else {}
        number, count = 0, -(-file.size // self._chunk_bytes)
        while number < count:
            if number in marked and self._take_over(file, number, marked[number], incoming):
                number += 1
                continue
            end = next((later for later in range(number + 1, count) if later in marked), count)
            with closing(self._transfer.chunks(file, range(number, end), self._buffers)) as chunks:
                for chunk in chunks:
                    incoming.add(chunk)
            number = end

    def _take_over(
        self, file: SourceFile, number: int, sha256: str, incoming: _IncomingFile
    ) -> bool:
        """Read and hash a chunk that is there; False if it isn't, or isn't right."""
        data = self._objects.get(keys.blob(sha256))
        size = min(self._chunk_bytes, file.size - number * self._chunk_bytes)
        if data is None or len(data) != size or sha256_of(data) != sha256:
            return False
        incoming.take_over(data, sha256)
        self._transfer.arrived(size)
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
        """Delete the marks of a file that arrived wrong."""
        marks = keys.mark_prefix(self._resolved)
        stats = self._objects.list(marks)
        self._objects.delete([stat.key for stat in stats if stat.key.startswith(f"{marks}/{key}.")])


class _IncomingFile:
    """One file's chunks: each is stored and hashed by other threads."""

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

    def take_over(self, data: bytes, sha256: str) -> None:
        """Take a chunk that is stored."""
        self._hashing.submit(self._digest.update, data).result()
        stored: Future[str] = Future()
        stored.set_result(sha256)
        self._stored.append(stored)

    def add(self, chunk: BufferedChunk) -> None:
        """Take the next chunk; number 0 once more if the file begins anew. Raises the error of an earlier chunk."""
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

    def checked(self, transfer: FileTransfer) -> str:
        """The sha256 of the file, once all of it arrived."""
        self.wait()
        return self._digest.checked(transfer.upstream)


def _call_when_done(act: Callable[[], None], futures: Sequence[Future]) -> None:  # type: ignore[type-arg]
    """Call ``act`` once all futures are done."""
    lock, left = threading.Lock(), [len(futures)]

    def one_done(_: object) -> None:
        with lock:
            left[0] -= 1
            is_last = not left[0]
        if is_last:
            act()

    for future in futures:
        future.add_done_callback(one_done)
