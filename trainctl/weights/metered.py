"""A source that counts the bytes of it that this process reads, whatever becomes of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from trainctl.base.listing import ResolvedSource, SourceFile
from trainctl.spi.sources import Credential, Fill, PartSource, Span, TellingSource, WeightSource


class Metered:
    """See WeightSource. ``read`` counts also what is read a second time."""

    def __init__(self, source: WeightSource) -> None:
        self._source = source
        self._lock = threading.Lock()
        self.resolve = source.resolve
        self.server = source.server
        self.link = source.link
        self.relays = source.relays
        self.read = 0

    @contextmanager
    def open(
        self, resolved: ResolvedSource, file: SourceFile, offset: int, credential: Credential | None
    ) -> Iterator[Iterator[bytes]]:
        """See WeightSource."""
        with self._source.open(resolved, file, offset, credential) as pieces:
            yield map(self._counted, pieces)

    @contextmanager
    def part(
        self, resolved: ResolvedSource, file: SourceFile, span: Span, credential: Credential | None
    ) -> Iterator[Fill | None]:
        """See PartSource."""
        if not isinstance(self._source, PartSource):
            yield None
            return
        with self._source.part(resolved, file, span, credential) as fill:
            yield fill and self._counting(fill)

    def told(
        self, resolved: ResolvedSource, file: SourceFile, credential: Credential | None
    ) -> str:
        """See TellingSource."""
        if isinstance(self._source, TellingSource):
            return self._source.told(resolved, file, credential)
        return file.checksum

    def _counting(self, fill: Fill) -> Fill:
        def counted(view: memoryview) -> None:
            fill(view)
            with self._lock:
                self.read += len(view)

        return counted

    def _counted(self, piece: bytes) -> bytes:
        with self._lock:
            self.read += len(piece)
        return piece


_: tuple[type[PartSource], type[TellingSource]] = (Metered,) * 2
