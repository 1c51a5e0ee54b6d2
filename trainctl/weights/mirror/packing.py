"""A pack while it is written: its bytes, a journal of what is in it, and how what a killed process left becomes one after all.

It is a directory below ``partial`` until its index is there, and then gets its name by one rename. DESIGN.md, "Packs".
"""

from __future__ import annotations

import hashlib
import os
import secrets
import struct
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trainctl.base import below
from trainctl.base.exclusive import lease
from trainctl.base.files import write_at
from trainctl.base.json import hex_digest
from trainctl.base.listing import ResolvedSource
from trainctl.node.content.pack_index import ROW, Row, index_bytes, rows_of
from trainctl.weights.mirror.disk import explained, sync_directory, write_out
from trainctl.weights.mirror.layout import Content, Layout, Reference, content_fingerprint
from trainctl.weights.mirror.needs import references
from trainctl.weights.mirror.others import Waiting, WaitsFor
from trainctl.weights.mirror.partial import (
    discard,
    holder_of,
    let_go,
    may_be_taken,
    own_place,
    set_free,
)
from trainctl.weights.mirror.reception import stopped
from trainctl.weights.mirror.records import Records

MOST_BYTES = 64 * 2**20
MOST_CONTENTS = 2**15
_HELD_BYTES = 2**20
_HELD_CONTENTS = 256
_LINE = struct.Struct(">32sII32s")
_ANNOUNCED = bytes(32)
"""In place of a fingerprint: upstream had told the content's digest."""


class Packing:
    """One pack that this process fills; for one thread at a time. ``key`` names whose it is while it is not whole."""

    def __init__(self, layout: Layout, key: str) -> None:
        self._layout = layout
        self._directory = own_place(layout.partial, key)
        below.make_directory(layout.root, self._directory)
        self._data = _create(layout, self._directory / "data")
        self._journal = _create(layout, self._directory / "journal")
        self._digests: set[bytes] = set()
        self._rows = bytearray()
        self._size = self._written = self._noted = 0
        self._held = bytearray()
        self._lines = bytearray()

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._digests

    def takes(self, size: int) -> bool:
        """Whether a content of this size still fits."""
        return len(self._digests) < MOST_CONTENTS and self._size + size <= MOST_BYTES

    def append(
        self, digest: bytes, data: bytes | memoryview, fingerprint: str | None = None
    ) -> None:
        """Take a verified content, with its fingerprint where upstream didn't announce its digest."""
        row = Row(digest, self._size, len(data))
        self._digests.add(digest)
        self._rows += ROW.pack(*row)
        self._held += data
        self._size += len(data)
        known = _ANNOUNCED if fingerprint is None else bytes.fromhex(fingerprint)
        self._lines += _LINE.pack(*row, known)
        if len(self._held) >= _HELD_BYTES or len(self._lines) >= _HELD_CONTENTS * _LINE.size:
            self._write()

    def finish(self) -> None:
        """Have it in the mirror, durably. Where the disk refuses, what has been written is left to whoever comes next."""
        try:
            self._write()
            rows = (Row(*row) for row in ROW.iter_unpack(self._rows))
            publish(self._layout, self._directory, self._data, rows)
        except BaseException:
            set_free(self._directory)
            raise
        finally:
            os.close(self._data)
            os.close(self._journal)

    def discard(self) -> None:
        """Remove it."""
        os.close(self._data)
        os.close(self._journal)
        discard(self._directory)

    def _write(self) -> None:
        """Bytes before the lines that speak of them."""
        write_at(self._data, self._written, self._held)
        write_out(self._data, self._written, len(self._held))
        write_at(self._journal, self._noted, self._lines)
        self._written += len(self._held)
        self._noted += len(self._lines)
        self._held.clear()
        self._lines.clear()


