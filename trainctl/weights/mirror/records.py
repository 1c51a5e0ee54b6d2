"""What files of one chunk turned out to be, for sources that don't announce it: many records a file, by source.

``fingerprints/small/SOURCE/NAME`` holds lines ``FINGERPRINT SHA256 SIZE``; a file is written once, whole, and never
changed. DESIGN.md, "Mirror in a directory", says what a record is worth.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import threading
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Container, Iterable, Iterator

from trainctl.base import below
from trainctl.base.json import hex_digest
from trainctl.node.content.digests import each_once
from trainctl.weights.mirror.contents import Contents
from trainctl.weights.mirror.disk import write_record
from trainctl.weights.mirror.layout import Content, Layout
from trainctl.weights.mirror.recorded import Recorded

_AT_ONCE = 1000
_LEAST_LINE = 132
_LINE = re.compile(rb"([0-9a-f]{64}) ([0-9a-f]{64}) (\d{1,19})\n")


class Records:
    """The records of one source. Safe to use from many threads."""

    def __init__(self, layout: Layout, directory: Path) -> None:
        self._layout = layout
        self._directory = directory
        self._lock = threading.Lock()
        self._new: dict[str, Content] = {}
        self._found: Recorded | None = None

    @classmethod
    def of(cls, layout: Layout, source: str) -> Records:
        """Those of a source, by its URI."""
        return cls(layout, layout.root / "fingerprints" / "small" / hex_digest(source))

    def note(self, key: str, content: Content) -> None:
        """Remember what a fingerprint turned out to be; written after some hundreds, and by ``flush``."""
        with self._lock:
            self._new[key] = content
            full = len(self._new) >= _AT_ONCE
        if full:
            self.flush()

    def flush(self) -> None:
        """Write what was noted."""
        with self._lock:
            new, self._new = self._new, {}
        if new:
            lines = (_line(key, content.sha256, content.size) for key, content in new.items())
            self._write(map(str.encode, lines))

    def find(self, wanted: Iterable[str]) -> dict[str, Content]:
        """What was recorded of these fingerprints when something was first looked for here, whether the content is there or not.

        All records are read once, however often it is asked: what comes later is of files that the same work doesn't ask for again.
        """
        with self._lock:
            self._found = self._found or self._table()
        return dict(self._found.find(wanted))

    def turned_out(self, wanted: Container[str]) -> dict[str, str]:
        """By fingerprint, which of the ``wanted`` contents are recorded."""
        return {key: sha256 for key, sha256, _ in self._read() if sha256 in wanted}

    def compact(self, contents: Contents) -> None:
        """Drop the records of contents that are gone, and have one file of the others."""
        old = self._files()
        lines = (
            _line(key, sha256, size)
            for key, sha256, size in self._read()
            if contents.has(sha256, size)
        )
        alive = each_once(lines)  # one of two that look the same here would be a hint too few
        first = next(alive, None)
        if first is not None and len(old) > 1:
            self._write(map(str.encode, chain([first], alive)))
        if first is None or len(old) > 1:
            for path in old:
                below.remove(self._layout.root, path)

    def _write(self, lines: Iterable[bytes]) -> None:
        path = self._directory / secrets.token_hex(8)
        write_record(path, lines, self._layout.partial, durable=False)

    def _table(self) -> Recorded:
        lines = 0
        for path in self._files():
            lines += (below.file_size(str(path)) or 0) // _LEAST_LINE
        return Recorded(self._read(), lines)

    def _files(self) -> list[Path]:
        """The oldest first: what is said last of a fingerprint counts, as an earlier word may have turned out to be wrong."""
        place = self._directory.relative_to(self._layout.root).as_posix()
        dated: list[tuple[int, Path]] = []
        for one in self._layout.inside(place):
            with contextlib.suppress(FileNotFoundError):  # it was put together with others
                dated.append((one.path.lstat().st_mtime_ns, one.path))
        return [path for _, path in sorted(dated)]

    def _read(self) -> Iterator[tuple[str, str, int]]:
        """Lines that a power cut has damaged are none."""
        for path in self._files():
            descriptor = below.open_file(path)
            with os.fdopen(descriptor, "rb") if descriptor is not None else BytesIO() as stream:
                for line in stream:
                    found = _LINE.fullmatch(line)
                    if found:
                        yield found[1].decode(), found[2].decode(), int(found[3])


def compact_all(contents: Contents) -> None:
    """``Records.compact`` for every source."""
    for one in contents.layout.inside("fingerprints/small"):
        Records(contents.layout, one.path).compact(contents)


def _line(key: str, sha256: str, size: int) -> str:
    return f"{key} {sha256} {size}\n"
