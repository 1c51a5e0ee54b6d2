"""Files of at most one piece, of which there may be millions: hundreds of them are made durable and given their names together.

A sync for each would cost more than everything else about them. What was not published when a process was killed is
fetched again; DESIGN.md, "Transfer".
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from trainctl.node.system.files import make_durable
from trainctl.weights.mirror.disk import make_directory, scratch_name
from trainctl.weights.mirror.layout import Content, Layout
from trainctl.weights.mirror.records import Records

LARGEST_BYTES = 2**20
_MOST_FILES = 256
_MOST_BYTES = 64 * 2**20


class _Written(NamedTuple):
    """A file under a name of its own. ``key`` is its fingerprint where upstream didn't announce the content."""

    temporary: str
    content: Content
    key: str | None


class Batch:
    """``with Batch(…) as batch``: takes verified files of one source; all of them are in the mirror when it ends, however it ends.

    Safe to use from many threads.
    """

    def __init__(self, layout: Layout, source: str) -> None:
        self._layout = layout
        self._records = Records.of(layout, source)
        self._lock = threading.Lock()
        self._written: list[_Written] = []
        self._bytes = 0

    def __enter__(self) -> Batch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._publish(self._take())
        self._records.flush()

    def add(self, data: bytes, content: Content, key: str | None) -> None:
        """Take a file, and publish those that were taken when they are enough."""
        written = _Written(_write(self._layout.partial, data), content, key)
        with self._lock:
            self._written.append(written)
            self._bytes += content.size
            full = len(self._written) >= _MOST_FILES or self._bytes >= _MOST_BYTES
        if full:
            self._publish(self._take())

    def learn(self, key: str, content: Content) -> None:
        """What a fingerprint turned out to be whose content, of one chunk, is in the mirror already."""
        self._records.note(key, content)

    def _take(self) -> list[_Written]:
        with self._lock:
            taken, self._written, self._bytes = self._written, [], 0
        return taken

    def _publish(self, taken: list[_Written]) -> None:
        if not taken:
            return
        make_durable([one.temporary for one in taken], self._layout.partial)
        for one in taken:
            _rename(one.temporary, self._layout.blob_name(one.content.sha256))
            if one.key is not None:
                self._records.note(one.key, one.content)


def _write(scratch: Path, data: bytes) -> str:
    """By text and not by Path, here and below, which for so many files is worth it."""
    temporary = f"{scratch}/{scratch_name()}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fchmod(descriptor, 0o444)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    return temporary


def _rename(temporary: str, target: str) -> None:
    try:
        os.replace(temporary, target)  # noqa: PTH105
    except FileNotFoundError:
        make_directory(Path(target).parent)
        os.replace(temporary, target)  # noqa: PTH105
