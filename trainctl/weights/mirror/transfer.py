"""One file's way from upstream to a verified blob."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass

from trainctl.errors import Interrupted, SourceCut, SourceWrong, TrainctlError
from trainctl.model.files import ResolvedSource, SourceFile
from trainctl.spi.sources import Credential, WeightSource
from trainctl.weights.exclusive import lease
from trainctl.weights.mirror.batch import LARGEST_BYTES, Batch
from trainctl.weights.mirror.hashing import ContentHash, Digests, upstream_hash
from trainctl.weights.mirror.layout import Content, Layout, fingerprint
from trainctl.weights.mirror.partial import Partial, Small
from trainctl.weights.retry import Attempts, Retry
from trainctl.weights.safe_path import shown

_PIECE = 2**20


@dataclass(frozen=True)
class Upstream:
    """Where bytes come from: a source, what it resolved to, what opens it, and how patient to be."""

    source: WeightSource
    resolved: ResolvedSource
    credential: Credential | None
    retry: Retry


@dataclass(frozen=True)
class Transfer:
    """Brings single files into a mirror. ``arrived`` hears of every piece, in bytes; ``halt`` ends it between pieces.

    Small files are in the mirror when ``batch`` has ended.
    """

    layout: Layout
    upstream: Upstream
    halt: threading.Event
    arrived: Callable[[int], None]
    batch: Batch

    def fetch(self, file: SourceFile) -> Content:
        """Have the file's content in the mirror, by whoever brings it, and say what it is."""
        key = fingerprint(self.upstream.resolved, file)
        if file.size <= min(LARGEST_BYTES, self.layout.chunk_bytes):
            return self._take(file, key)
        if file.size <= self.layout.chunk_bytes or not file.identified:
            return self._receive(file, key, Small(self.layout.partial))
        place = self.layout.partial / f"{key}.lease"
        with lease(place, self.halt, lambda: self.layout.known(key) is not None) as held:
            known = self.layout.known(key)
            if known is not None:
                self.arrived(file.size)
                return known
            if not held:
                raise stopped()
            return self._receive(file, key, Partial.open(self.layout.partial, key))

    def _take(self, file: SourceFile, key: str) -> Content:
        """A file that is held in memory: the whole of it is checked before any of it is written."""
        content = self._read(file)
        sha256 = hashlib.sha256(content).hexdigest()
        upstream = upstream_hash(file.validator, file.size)
        if upstream is not None:
            upstream.update(content)
        found = Digests(sha256, upstream.hexdigest() if upstream else None, ())
        check(self.upstream.resolved.source, file, found)
        made = Content(sha256, file.size)
        self.batch.add(content, made, key if file.sha256 is None else None)
        self.arrived(file.size)
        return made

    def _read(self, file: SourceFile) -> bytes:
        upstream = self.upstream
        attempts = Attempts(upstream.retry, self.halt)
        while True:
            if self.halt.is_set():
                raise stopped()
            try:
                with upstream.source.open(
                    upstream.resolved, file, 0, upstream.credential
                ) as pieces:
                    content = b"".join(pieces)
                if len(content) == file.size:
                    return content
                wrong = _longer if len(content) > file.size else _shorter
                raise wrong(upstream.resolved.source, file, len(content))
            except TrainctlError as error:
                attempts.failed(error)

    def _receive(self, file: SourceFile, key: str, scratch: Partial | Small) -> Content:
        reception = _Reception(self, file, scratch)
        try:
            digests = reception.run()
            check(self.upstream.resolved.source, file, digests)
            scratch.publish(self.layout.blob(digests.sha256))
        except SourceWrong:
            reception.close()
            scratch.discard()
            raise
        except BaseException:
            reception.close()
            scratch.release()
            raise
        content = Content(digests.sha256, file.size, digests.chunks)
        if file.size > self.layout.chunk_bytes:
            self.layout.learn(key, content)
        elif file.sha256 is None:
            self.batch.learn(key, content)
        return content


