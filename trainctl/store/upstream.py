"""Where a source's bytes come from when it is copied into a store."""

from __future__ import annotations

from typing import Callable, ContextManager, Iterator, Optional, Protocol

from trainctl.base.listing import SourceFile

Fill = Callable[[memoryview], None]
"""Puts the next bytes of a part into a buffer; raises if they don't arrive."""
Progress = Callable[[int, int, int], None]
"""Called with bytes done, bytes in total, and contents done."""


class Upstream(Protocol):
    """A source, with whatever opens it. Errors are SourceError's kinds; nothing is retried here. Usable from many threads."""

    @property
    def source(self) -> str:
        """The source's URI, for messages."""
        ...

    def open(self, file: SourceFile, offset: int) -> ContextManager[Iterator[bytes]]:
        """The file's bytes from ``offset`` on, in pieces of at most 1 MiB."""
        ...

    def part(self, file: SourceFile, offset: int, length: int) -> ContextManager[Optional[Fill]]:
        """Those bytes of the file, by a connection of their own; None if upstream sends whole files only."""
        ...

    def checksum(self, file: SourceFile) -> str:
        """The file's ``checksum`` as its server tells it if it is asked about this file alone."""
        ...
