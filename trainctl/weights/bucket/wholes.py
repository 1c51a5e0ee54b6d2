"""Contents of many chunks, read and hashed as the wholes that they are said to be: that chunks are what their own names say makes them no content yet."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, BinaryIO, NamedTuple, cast

from trainctl.base.json import canonical
from trainctl.base.listing import ListedFile, is_digest
from trainctl.weights.bucket import keys, long
from trainctl.weights.bucket.shelf import Shelf
from trainctl.weights.mirror.in_turn import in_turn

_CHUNKS_AT_ONCE = 6
"""In memory, of all contents together."""
_RECORDS_AT_ONCE = 16


class Claim(NamedTuple):
    """That a content is made of these chunks, as a record or a listing says."""

    sha256: str
    size: int
    chunks: tuple[str, ...]

    @classmethod
    def of(cls, file: ListedFile) -> Claim:
        """What a listing says of a file."""
        return cls(file.sha256, file.size, file.chunks)

    @property
    def name(self) -> bytes:
        """The same for the same claim only."""
        return hashlib.sha256(canonical([*self])).digest()

    @property
    def record(self) -> bytes:
        """As ``chunked/`` has it."""
        return canonical({"version": 1, "size": self.size, "chunks": self.chunks})


class Verdict(Enum):
    """What a claim is worth: the content is what its name says; it is another; nobody can tell, as chunks are lost."""

    RIGHT = 1
    FORGED = 2
    LOST = 3


class Chunk(NamedTuple):
    """One that was there, and its own name is right or not."""

    sha256: str
    size: int
    is_right: bool


def claimed(shelf: Shelf, contents: Iterable[str]) -> Iterator[Claim]:
    """What records say of contents, as far as they can be read."""
    for sha256, said in in_turn(lambda one: shelf.hint(keys.chunked(one)), contents, _RECORDS_AT_ONCE):  # fmt: skip
        size, chunks = said.get("size"), said.get("chunks")
        if isinstance(size, int) and isinstance(chunks, list) and all(map(is_digest, chunks)):
            claim = Claim(sha256, size, tuple(chunks))
            if canonical(said) == claim.record:
                yield claim


class _Kept(long.Hashing):
    """Where a chunk goes: it is hashed as it arrives, and kept, unless it turns out to be larger than chunks are."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.size = 0
        self.pieces: list[bytes] = []
        self._limit = limit

    def truncate(self, size: int | None = None) -> int:
        """What is fetched begins anew."""
        self.size = 0
        self.pieces.clear()
        return super().truncate(size)

    def write(self, data: Any) -> int:
        """The next bytes."""
        written = super().write(data)
        self.size += written
        if self.size <= self._limit:
            self.pieces.append(bytes(data))
        return written


@dataclass
class _Whole:
    """A content while its chunks arrive."""

    claim: Claim
    chunk_bytes: int
    found: hashlib._Hash = field(default_factory=hashlib.sha256)
    is_there: bool = True
    fits: bool = True

    def lost(self) -> None:
        """The next chunk isn't there, or is wrong."""
        self.is_there = False

    def add(self, number: int, kept: _Kept) -> None:
        """The next chunk."""
        expected = min(self.chunk_bytes, self.claim.size - number * self.chunk_bytes)
        self.fits = self.fits and kept.size == expected
        for piece in kept.pieces if self.is_there and self.fits else ():
            self.found.update(piece)

    @property
    def verdict(self) -> Verdict:
        """When every chunk has come."""
        if not self.is_there:
            return Verdict.LOST
        is_all = len(self.claim.chunks) == -(-self.claim.size // self.chunk_bytes)
        is_right = self.fits and is_all and self.found.hexdigest() == self.claim.sha256
        return Verdict.RIGHT if is_right else Verdict.FORGED


class _Part(NamedTuple):
    """A chunk of a content, which is hashed after the one ``before`` it."""

    whole: _Whole
    number: int
    before: threading.Event
    after: threading.Event


def read(
    shelf: Shelf, claims: Iterable[Claim], settled: Callable[[Claim, Verdict], None]
) -> Iterator[Chunk]:
    """Every chunk of the contents, some at a time; ``settled`` is told what came of each claim.

    Chunks come out of turn, also those of one content, and each waits in memory for those before it. Whoever has one before it was
    there first, so the first of all that are under way waits for nobody.
    """

    def look(part: _Part) -> Chunk | None:
        sha256 = part.whole.claim.chunks[part.number]
        kept = _Kept(shelf.chunk_bytes)
        try:
            is_there = shelf.objects.fetch(keys.blob(sha256), cast(BinaryIO, kept))
            is_right = is_there and kept.found.hexdigest() == sha256
            part.before.wait()
            if is_right:
                part.whole.add(part.number, kept)
            else:
                part.whole.lost()
        finally:
            part.after.set()
        return Chunk(sha256, kept.size, is_right) if is_there else None

    for part, chunk in in_turn(look, _parts(claims, shelf.chunk_bytes), _CHUNKS_AT_ONCE):
        if chunk is not None:
            yield chunk
        whole = part.whole
        if part.number == len(whole.claim.chunks) - 1:
            settled(whole.claim, whole.verdict)


def _parts(claims: Iterable[Claim], chunk_bytes: int) -> Iterator[_Part]:
    for claim in claims:
        whole, before = _Whole(claim, chunk_bytes), threading.Event()
        before.set()
        for number in range(len(claim.chunks)):
            after = threading.Event()
            yield _Part(whole, number, before, after)
            before = after
