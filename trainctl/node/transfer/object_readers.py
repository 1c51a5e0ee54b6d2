"""Read a mirror's objects by key, and with retries the parts of a listing."""

from __future__ import annotations

import os
import threading
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Tuple, Type, TypeVar, cast

from trainctl.base.failure import Failure
from trainctl.base.filesystem.files import open_file
from trainctl.base.listing import Chunk, ListedFile, Listing
from trainctl.base.objects import ObjectStore
from trainctl.base.retry import RetryPolicy, RetryState
from trainctl.base.throughput import RateLimiter
from trainctl.errors import (
    SourceInterrupted,
    SourceUnavailable,
    SourceUnreachable,
    StorageError,
    TrainctlError,
)
from trainctl.node.system import layout
from trainctl.node.transfer.transfer_units import TransferUnit
from trainctl.store import keys
from trainctl.store.reader import BlobLocator, coalesce

_READ_BYTES = 2**20
RETRY = RetryPolicy(attempts=18, base=0.2, longest=5.0, patience=60.0, unanswered=3)
_REAPPLY_ADVICE = "Apply again: what has arrived is kept."
_UNREACHABLE_ADVICE = (
    "Let this host reach that one at one of these addresses (a firewall, a route, ports: of the cluster), "
    "or keep the mirror where you run trainctl: mirror: {url: file:///DIRECTORY}."
)
CloneFn = Callable[[int, Chunk], bool]
"""Fills a chunk from the start of an open file; see PartialFile."""
ArrivedFn = Callable[[memoryview], None]
"""Called with each piece as it arrives, while it is still in the processor's cache."""
T = TypeVar("T")


class RetryAfter(Exception):
    """The server is busy, or doesn't have an object yet that is ``coming``; ``seconds``: when to ask again."""

    def __init__(self, seconds: float, *, coming: bool) -> None:
        super().__init__(f"in {seconds:g} s")
        self.seconds = seconds
        self.coming = coming


class ObjectReader:
    """Reads objects by key, one attempt at a time, from many threads. ``streams``: how many at once are faster than one."""

    streams = 1
    where = ""
    """The place, for people."""
    is_reached = False
    """Whether it ever answered."""
    broken: Tuple[Type[Exception], ...] = ()
    """Errors of connections, after which a read may be tried again."""

    def read(self, key: str, offset: int, view: memoryview) -> Iterator[int]:
        """Fill the view from ``offset`` on; yields how many more bytes have arrived, and ends early if there are no more.

        Failure ``missing`` or ``denied``; RetryAfter; ``broken``, which may come after some bytes.
        """
        raise NotImplementedError

    def load(self, key: str) -> bytes:
        """A whole object; errors as ``read`` raises them."""
        raise NotImplementedError

    def abort(self) -> None:
        """Fail what is under way, from another thread."""

    def close(self) -> None:
        """Close connections."""


class DirectoryReader(ObjectReader):
    """Objects in a directory that this node sees. One stream reads while another hashes."""

    streams = 2
    is_reached = True

    def __init__(self, path: Any, rate_limiter: Optional[RateLimiter] = None) -> None:
        self._root = layout.check_absolute(path, "origin")
        self._rate_limiter = rate_limiter or RateLimiter()
        self.where = str(self._root)

    def read(self, key: str, offset: int, view: memoryview) -> Iterator[int]:
        """See ObjectReader."""
        done = 0
        with self._opened(key) as stream:
            while done < len(view):
                end = min(done + _READ_BYTES, len(view))
                self._rate_limiter.acquire(end - done)
                count = os.preadv(stream.fileno(), [view[done:end]], offset + done)
                if not count:
                    return
                done += count
                yield count

    def load(self, key: str) -> bytes:
        """See ObjectReader."""
        with self._opened(key) as stream:
            return cast(bytes, stream.read())

    def clone(self, chunk: Chunk, clone: CloneFn) -> bool:
        """Fill a chunk of a file from its object without copying bytes."""
        with self._opened(keys.blob(chunk.sha256)) as stream:
            return clone(stream.fileno(), chunk)

    def _opened(self, key: str) -> Any:
        stream = open_file(f"{self._root}/{key}")
        if stream is None:
            raise Failure("missing", f"{self._root} does not have {key}")
        return stream


