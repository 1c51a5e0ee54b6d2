"""Small files, of which there may be millions: they are put into packs, and what they turned out to be is written down.

A file, and a sync, for each would cost more than everything else about them. DESIGN.md, "Packs".
"""

from __future__ import annotations

import threading
from types import TracebackType

from trainctl.weights.mirror.contents import Contents
from trainctl.weights.mirror.layout import Content
from trainctl.weights.mirror.packing import Packing, pack_key
from trainctl.weights.mirror.records import Records


class Batch:
    """``with Batch(…) as batch``: takes verified files of one source; all of them are in the mirror when it ends, however it ends.

    Safe to use from many threads.
    """

    def __init__(self, contents: Contents, source: str) -> None:
        self._contents = contents
        self._key = pack_key(source)
        self._records = Records.of(contents.layout, source)
        self._lock = threading.Lock()
        self._pack: Packing | None = None
        self._ended = False

    def __enter__(self) -> Batch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            self._ended = True
            pack, self._pack = self._pack, None
        try:
            self._records.flush()
        finally:
            self._finish(pack)

    def add(self, data: bytes, content: Content, key: str | None) -> None:
        """Take a file, unless its content is there. ``key`` is its fingerprint where upstream didn't announce the content."""
        if key is not None:
            self._records.note(key, content)
        if not self._contents.has(content.sha256, content.size):
            self._finish(self._put(bytes.fromhex(content.sha256), data, key))

    def learn(self, key: str, content: Content) -> None:
        """What a fingerprint turned out to be whose content, of one chunk, is in the mirror already."""
        self._records.note(key, content)

    def _put(self, digest: bytes, data: bytes, key: str | None) -> Packing | None:
        """Put it into a pack; the one before it, if it had no room. What comes after the end is of a thread that was left behind."""
        full = None
        with self._lock:
            if self._ended or (self._pack is not None and digest in self._pack):
                return None
            if self._pack is not None and not self._pack.takes(len(data)):
                full, self._pack = self._pack, None
            self._pack = self._pack or Packing(self._contents.layout, self._key)
            self._pack.append(digest, data, key)
        return full

    def _finish(self, pack: Packing | None) -> None:
        if pack is not None:
            pack.finish()
            self._contents.refresh()
