"""The bytes of one file on their way from upstream: asked for until they are all there, hashed, and kept by whoever wants them."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Callable, Protocol

from trainctl.base.listing import ResolvedSource, SourceFile
from trainctl.base.retry import Attempts, Retry
from trainctl.base.safe_path import shown
from trainctl.errors import Interrupted, SourceCut, SourceWrong, TrainctlError
from trainctl.spi.sources import Credential, PartSource, TellingSource, WeightSource
from trainctl.weights.mirror.hashing import ContentHash, Digests
from trainctl.weights.mirror.parts import PARTS_FROM_BYTES, Asking, Buffers, Convoy
from trainctl.weights.mirror.sums import SPOKEN, announced, is_worth_asking, sums_of

_PIECE = 2**20


@dataclass(frozen=True)
class Upstream:
    """Where bytes come from: a source, what it resolved to, what opens it, and how patient to be."""

    source: WeightSource
    resolved: ResolvedSource
    credential: Credential | None
    retry: Retry


class Scratch(Protocol):
    """Keeps one file's bytes while it is not whole. ``note`` may be called from another thread than the rest."""

    def inherited(self, size: int, chunk_bytes: int) -> Iterator[tuple[int, bytes, str]]:
        """What an earlier transfer left, chunk by chunk from the first: number, bytes, and the digest they must have."""
        ...

    def keep(self, number: int, offset: int, chunk: bytes, digest: str) -> None:
        """Take over a chunk that turned out to be right."""
        ...

    def begin(self, offset: int, digests: list[str]) -> None:
        """So much was taken over; from here on bytes are new."""
        ...

    def write(self, offset: int, piece: bytes | memoryview) -> None:
        """Put bytes at their place, from any thread. Offset 0 again: all that came before is void."""
        ...

    def note(self, number: int, digest: str) -> None:
        """All bytes of a chunk were written, and this is its digest."""
        ...


@dataclass(frozen=True)
class Receiving:
    """How bytes are received. ``arrived`` hears of every piece, in bytes; ``halt`` ends it between pieces."""

    upstream: Upstream
    chunk_bytes: int
    halt: threading.Event
    arrived: Callable[[int], None]
    buffers: Buffers | None = None
    """Where chunks of large files may be kept that came before their turn."""

    def receive(self, file: SourceFile, scratch: Scratch) -> Digests:
        """Have all of the file in ``scratch``; its digests, which are upstream's. SourceWrong where they are not."""
        if is_worth_asking(file):
            file = told(self.upstream, file, self.halt)
        reception = _Reception(self, file, scratch)
        try:
            digests = reception.run()
            check(self.upstream, file, digests, self.halt)
        finally:
            reception.close()
        return digests


