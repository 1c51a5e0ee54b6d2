"""Digests of one file while its bytes pass: whole, by chunk, and the way upstream does it."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Mapping, Protocol

from trainctl.base.below import open_file
from trainctl.weights.mirror.sums import Sums

_QUEUED_PIECES = 8
_PIECE_BYTES = 2**20
THREADS_FROM_BYTES = 4 * 2**20
"""Below this size a thread costs more than it saves."""


@dataclass(frozen=True)
class Digests:
    """Hex digests. ``upstream`` holds, by their kinds, those that may be compared with what upstream tells beside a sha256."""

    sha256: str
    upstream: Mapping[str, str]
    chunks: tuple[str, ...]


class _Sink(Protocol):
    def __call__(self, piece: bytes | memoryview, /) -> object: ...


class _Lane:
    """A thread that hands pieces to a sink in order; never more than a few wait."""

    def __init__(self, sink: _Sink) -> None:
        self._queue: Queue[bytes | memoryview | None] = Queue(_QUEUED_PIECES)
        self._sink = sink
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def __call__(self, piece: bytes | memoryview) -> None:
        self._queue.put(piece)

    def join(self) -> None:
        self._queue.put(None)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        while (piece := self._queue.get()) is not None:
            if self._error is None:
                try:
                    self._sink(piece)
                except OSError as error:
                    self._error = error


class _Chunks:
    """sha256 of each chunk; ``on_chunk`` hears of each complete one."""

    def __init__(self, size: int, chunk_bytes: int, on_chunk: Callable[[int, str], None]) -> None:
        self.digests: list[str] = []
        self._left = size
        self._chunk_bytes = chunk_bytes
        self._room = min(size, chunk_bytes)
        self._hash = hashlib.sha256()
        self._on_chunk = on_chunk

    def __call__(self, piece: bytes | memoryview) -> None:
        view = memoryview(piece)
        while view and self._room:  # a file that grows meanwhile has more
            part, view = view[: self._room], view[self._room :]
            self._hash.update(part)
            self._room -= len(part)
            self._left -= len(part)
            if not self._room:
                self._complete()

    def add(self, size: int, digest: str) -> None:
        """Take a chunk that somebody else has hashed."""
        self._left -= size
        self._next(digest)

    def _complete(self) -> None:
        self._next(self._hash.hexdigest())
        self._hash = hashlib.sha256()

    def _next(self, digest: str) -> None:
        self.digests.append(digest)
        self._room = min(self._left, self._chunk_bytes)
        self._on_chunk(len(self.digests) - 1, digest)


class ContentHash:
    """Feed it every byte of a file in order, then ask for the digests. ``close`` it whatever happens."""

    def __init__(
        self,
        size: int,
        upstream: Sums | None,
        chunk_bytes: int,
        on_chunk: Callable[[int, str], None],
    ) -> None:
        """``upstream`` is what is to take the same bytes."""
        self._whole = hashlib.sha256()
        self._upstream = upstream
        self._chunks = _Chunks(size, chunk_bytes, on_chunk) if size > chunk_bytes else None
        self._sinks: list[_Sink] = [self._whole.update]
        self._sinks += [self._upstream.update] if self._upstream else []
        self._sinks += [self._chunks] if self._chunks else []
        self._lanes: list[_Lane] = []
        self._in_threads = size >= THREADS_FROM_BYTES

    def update(self, piece: bytes | memoryview) -> None:
        """Take the next bytes; the caller must not change them afterwards."""
        if self._in_threads and not self._lanes:
            self._lanes = [_Lane(sink) for sink in self._sinks]
        for sink in self._lanes or self._sinks:
            sink(piece)

    def add(self, chunk: memoryview, digest: str) -> None:
        """Take the next chunk, whose own digest is known; the caller may do with it afterwards what it wants."""
        self.close()
        if self._upstream:
            beside = threading.Thread(target=self._upstream.update, args=(chunk,))
            beside.start()
            self._whole.update(chunk)
            beside.join()
        else:
            self._whole.update(chunk)
        if self._chunks:
            self._chunks.add(len(chunk), digest)

    def close(self) -> None:
        """Wait until everything taken so far is hashed, and end the threads."""
        lanes, self._lanes = self._lanes, []
        for lane in lanes:
            lane.join()

    def digests(self) -> Digests:
        """The digests of everything taken."""
        self.close()
        upstream = self._upstream.told() if self._upstream else {}
        chunks = tuple(self._chunks.digests) if self._chunks else ()
        return Digests(self._whole.hexdigest(), upstream, chunks)


def file_sha256(path: Path) -> str | None:
    """The hex sha256 of a file's content; None if there is no such file. Empty for one that the disk can't read."""
    found = hashlib.sha256()
    return _hashed(path, found.update, found.hexdigest)


def file_digests(path: Path, size: int, chunk_bytes: int) -> tuple[str | None, tuple[str, ...]]:
    """The same of a file of that size, and the digests of its chunks."""
    hashing = ContentHash(size, None, chunk_bytes, lambda number, digest: None)
    try:
        sha256 = _hashed(path, hashing.update, lambda: hashing.digests().sha256)
    finally:
        hashing.close()
    return sha256, hashing.digests().chunks


def _hashed(path: Path, take: _Sink, told: Callable[[], str]) -> str | None:
    try:
        descriptor = open_file(path)
        if descriptor is None:
            return None
        with os.fdopen(descriptor, "rb") as stream:
            while piece := stream.read(_PIECE_BYTES):
                take(piece)
    except OSError as error:
        if error.errno == errno.EIO:
            return ""
        raise
    return told()
