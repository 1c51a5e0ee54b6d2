"""Read objects of a mirror by key, blobs of a listing with retries, and fetch its units."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from typing import (
    Any,
    Callable,
    Dict,
    Iterator,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    Type,
    TypeVar,
    cast,
)

from trainctl.base.filesystem.files import open_file
from trainctl.base.listing import Chunk, ListedFile, Listing
from trainctl.base.objects import ObjectStore
from trainctl.base.retry import RetryPolicy, RetryState
from trainctl.base.throughput import RateLimiter
from trainctl.errors import (
    NodeError,
    SourceInterrupted,
    SourceMismatch,
    SourceUnavailable,
    SourceUnreachable,
    TrainctlError,
    UnknownOnNode,
)
from trainctl.node.system import layout
from trainctl.node.transfer.fetch_pool import (
    MIRROR,
    Fetcher,
    FetchResult,
    PassOnFn,
    TransferUnit,
)
from trainctl.store import keys
from trainctl.store.reader import BlobLocator, coalesce

_READ_BYTES = 2**20
RETRY = RetryPolicy(18, base=0.2, longest=5.0, patience=60.0, unanswered=3)
_REAPPLY_ADVICE = "Apply again: data fetched so far is kept."
_UNREACHABLE_ADVICE = (
    "Allow connections to one of these addresses (firewall, routes, ports: of the cluster), "
    "or keep the mirror where you run trainctl: mirror: {url: file:///DIRECTORY}."
)
CloneFn = Callable[[int, Chunk], bool]
"""Fills a chunk by reflink from the start of an open file; see PartialFile."""
OnBytesFn = Callable[[memoryview], None]
"""Receives bytes as soon as they arrive, while they are in the CPU's cache."""
T = TypeVar("T")


class RetryAfter(Exception):
    """The server is busy, or ``is_incoming``: still fetching the object."""

    def __init__(self, seconds: float, *, is_incoming: bool) -> None:
        super().__init__(f"in {seconds:g} s")
        self.seconds = seconds
        self.is_incoming = is_incoming


class ObjectReader:
    """Reads objects by key, without retries. Thread-safe.

    ``streams``: useful number of parallel reads.
    """

    streams = 1
    where = ""
    """Location for error messages."""
    is_reached = False
    """Whether it has ever responded."""
    broken: Tuple[Type[Exception], ...] = ()
    """Connection errors, after which a read may be retried."""

    def read(self, key: str, offset: int, view: memoryview) -> Iterator[int]:
        """Fill the view from ``offset`` on; yields the length of each buffer read.

        UnknownOnNode, NodeError, RetryAfter, or ``broken``, possibly after some bytes.
        """
        raise NotImplementedError

    def load(self, key: str) -> bytes:
        """Read a complete object; errors as in ``read``."""
        raise NotImplementedError

    def abort(self) -> None:
        """Interrupt reads, from another thread."""

    def close(self) -> None:
        """Close connections."""


class DirectoryReader(ObjectReader):
    """Objects in a local directory. Two streams: one reads while the other hashes."""

    streams = 2
    is_reached = True

    def __init__(self, path: Any, rate_limiter: Optional[RateLimiter] = None) -> None:
        self._root = layout.check_absolute(path, "mirror")
        self._rate_limiter = rate_limiter or RateLimiter()
        self.where = str(self._root)

    def read(self, key: str, offset: int, view: memoryview) -> Iterator[int]:
        done = 0
        with self._open(key) as stream:
            while done < len(view):
                end = min(done + _READ_BYTES, len(view))
                self._rate_limiter.acquire(end - done)
                count = os.preadv(stream.fileno(), [view[done:end]], offset + done)
                if not count:
                    return
                done += count
                yield count

    def load(self, key: str) -> bytes:
        with self._open(key) as stream:
            return cast(bytes, stream.read())

    def clone(self, chunk: Chunk, clone: CloneFn) -> bool:
        """Fill a chunk of a file by reflink to its object."""
        with self._open(keys.blob(chunk.sha256)) as stream:
            return clone(stream.fileno(), chunk)

    def _open(self, key: str) -> Any:
        stream = open_file(f"{self._root}/{key}")
        if stream is None:
            raise UnknownOnNode(f"{key} not found in {self._root}")
        return stream


class CacheReader(DirectoryReader):
    """Chunks of a listing in the cache of another node, whose blobs are whole files."""

    def __init__(self, path: Any, listing: Listing, rate_limiter: RateLimiter) -> None:
        super().__init__(path, rate_limiter)
        self._chunks = {
            keys.blob(chunk.sha256): (keys.blob(file.sha256), chunk.offset)
            for file in listing.unique_files
            for chunk in file.chunk_ranges
        }

    def read(self, key: str, offset: int, view: memoryview) -> Iterator[int]:
        blob, start = self._chunks.get(key, (key, 0))
        return super().read(blob, start + offset, view)

    def clone(self, chunk: Chunk, clone: CloneFn) -> bool:
        """See DirectoryReader: a reflink begins at the start of a file."""
        return False


