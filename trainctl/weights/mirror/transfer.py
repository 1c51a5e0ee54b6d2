"""One file's way from upstream to a verified blob of a directory."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass

from trainctl.base.exclusive import lease
from trainctl.base.listing import SourceFile
from trainctl.base.retry import Attempts
from trainctl.errors import SourceWrong, TrainctlError
from trainctl.node.content.parts import PACKED_BYTES
from trainctl.weights.mirror.announced import may_be
from trainctl.weights.mirror.batch import Batch
from trainctl.weights.mirror.contents import Contents
from trainctl.weights.mirror.disk import explained
from trainctl.weights.mirror.hashing import Digests
from trainctl.weights.mirror.layout import Content, Layout
from trainctl.weights.mirror.partial import Partial, Small
from trainctl.weights.mirror.parts import Buffers
from trainctl.weights.mirror.proven import is_proven
from trainctl.weights.mirror.reception import (
    Receiving,
    Upstream,
    check,
    longer,
    shorter,
    stopped,
    told,
)
from trainctl.weights.mirror.sums import is_worth_asking, sums_of


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
    buffers: Buffers | None = None

    def fetch(self, file: SourceFile, key: str) -> Content:
        """Have the file's content in the mirror, by whoever brings it, and say what it is; ``key`` is its fingerprint."""
        with explained(self.layout.root):
            return self._fetch(file, key)

    def _fetch(self, file: SourceFile, key: str) -> Content:
        if file.size < PACKED_BYTES and file.size <= self.layout.chunk_bytes:
            return self._take(file, key)
        if file.size <= self.layout.chunk_bytes or not file.identified:
            return self._receive(file, key, Small(self.layout))
        place = self.layout.partial / f"{key}.lease"
        with lease(place, self.halt, lambda: self._known(file, key) is not None) as held:
            known = self._known(file, key)
            if known is not None:
                self.arrived(file.size)
                return known
            if not held:
                raise stopped()
            return self._receive(file, key, Partial.open(self.layout, key))

    def _take(self, file: SourceFile, key: str) -> Content:
        """A file that is held in memory: the whole of it is checked before any of it is written."""
        if is_worth_asking(file):
            file = told(self.upstream, file, self.halt)
        content = self._read(file)
        sha256 = hashlib.sha256(content).hexdigest()
        sums = sums_of(file)
        if sums is not None:
            sums.update(content)
        found = Digests(sha256, sums.told() if sums else {}, ())
        check(self.upstream, file, found, self.halt)
        made = self.put(content, file, key, sha256)
        self.arrived(file.size)
        return made

    def _known(self, file: SourceFile, key: str) -> Content | None:
        """What somebody else has brought."""
        known = self.layout.known(key)
        if known is None or not may_be(file, known.sha256, known.size):
            return None
        return known if is_proven(Contents(self.layout), file, known) else None

    def put(self, data: bytes, file: SourceFile, key: str, sha256: str) -> Content:
        """Take a file of one chunk that is verified, and has that sha256."""
        made, known_by = Content(sha256, file.size), key if file.sha256 is None else None
        if file.size < PACKED_BYTES:
            self.batch.add(data, made, known_by)
            return made
        alone = Small(self.layout)
        alone.write(0, data)
        alone.publish(self.layout.blob(sha256))
        if known_by is not None:
            self.batch.learn(known_by, made)
        return made

    def _read(self, file: SourceFile) -> bytes:
        upstream = self.upstream
        attempts = Attempts(upstream.retry.patient, self.halt)
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
                wrong = longer if len(content) > file.size else shorter
                raise wrong(upstream.resolved.source, file, len(content))
            except TrainctlError as error:
                attempts.failed(error)

    def _receive(self, file: SourceFile, key: str, scratch: Partial | Small) -> Content:
        receiving = Receiving(
            self.upstream, self.layout.chunk_bytes, self.halt, self.arrived, self.buffers
        )
        try:
            digests = receiving.receive(file, scratch)
            scratch.publish(self.layout.blob(digests.sha256))
        except SourceWrong:
            scratch.discard()
            raise
        except BaseException:
            scratch.release()
            raise
        content = Content(digests.sha256, file.size, digests.chunks)
        if file.size > self.layout.chunk_bytes:
            self.layout.learn(key, content)
        elif file.sha256 is None:
            self.batch.learn(key, content)
        return content