class _Reception:
    """The bytes of one file as they are received, written and hashed."""

    def __init__(self, transfer: Transfer, file: SourceFile, scratch: Partial | Small) -> None:
        self._transfer = transfer
        self._upstream = transfer.upstream
        self._file = file
        self._scratch = scratch
        self._chunk_bytes = transfer.layout.chunk_bytes
        self._kept: list[str] = []
        self._offset = 0
        self._hash = self._new_hash()

    def run(self) -> Digests:
        """Take over what is there, ask for the rest until it is all here, and hand back its digests."""
        if isinstance(self._scratch, Partial):
            self._take_over(self._scratch)
        attempts = Attempts(self._upstream.retry, self._transfer.halt)
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

    def _take_over(self, partial: Partial) -> None:
        for number, chunk, expected in partial.inherited(self._file.size, self._chunk_bytes):
            if hashlib.sha256(chunk).hexdigest() != expected:
                break
            self._go_on()
            partial.keep(number, self._offset, chunk, expected)
            self._kept.append(expected)
            view = memoryview(chunk)
            for start in range(0, len(chunk), _PIECE):
                self._count(view[start : start + _PIECE])
        partial.begin(self._offset, self._kept)

    def _stream(self) -> None:
        upstream, file = self._upstream, self._file
        with upstream.source.open(
            upstream.resolved, file, self._offset, upstream.credential
        ) as pieces:
            for piece in pieces:
                self._go_on()
                if self._offset + len(piece) > file.size:
                    raise _longer(upstream.resolved.source, file, self._offset + len(piece))
                self._scratch.write(self._offset, piece)
                self._count(piece)
        if self._offset < file.size:
            raise _shorter(upstream.resolved.source, file, self._offset)

    def _begin_anew(self) -> None:
        """Forget what has arrived: what comes now may be of other content, and nothing could tell."""
        self._hash.close()
        self._hash = self._new_hash()
        self._transfer.arrived(-self._offset)
        self._offset = 0

    def _new_hash(self) -> ContentHash:
        file = self._file
        return ContentHash(file.size, file.validator, self._chunk_bytes, self._on_chunk)

    def _count(self, piece: bytes | memoryview) -> None:
        self._hash.update(piece)
        self._offset += len(piece)
        self._transfer.arrived(len(piece))

    def _on_chunk(self, number: int, digest: str) -> None:
        if isinstance(self._scratch, Partial) and number >= len(self._kept):
            self._scratch.note(number, digest)

    def _go_on(self) -> None:
        if self._transfer.halt.is_set():
            raise stopped()


def _longer(source: str, file: SourceFile, arrived: int) -> SourceWrong:
    return SourceWrong(
        f"{source}: {shown(file.path)} has more than the {file.size} bytes that upstream announced",
        "It changed upstream since it was resolved. Plan again.",
    )


def _shorter(source: str, file: SourceFile, arrived: int) -> SourceCut:
    return SourceCut(f"{source}: {shown(file.path)} ended {file.size - arrived} bytes early")


def check(source: str, file: SourceFile, digests: Digests) -> None:
    """SourceWrong unless the digests are those upstream announced, as far as it announced any."""
    kind, _, announced = file.validator.partition(":")
    found = {"sha256": digests.sha256, "git": digests.upstream}.get(kind)
    if found is not None and found != announced:
        declared = kind == "sha256" and source.startswith("https:")
        raise SourceWrong(
            f"{source}: {shown(file.path)} arrived with other content than "
            f"{'its declared sha256 says' if declared else 'upstream announced'}",
            f"Its {'sha256' if kind == 'sha256' else 'git blob id'} should be {announced} and is {found}. "
            "Nothing of it was kept. If it happens again, the file is damaged upstream "
            f"or a proxy on the way changes it{', or the declaration is wrong' if declared else ''}.",
        )


def stopped() -> Interrupted:
    """What a transfer says when it is told to stop."""
    return Interrupted(
        "mirroring was stopped", "What has arrived is kept; apply carries on from there."
    )