class MirrorReader:
    """Blobs of one listing in the mirror; resumes interrupted reads. Thread-safe."""

    def __init__(self, reader: ObjectReader, listing: Listing, retry: RetryPolicy = RETRY) -> None:
        self._reader = reader
        self._retry = retry
        self._ending = threading.Event()
        self._locator = BlobLocator(cast(ObjectStore, self), listing)
        self.streams = reader.streams
        self.url = reader.where

    def read(
        self, key: str, view: memoryview, on_bytes: OnBytesFn = lambda _: None, offset: int = 0
    ) -> None:
        """Fill the view with bytes of an object, in order."""
        done = 0

        def attempt(attempts: RetryState) -> None:
            nonlocal done
            if done == len(view):
                return
            for count in self._reader.read(key, offset + done, view[done:]):
                on_bytes(view[done : done + count])
                done += count
                attempts.advanced()
            if done < len(view):
                raise UnknownOnNode(f"{self._reader.where}: {key} ends at {offset + done} bytes")

        self._retry_attempts(attempt)

    def read_small(self, sizes: Mapping[str, int]) -> Dict[str, memoryview]:
        """Read small blobs by digest, with one request for those that are close in a pack."""
        blobs = {sha256: memoryview(b"") for sha256, size in sizes.items() if not size}
        ranges = [self._locator.locate_blob(sha256, size) for sha256, size in sizes.items() if size]
        for run in coalesce(ranges):
            start = run[0].offset
            data = memoryview(bytearray(max(item.end for item in run) - start))
            self.read(run[0].key, data, offset=start)
            for item in run:
                blobs[item.sha256] = data[item.offset - start : item.end - start]
        return blobs

    def key_of(self, unit: TransferUnit) -> str:
        """Return the key of the object that has a unit."""
        if unit.file.chunks:
            return keys.blob(unit.chunk.sha256)
        return self._locator.locate_blob(unit.file.sha256, unit.file.size).key

    def clone(self, file: ListedFile, clone: CloneFn) -> bool:
        """Fill a file chunk by chunk with reflinks; False if unsupported."""
        reader = self._reader
        try:
            return isinstance(reader, DirectoryReader) and all(
                reader.clone(chunk, clone) for chunk in file.chunk_ranges
            )
        except TrainctlError:  # an object is missing; reading it will report that
            return False

    def get(self, key: str, offset: int = 0, length: Optional[int] = None) -> Optional[bytes]:
        """Read a complete object, for the locator. See ObjectStore."""

        def attempt(attempts: RetryState) -> Optional[bytes]:
            try:
                return self._reader.load(key)
            except UnknownOnNode:
                return None

        return self._retry_attempts(attempt)

    def abort(self) -> None:
        """Interrupt reads, from another thread."""
        self._ending.set()
        self._reader.abort()

    def close(self) -> None:
        """Close connections."""
        self._reader.close()

    def _retry_attempts(self, attempt: Callable[[RetryState], T]) -> T:
        reader = self._reader
        attempts = RetryState(
            self._retry.patient if reader.is_reached else self._retry, self._ending
        )
        source_error: TrainctlError
        while True:
            try:
                return attempt(attempts)
            except RetryAfter as error:
                text = f"the mirror at {reader.where} is busy"
                source_error = SourceUnavailable(text, _REAPPLY_ADVICE, retry_after=error.seconds)
            except reader.broken as error:
                text = f"no response from the mirror at {reader.where}: {error}"
                if reader.is_reached:
                    source_error = SourceInterrupted(text, _REAPPLY_ADVICE)
                else:
                    source_error = SourceUnreachable(text, _UNREACHABLE_ADVICE)
            except NodeError as error:
                summary = f"cannot read from the mirror: {error.summary}"
                raise NodeError(summary, error.detail) from None
            try:
                attempts.failed(source_error)
            except TrainctlError as error:
                raise NodeError(error.summary, error.detail) from None


class MirrorFetcher(Fetcher):
    """Fetches from the mirror; ``early``: pass chunks on as they arrive."""

    def __init__(
        self,
        mirror: MirrorReader,
        record_mirror_time: Callable[[float], None] = lambda _: None,
        *,
        early: bool = False,
        source_name: str = MIRROR,
    ) -> None:
        super().__init__(source_name)
        self._mirror = mirror
        self._record_time = record_mirror_time
        self._early = early

    def fetch(self, units: Sequence[TransferUnit], pass_on: PassOnFn) -> Iterator[FetchResult]:
        began = time.monotonic()
        if units[0].is_small:
            blobs = self._mirror.read_small({unit.file.sha256: unit.file.size for unit in units})
            for unit in units:
                yield FetchResult.of(blobs[unit.file.sha256])
            return
        unit, digest, done = units[0], hashlib.sha256(), 0
        view = self._view(unit.chunk.length)

        def on_bytes(data: memoryview) -> None:
            nonlocal done
            digest.update(data)
            if self._early and unit.file.chunks:
                pass_on(unit, done, data)
            done += len(data)

        self._mirror.read(keys.blob(unit.chunk.sha256), view, on_bytes)
        self._record_time(time.monotonic() - began)
        yield FetchResult(view, digest.hexdigest())

    def reject(self, unit: TransferUnit) -> None:
        blob = f"Blob {unit.file.sha256}, {unit.chunk.length} bytes at {unit.chunk.offset}"
        raise corrupt_error(unit.file.path, blob)

    def abort(self) -> None:
        self._mirror.abort()


def corrupt_error(path: str, blob: str) -> TrainctlError:
    """Return the error for a corrupt blob in the mirror."""
    return SourceMismatch(
        f"{path!r} is corrupt in the mirror: digest mismatch",
        f"{blob}. Nothing of it was stored. Repair the mirror, then apply again: trainctl mirror verify --repair",
    )