class MirrorReader:
    """The mirror of one listing, read by many threads. What broke off is resumed where it was. Failure of kind ``origin``."""

    def __init__(self, reader: ObjectReader, listing: Listing, retry: RetryPolicy = RETRY) -> None:
        self._reader = reader
        self._retry = retry
        self._ending = threading.Event()
        self._locator = BlobLocator(cast(ObjectStore, self), listing)
        self.streams = reader.streams
        self.url = reader.where

    def read(self, part: TransferUnit, view: memoryview, arrived: ArrivedFn) -> None:
        """Fill the view with a part, piece by piece and in order."""
        self._read(keys.blob(part.chunk.sha256), 0, view, arrived)

    def read_small(self, sizes: Mapping[str, int]) -> Dict[str, bytearray]:
        """Several small contents, by digest. Those that are close to each other in a pack come by one request."""
        found = {sha256: bytearray() for sha256, size in sizes.items() if not size}
        try:
            pieces = [
                self._locator.locate_blob(sha256, size) for sha256, size in sizes.items() if size
            ]
        except StorageError as error:
            raise Failure("origin", error.summary, error.detail) from None
        for run in coalesce(pieces):
            start = run[0].offset
            data = bytearray(max(piece.end for piece in run) - start)
            self._read(run[0].key, start, memoryview(data), lambda piece: None)
            for piece in run:
                found[piece.sha256] = data[piece.offset - start : piece.end - start]
        return found

    def clone(self, file: ListedFile, clone: CloneFn) -> bool:
        """Fill a file chunk by chunk without copying bytes; False if that is impossible."""
        reader = self._reader
        return isinstance(reader, DirectoryReader) and all(
            reader.clone(chunk, clone) for chunk in file.chunk_ranges
        )

    def get(self, key: str, offset: int = 0, length: Optional[int] = None) -> Optional[bytes]:
        """A whole object, for the locator. See ObjectStore."""

        def attempt(attempts: RetryState) -> Optional[bytes]:
            try:
                return self._reader.load(key)
            except Failure as error:
                if error.kind == "missing":
                    return None
                raise

        return self._patiently(attempt)

    def abort(self) -> None:
        """Fail what is under way, from another thread."""
        self._ending.set()
        self._reader.abort()

    def close(self) -> None:
        """Close connections."""
        self._reader.close()

    def _read(self, key: str, offset: int, view: memoryview, arrived: ArrivedFn) -> None:
        done = 0

        def attempt(attempts: RetryState) -> None:
            nonlocal done
            if done == len(view):
                return
            for count in self._reader.read(key, offset + done, view[done:]):
                arrived(view[done : done + count])
                done += count
                attempts.advanced()
            if done < len(view):
                raise Failure(
                    "missing", f"{self._reader.where}: {key} ends at {offset + done} bytes"
                )

        self._patiently(attempt)

    def _patiently(self, attempt: Callable[[RetryState], T]) -> T:
        reader = self._reader
        attempts = RetryState(
            self._retry.patient if reader.is_reached else self._retry, self._ending
        )
        failed: TrainctlError
        while True:
            try:
                return attempt(attempts)
            except RetryAfter as error:
                why = f"the mirror at {reader.where} is too busy"
                failed = SourceUnavailable(why, _REAPPLY_ADVICE, retry_after=error.seconds)
            except reader.broken as error:
                why = f"the mirror at {reader.where} does not answer: {error}"
                failed = SourceInterrupted(why, _REAPPLY_ADVICE) if reader.is_reached else SourceUnreachable(why, _UNREACHABLE_ADVICE)  # fmt: skip
            except Failure as error:
                summary = f"the mirror is out of reach: {error.summary}"
                raise Failure("origin", summary, error.detail) from None
            try:
                attempts.failed(failed)
            except TrainctlError as error:
                raise Failure("origin", error.summary, error.detail) from None