class _Reception:
    """The bytes of one file as they are received, written and hashed."""

    def __init__(self, receiving: Receiving, file: SourceFile, scratch: Scratch) -> None:
        self._receiving = receiving
        self._upstream = receiving.upstream
        self._file = file
        self._scratch = scratch
        self._chunk_bytes = receiving.chunk_bytes
        self._kept: list[str] = []
        self._offset = 0
        self._hash = self._new_hash()

    def run(self) -> Digests:
        """Take over what is there, ask for the rest until it is all here, and hand back its digests."""
        self._take_over(self._scratch)
        self._take_parts()
        attempts = Attempts(self._upstream.retry.patient, self._receiving.halt)
        while self._offset < self._file.size:
            before = self._offset
            try:
                self._stream()
            except TrainctlError as error:
                if not self._file.identified:
                    self._begin_anew()
                if self._offset - before >= min(self._chunk_bytes, _PIECE):
                    attempts.advanced()
                attempts.failed(error)
        return self._hash.digests()

    def close(self) -> None:
        """End the hashing threads."""
        self._hash.close()

    def _take_over(self, scratch: Scratch) -> None:
        for number, chunk, expected in scratch.inherited(self._file.size, self._chunk_bytes):
            if hashlib.sha256(chunk).hexdigest() != expected:
                break
            self._go_on()
            scratch.keep(number, self._offset, chunk, expected)
            self._kept.append(expected)
            view = memoryview(chunk)
            for start in range(0, len(chunk), _PIECE):
                self._count(view[start : start + _PIECE])
        scratch.begin(self._offset, self._kept)

    def _take_parts(self) -> None:
        """As much as several connections bring, each a chunk at a time; nothing where upstream has no parts."""
        receiving, source, file = self._receiving, self._upstream.source, self._file
        if not (
            receiving.buffers is not None
            and file.identified
            and file.size - self._offset >= PARTS_FROM_BYTES
            and isinstance(source, PartSource)
        ):
            return
        upstream = self._upstream
        asking = Asking(
            lambda span: source.part(upstream.resolved, file, span, upstream.credential),
            self._scratch.write,
            file.size,
            upstream.retry.patient,
            receiving.halt,
            receiving.arrived,
        )
        with closing(Convoy(asking, receiving.buffers, self._offset)) as convoy:
            for chunk, digest in convoy:
                self._hash.add(chunk, digest)
                self._offset += len(chunk)
        self._go_on()

    def _stream(self) -> None:
        upstream, file = self._upstream, self._file
        with upstream.source.open(
            upstream.resolved, file, self._offset, upstream.credential
        ) as pieces:
            for piece in pieces:
                self._go_on()
                if self._offset + len(piece) > file.size:
                    raise longer(upstream.resolved.source, file, self._offset + len(piece))
                self._take(memoryview(piece))
        if self._offset < file.size:
            raise shorter(upstream.resolved.source, file, self._offset)

    def _take(self, piece: memoryview) -> None:
        """Chunk by chunk: what is whole goes its way before there must be room for the next, which may have to wait for it."""
        while piece:
            room = self._chunk_bytes - self._offset % self._chunk_bytes
            self._scratch.write(self._offset, piece[:room])
            self._count(piece[:room])
            piece = piece[room:]

    def _begin_anew(self) -> None:
        """Forget what has arrived: what comes now may be of other content, and nothing could tell."""
        self._hash.close()
        self._hash = self._new_hash()
        self._receiving.arrived(-self._offset)
        self._offset = 0

    def _new_hash(self) -> ContentHash:
        file = self._file
        return ContentHash(file.size, sums_of(file), self._chunk_bytes, self._on_chunk)

    def _count(self, piece: bytes | memoryview) -> None:
        self._hash.update(piece)
        self._offset += len(piece)
        self._receiving.arrived(len(piece))

    def _on_chunk(self, number: int, digest: str) -> None:
        if number >= len(self._kept):
            self._scratch.note(number, digest)

    def _go_on(self) -> None:
        if self._receiving.halt.is_set():
            raise stopped()


def longer(source: str, file: SourceFile, arrived: int) -> SourceWrong:
    """More has arrived than was announced."""
    return SourceWrong(
        f"{source}: {shown(file.path)} has more than the {file.size} bytes that upstream announced",
        "It changed upstream since it was resolved. Plan again.",
    )


def shorter(source: str, file: SourceFile, arrived: int) -> SourceCut:
    """The bytes ended before all had come."""
    return SourceCut(f"{source}: {shown(file.path)} ended {file.size - arrived} bytes early")


def told(upstream: Upstream, file: SourceFile, halt: threading.Event) -> SourceFile:
    """The file with what upstream tells of its bytes when it is asked for this one."""
    source = upstream.source
    if not isinstance(source, TellingSource):
        return file
    checksum = upstream.retry.patient.run(
        lambda: source.told(upstream.resolved, file, upstream.credential), halt
    )
    return replace(file, checksum=checksum)


def check(upstream: Upstream, file: SourceFile, digests: Digests, halt: threading.Event) -> None:
    """SourceWrong unless the digests are those upstream announced, as far as it announced any."""
    kind, expected = announced(file)
    found = digests.sha256 if kind == "sha256" else digests.upstream.get(kind)
    if found in (None, expected):
        return
    if kind == "md5":
        asked = told(upstream, file, halt)
        if announced(asked)[0] != kind:  # what was taken for a digest is none
            check(upstream, asked, digests, halt)
            return
    source = upstream.resolved.source
    declared = kind == "sha256" and source.startswith("https:")
    raise SourceWrong(
        f"{source}: {shown(file.path)} arrived with other content than "
        f"{'its declared sha256 says' if declared else 'upstream announced'}",
        f"Its {SPOKEN[kind]} should be {expected} and is {found}. "
        "Nothing of it was kept. If it happens again, the file is damaged upstream "
        f"or a proxy on the way changes it{', or the declaration is wrong' if declared else ''}.",
    )


def stopped() -> Interrupted:
    """What a transfer says when it is told to stop."""
    return Interrupted(
        "mirroring was stopped", "What has arrived is kept; apply carries on from there."
    )
