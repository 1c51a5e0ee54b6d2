"""Mirror a source: fetch and verify missing files, then write the listing."""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import closing
from typing import Callable, Deque, Dict, List, Optional, Sequence, Set, Tuple

from trainctl.base.listing import CHUNK_BYTES, Listing, ResolvedSource, SourceFile
from trainctl.base.objects import ObjectStore
from trainctl.base.retry import RetryPolicy
from trainctl.base.system.syscalls import limit_malloc_arenas
from trainctl.base.units import format_bytes
from trainctl.errors import StorageError
from trainctl.store import documents, keys, references
from trainctl.store.coverage import (
    BlobInfo,
    Groups,
    SourceCoverage,
    encode_record,
    find_listing,
    group_by_fingerprint,
    is_packed,
)
from trainctl.store.file_transfer import FileTransfer, ProgressFn, Upstream
from trainctl.store.lease import Notify, ObjectLease, hold_writer_lease, interrupted_error
from trainctl.store.objects import SPARE_BYTES, DirectoryObjects, free_bytes
from trainctl.store.references import Reference
from trainctl.store.writers import ChunkWriter, PackWriter

_MAX_SMALL = 32
_MAX_LARGE = 6
_GRACE_SECONDS = 2.0
_POLL_SECONDS = 0.1
_Missing = Tuple[str, Sequence[SourceFile]]
_Fetch = Callable[[SourceFile, str], BlobInfo]
"""Fetches and stores a file with this fingerprint."""


class SourceIngest:
    """Mirrors one source; ``cancelled`` interrupts it."""

    def __init__(
        self,
        objects: ObjectStore,
        resolved: ResolvedSource,
        upstream: Upstream,
        retry: RetryPolicy,
        *,
        chunk_bytes: int = CHUNK_BYTES,
        progress: Optional[ProgressFn] = None,
        cancelled: Optional[threading.Event] = None,
    ) -> None:
        self._objects = objects
        self._resolved = resolved
        self._upstream = upstream
        self._retry = retry
        self._chunk_bytes = chunk_bytes
        self._cancelled = cancelled or threading.Event()
        self._counter = _ProgressCounter(resolved.size, progress)

    def run(self, reference: Reference, waiting: Notify) -> Listing:
        """Mirror missing files; SourceError names the file, StorageError the store."""
        objects, resolved = self._objects, self._resolved
        referenced = references.put_reference(objects, reference, resolved)
        if referenced is not None and objects.stat(keys.GC_LEASE) is None:
            listing = find_listing(objects, resolved)
            if listing is not None and listing.id == referenced:  # so no collection deletes it
                self._counter.add(resolved.size, len(resolved.files))
                return listing
        with hold_writer_lease(objects, resolved, reference, self._cancelled, waiting) as lease:
            listing = find_listing(objects, resolved)
            if listing is None:
                listing = self._copy(lease)
            else:
                self._counter.add(resolved.size, len(resolved.files))
            references.put_reference(objects, reference, resolved, listing.id)
            # the record of this source replaces its progress marks
            self._objects.delete([stat.key for stat in objects.list(keys.mark_prefix(resolved))])
        return listing

    def _copy(self, lease: ObjectLease) -> Listing:
        groups = group_by_fingerprint(self._resolved)
        coverage = SourceCoverage(self._objects, self._resolved, self._chunk_bytes)
        blobs = coverage.find(groups)
        for key in blobs:
            self._counter.add(sum(file.size for file in groups[key]), len(groups[key]))
        missing = {key: files for key, files in groups.items() if key not in blobs}
        size = sum(files[0].size for files in missing.values())
        needed = size - coverage.stored_bytes(missing)
        if isinstance(self._objects, DirectoryObjects) and needed:
            root, needed = self._objects.root, needed + SPARE_BYTES
            free = free_bytes(root)
            if needed > free:
                raise StorageError(
                    f"no space left for the mirror {root}: it needs {format_bytes(needed)}, and {format_bytes(free)} is free",
                    "Free disk space, or use another location in mirror: {url: …}. Nothing was transferred.",
                    code="disk-full",
                )
        packs = {
            coverage.pack_of(blob.sha256) or ""
            for blob in blobs.values()
            if is_packed(blob.size, self._chunk_bytes)
        }
        small = {key: files for key, files in missing.items() if is_packed(files[0].size, self._chunk_bytes)}  # fmt: skip
        large = {key: files for key, files in missing.items() if key not in small}
        packed_blobs, new_packs = self._pack(small)
        blobs.update(packed_blobs)
        blobs.update(self._upload(large, coverage))
        files = (blobs[key].listed(file.path) for key, files in groups.items() for file in files)
        listing = Listing(tuple(sorted(files)))
        lease.require(self._resolved.source)
        if packs or new_packs:
            document = {"version": 1, "packs": sorted((packs | new_packs) - {""})}
            self._objects.put(keys.packs(listing.id), documents.encode(document))
        self._objects.put(keys.listing(listing.id), listing.to_bytes())
        self._objects.put(keys.record(self._resolved), encode_record(self._resolved, listing))
        return listing

    def _pack(self, missing: Groups) -> Tuple[Dict[str, BlobInfo], Set[str]]:
        if not missing:
            return {}, set()
        transfer = self._transfer()
        packs = PackWriter(self._objects, self._resolved, transfer, missing, self._chunk_bytes)
        with closing(packs) as writer:
            blobs = self._fetch_all(writer.fetch, transfer, list(missing.items()), _MAX_SMALL)
        return blobs, writer.stored

    def _upload(self, missing: Groups, coverage: SourceCoverage) -> Dict[str, BlobInfo]:
        """Fetch large files, the largest first, so that none is left for the end."""
        if not missing:
            return {}
        transfer = self._transfer()
        chunks = ChunkWriter(self._objects, self._resolved, transfer, coverage, self._chunk_bytes)
        ordered = sorted(missing.items(), key=lambda item: -item[1][0].size)
        with closing(chunks) as writer:
            return self._fetch_all(writer.fetch, transfer, ordered, _MAX_LARGE)

    def _transfer(self) -> FileTransfer:
        return FileTransfer(self._upstream, self._retry, threading.Event(), self._on_bytes)

    def _on_bytes(self, size: int) -> None:
        if size > 0 and self._cancelled.is_set():
            raise interrupted_error()
        self._counter.add(size)

    def _fetch_all(
        self,
        fetch: _Fetch,
        transfer: FileTransfer,
        missing: List[_Missing],
        at_once: int,
    ) -> Dict[str, BlobInfo]:
        """Fetch files with ``at_once`` threads; the first error stops all, and is raised."""
        limit_malloc_arenas()  # threads are short-lived, and each would keep its own arena
        queue = _FetchQueue(fetch, transfer.stop, missing, self._counter)
        threads = [
            threading.Thread(target=queue.run, daemon=True, name="fetch")
            for _ in range(min(at_once, len(missing)))
        ]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive() and not transfer.stop.is_set():
                    thread.join(_POLL_SECONDS)
                    if self._cancelled.is_set():
                        transfer.stop.set()
        finally:
            transfer.stop.set()
            # abandon threads that wait for upstream
            until = time.monotonic() + _GRACE_SECONDS
            for thread in threads:
                thread.join(max(0.0, until - time.monotonic()))
        if queue.error is not None:
            raise queue.error
        if len(queue.done) < len(missing):
            raise interrupted_error()
        return queue.done