def publish(layout: Layout, directory: Path, data: int, rows: Iterable[Row]) -> None:
    """Give a directory with an open ``data`` its index, and then its name among the packs."""
    os.fchmod(data, 0o444)
    os.fsync(data)
    below.remove(layout.root, directory / "index")
    index = _create(layout, directory / "index")
    try:
        write_at(index, 0, index_bytes(rows))
        os.fchmod(index, 0o444)
        os.fsync(index)
    finally:
        os.close(index)
    below.remove(layout.root, directory / "journal")
    sync_directory(layout.root, directory)
    below.make_directory(layout.root, layout.packs, durable=True)
    below.move(layout.root, directory, layout.packs / secrets.token_hex(16))
    sync_directory(layout.root, layout.packs)


@contextmanager
def packing_alone(
    layout: Layout,
    resolved: ResolvedSource,
    reference: Reference,
    cancelled: threading.Event,
    waiting: Waiting,
) -> Iterator[None]:
    """Wait until nobody else brings this revision, whose packs nobody sees before they are whole: what comes needn't come twice."""
    place = layout.partial / f"{hex_digest([resolved.identity, resolved.revision])}.lease"
    who = WaitsFor(
        resolved, reference, waiting, lambda: (one.record for one in references(layout).needs)
    )
    with explained(layout.root), lease(place, cancelled, waits_for=who) as held:
        if not held:
            raise stopped()
        yield


def salvage(layout: Layout, source: str) -> None:
    """Make packs of what was left of those that dead processes of this user filled from a source; every content in them is hashed again."""
    records = Records.of(layout, source)
    key = pack_key(source)
    for left in layout.partials(key):
        mine = own_place(layout.partial, key)
        if let_go(holder_of(left)) and may_be_taken(left):
            try:
                below.move(layout.root, left, mine)
            except FileNotFoundError:  # another process was faster
                continue
            _recover(layout, mine, records)
    records.flush()


def half_packed(layout: Layout, source: str) -> set[str]:
    """The fingerprints of what lies in packs of a source that aren't whole, which the next writer salvages."""
    found: set[str] = set()
    for left in layout.partials(pack_key(source)):
        with suppress(FileNotFoundError):  # it became a pack just now
            found.update(
                content_fingerprint(row.digest.hex(), row.length)
                if known == _ANNOUNCED
                else known.hex()
                for row, known in _lines(layout, left)
            )
    return found


def pack_key(source: str) -> str:
    """The beginning of the names that packs of a source have while they are not whole."""
    return hex_digest(source)


def _recover(layout: Layout, directory: Path, records: Records) -> None:
    rows: list[Row] = []
    data = below.create(layout.root, directory / "data", os.O_RDWR)
    try:
        for row, fingerprint in _lines(layout, directory):
            if hashlib.sha256(os.pread(data, row.length, row.offset)).digest() == row.digest:
                rows.append(row)
                if fingerprint != _ANNOUNCED:
                    records.note(fingerprint.hex(), Content(row.digest.hex(), row.length))
        if rows:
            os.ftruncate(data, max(row.offset + row.length for row in rows))
            publish(layout, directory, data, rows)
        else:
            discard(directory)
    except OSError:
        set_free(directory)
        raise
    finally:
        os.close(data)


def _lines(layout: Layout, directory: Path) -> Iterator[tuple[Row, bytes]]:
    """What the journal says; the index where that has gone already. A line that was cut is none."""
    try:
        text = below.read(layout.root, directory / "journal")
    except FileNotFoundError:
        index = b""
        with suppress(FileNotFoundError):
            index = below.read(layout.root, directory / "index")
        return ((row, _ANNOUNCED) for row in rows_of(index))
    whole = memoryview(text)[: len(text) // _LINE.size * _LINE.size]
    return ((Row(*line[:3]), line[3]) for line in _LINE.iter_unpack(whole))


def _create(layout: Layout, path: Path) -> int:
    return below.create(layout.root, path, os.O_RDWR | os.O_EXCL)
