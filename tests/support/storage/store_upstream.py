"""A source in memory, as a store copies it in."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from trainctl.base.listing import ResolvedSource, SourceFile
from trainctl.errors import SourceInterrupted

Fill = Callable[[memoryview], None]


class MemoryUpstream:
    """An Upstream of ``files``; what they have is announced by ``source_of``.

    ``sent`` counts the bytes of each file, ``opened`` the requests. A connection breaks once at each offset in ``cuts``.
    ``parts`` serves ranges by connections of their own.
    """

    def __init__(
        self,
        files: Mapping[str, bytes],
        *,
        cuts: Mapping[str, set[int]] | None = None,
        parts: bool = False,
        piece: int = 128,
    ) -> None:
        self.source = "memory://model"
        self.files = files
        self.sent: dict[str, int] = {}
        self.opened: list[str] = []
        self._cuts = {path: set(offsets) for path, offsets in (cuts or {}).items()}
        self._parts = parts
        self._piece = piece
        self._lock = threading.Lock()

    @contextmanager
    def open(self, file: SourceFile, offset: int) -> Iterator[Iterator[bytes]]:
        self.opened.append(file.path)
        yield self._pieces(file.path, offset)

    @contextmanager
    def read_range(self, file: SourceFile, offset: int, length: int) -> Iterator[Fill | None]:
        if not self._parts:
            yield None
            return
        self.opened.append(file.path)
        pieces = self._pieces(file.path, offset)
        left = bytearray()

        def fill(into: memoryview) -> None:
            while len(left) < len(into):
                left.extend(next(pieces))
            into[:] = left[: len(into)]
            del left[: len(into)]

        yield fill

    def checksum(self, file: SourceFile) -> str:
        return file.checksum

    def _pieces(self, path: str, offset: int) -> Iterator[bytes]:
        data = self.files[path]
        while offset < len(data):
            if offset in self._cuts.get(path, ()):
                self._cuts[path].discard(offset)
                raise SourceInterrupted(f"{path} broke at {offset}")
            end = min([len(data), offset + self._piece, *(cut for cut in self._cuts.get(path, ()) if cut > offset)])  # fmt: skip
            with self._lock:
                self.sent[path] = self.sent.get(path, 0) + end - offset
            yield data[offset:end]
            offset = end


def announced_as(
    kind: str, files: Mapping[str, bytes], text: str = "memory://model"
) -> ResolvedSource:
    """A source that announces its files by digests of a kind, or by their size."""
    listed = []
    for path, data in files.items():
        md5, git = hashlib.md5(data), hashlib.sha1(b"blob %d\0" % len(data) + data)
        validator, checksum = {
            "sha256": (f"sha256:{hashlib.sha256(data).hexdigest()}", ""),
            "git": (f"git:{git.hexdigest()}", ""),
            "md5": ("etag:1", f"md5:{md5.hexdigest()}"),
            "size": (f"size:{len(data)}", ""),
        }[kind]
        listed.append(SourceFile(path, len(data), validator, checksum))
    return ResolvedSource(text, "1", tuple(sorted(listed)))