class _FetchQueue:
    """Files to fetch, shared by threads."""

    def __init__(
        self,
        fetch: _Fetch,
        stop: threading.Event,
        missing: List[_Missing],
        counter: _ProgressCounter,
    ) -> None:
        self._fetch = fetch
        self._stop = stop
        self._todo: Deque[_Missing] = deque(missing)
        self._counter = counter
        self._lock = threading.Lock()
        self.done: Dict[str, BlobInfo] = {}
        self.error: Optional[BaseException] = None

    def run(self) -> None:
        """Fetch until the queue is empty or a fetch fails."""
        while not self._stop.is_set():
            try:
                key, files = self._todo.popleft()
            except IndexError:
                return
            try:
                blob = self._fetch(files[0], key)
            except BaseException as error:  # noqa: BLE001  the waiting thread raises it
                with self._lock:
                    if not self._stop.is_set():
                        self.error = error
                        self._stop.set()
                return
            self.done[key] = blob
            self._counter.add(files[0].size * (len(files) - 1), len(files))


class _ProgressCounter:
    """Counts and reports finished bytes and files."""

    def __init__(self, total: int, progress: Optional[Callable[[int, int, int], None]]) -> None:
        self._lock = threading.Lock()
        self._total = total
        self._progress = progress
        self._bytes = self._files = 0

    def add(self, size: int, files: int = 0) -> None:
        """Count more bytes and files."""
        with self._lock:
            self._bytes += size
            self._files += files
            if self._progress is not None:
                self._progress(self._bytes, self._total, self._files)
