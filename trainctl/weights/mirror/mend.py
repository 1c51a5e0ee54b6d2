"""Repairing one content of a mirror: of a large one only the chunks that are wrong are fetched again."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import threading
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Callable, Container

from trainctl.base import below
from trainctl.base.exclusive import lease
from trainctl.base.files import PRIVATE_FILE
from trainctl.base.listing import ListedFile, ResolvedSource, SourceFile
from trainctl.base.sharing import is_ours
from trainctl.errors import SourceGone, SourceWrong
from trainctl.weights.mirror.afresh import Origin, read_again
from trainctl.weights.mirror.batch import Batch
from trainctl.weights.mirror.contents import Contents
from trainctl.weights.mirror.disk import explained, sync_directory
from trainctl.weights.mirror.hashing import file_sha256
from trainctl.weights.mirror.layout import Layout, fingerprint
from trainctl.weights.mirror.partial import Partial, discard, own_place
from trainctl.weights.mirror.reception import Upstream, stopped
from trainctl.weights.mirror.records import Records
from trainctl.weights.mirror.transfer import Transfer

_COPIED = 2**20


class Mender:
    """``with Mender(…) as mender``: small contents that it mends are there when it ends. Safe to use from many threads; ``halt`` ends it."""

    def __init__(self, layout: Layout, halt: threading.Event) -> None:
        self._layout = layout
        self._halt = halt
        self._contents = Contents(layout)
        self._lock = threading.Lock()
        self._batches: dict[str, Batch] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Mender:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def has(self, file: ListedFile) -> bool:
        """Whether a small content lies in another place, too. What was wrong of it is in no pack any more, nor then in a file of its own."""
        if file.chunks:
            return False
        below.remove(self._layout.root, self._layout.blob(file.sha256))
        return self._contents.has(file.sha256, file.size)

    def mend(self, origin: Origin, wanted: SourceFile, file: ListedFile) -> None:
        """Have the content right again, by what is ``wanted`` upstream. SourceGone where upstream has not got it any more; SourceError's other kinds as ever.

        Killed anywhere, what was right of a large one lies in ``partial`` as a transfer that the next apply resumes.
        """
        if not file.chunks:
            self._fetch_small(origin, wanted, file)
        elif not self._mend_chunks(origin, wanted, file):
            self._transfer(origin).fetch(wanted, fingerprint(origin.resolved, wanted))

    def _mend_chunks(self, origin: Origin, wanted: SourceFile, file: ListedFile) -> bool:
        """Mend what is there of a large content, one process at a time; whether it was to be done by chunks.

        What is nowhere comes in one go where upstream announces that it is this content.
        """
        layout, key = self._layout, fingerprint(origin.resolved, wanted)
        with lease(layout.partial / f"{key}.lease", self._halt) as held:
            if not held:
                raise stopped()
            is_there = below.file_size(layout.blob_name(file.sha256)) is not None
            by_chunks = is_there or wanted.sha256 != file.sha256
            if by_chunks:
                _Mending(origin, wanted, _Taken(layout, file, key), self._halt).run()
        return by_chunks

    def _fetch_small(self, origin: Origin, wanted: SourceFile, file: ListedFile) -> None:
        """Nothing of it is in the mirror before it is known to be what is wanted: others who write records there could have by them what only this user may read."""
        patient = replace(origin, retry=origin.retry.patient)
        data = read_again(patient, wanted, 0, file.size, file.sha256, self._halt)
        key = fingerprint(origin.resolved, wanted)
        with explained(self._layout.root):
            self._transfer(origin).put(data, wanted, key, file.sha256)

    def _transfer(self, origin: Origin) -> Transfer:
        upstream = Upstream(origin.source, origin.resolved, origin.credential, origin.retry)
        batch = self._batch(origin.resolved.source)
        return Transfer(self._layout, upstream, self._halt, lambda count: None, batch)

    def _batch(self, source: str) -> Batch:
        with self._lock:
            if source not in self._batches:
                batch = Batch(self._contents, source)
                self._batches[source] = self._stack.enter_context(batch)
            return self._batches[source]


def turned_out(
    layout: Layout, wanted: Container[str], resolved: ResolvedSource
) -> Callable[[SourceFile], str | None]:
    """See TurnedOut; only ``wanted`` contents are remembered."""
    small = Records.of(layout, resolved.source).turned_out(wanted)

    def look(file: SourceFile) -> str | None:
        key = fingerprint(resolved, file)
        if file.size <= layout.chunk_bytes:
            return small.get(key)
        content = layout.recorded(key)
        return content.sha256 if content else None

    return look


def set_aside(layout: Layout, file: ListedFile) -> None:
    """Take a content away that can't be had any more. What of a large one is right from its beginning on becomes a transfer that was
    broken off there, which mirroring resumes should its source come back."""
    if not file.chunks or below.file_size(layout.blob_name(file.sha256)) is None:
        return
    taken = _Taken(layout, file, layout.key_of(file.sha256, file.size))
    try:
        for number in range(len(file.chunks)):
            if not taken.is_right(number):
                break
            taken.note(number)
    finally:
        taken.leave()


class _Taken:
    """A blob that is out of sight, as a transfer that isn't whole; where there is none, what was left of one that was broken off."""

    def __init__(self, layout: Layout, file: ListedFile, key: str) -> None:
        self.file = file
        self._root = layout.root
        self._blob = layout.blob(file.sha256)
        self._chunk_bytes = layout.chunk_bytes
        self._noted: list[str] = []
        self._was_there = below.file_size(str(self._blob)) is not None
        if not self._was_there:
            self._partial = Partial.open(layout, key)
            self._partial.begin(file.size, [])
            self._data = self._partial.data
            return
        directory = own_place(layout.partial, key)
        below.make_directory(self._root, directory)
        self._data = directory / "data"
        try:
            self._take()
            self._partial = Partial(directory, directory)
        except OSError:
            self._stay(directory)
            raise
        os.truncate(self._data, file.size)

    def _take(self) -> None:
        """Of another user's, which can't be written to, or what has another name besides, a copy is mended."""
        blob = below.open_below(self._root, self._blob)
        if blob is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self._blob))
        with os.fdopen(blob, "rb") as stream:
            if os.fstat(blob).st_nlink == 1 and is_ours(blob):
                os.fchmod(blob, PRIVATE_FILE)
                below.move(self._root, self._blob, self._data)
                return
            made = below.create(self._root, self._data, os.O_WRONLY | os.O_EXCL)
            with os.fdopen(made, "wb") as copy:
                shutil.copyfileobj(stream, copy, _COPIED)

    def _stay(self, directory: Path) -> None:
        """It can't be taken after all."""
        with contextlib.suppress(FileNotFoundError, FileExistsError):
            below.link(self._root, self._data, self._blob)
        blob = below.open_below(self._root, self._blob)
        if blob is not None:
            with os.fdopen(blob), contextlib.suppress(PermissionError):
                os.fchmod(blob, 0o444)
        discard(directory)

    def span(self, number: int) -> tuple[int, int]:
        """Where a chunk begins, and its length."""
        offset = number * self._chunk_bytes
        return offset, min(self._chunk_bytes, self.file.size - offset)

    def is_right(self, number: int) -> bool:
        """Whether a chunk is what the listing says."""
        offset, length = self.span(number)
        with self._data.open("rb", buffering=0) as stream:
            stream.seek(offset)
            found = hashlib.sha256(_read(stream.fileno(), length)).hexdigest()
        return found == self.file.chunks[number]

    def write(self, number: int, data: bytes) -> None:
        """Put a chunk in its place."""
        self._partial.write(self.span(number)[0], data)

    def note(self, number: int) -> None:
        """A chunk is right, and so are those before it."""
        self._noted.append(self.file.chunks[number])
        self._partial.note(number, self.file.chunks[number])

    def publish(self) -> None:
        """Have it where it was, now that it is right."""
        if file_sha256(self._data) != self.file.sha256:
            raise SourceWrong(f"the listing of {self.file.path!r} has wrong chunks")
        self._partial.publish(self._blob)
        sync_directory(self._root, self._blob.parent)

    def put_back(self) -> None:
        """Have it where it was, as wrong as it still is; what wasn't there is left to who mirrors it."""
        if self._was_there:
            self._partial.put_back(self._blob)
        else:
            self.leave()

    def leave(self) -> None:
        """To whoever mirrors the file; nothing, where nothing of it is noted."""
        if not self._noted:
            self._partial.discard()
            return
        self._partial.begin(min(len(self._noted) * self._chunk_bytes, self.file.size), self._noted)
        self._partial.release()


class _Mending:
    """A blob that is taken out of sight, made right chunk by chunk, and put back."""

    def __init__(
        self, origin: Origin, wanted: SourceFile, taken: _Taken, halt: threading.Event
    ) -> None:
        self._origin = origin
        self._wanted = wanted
        self._taken = taken
        self._halt = halt

    def run(self) -> None:
        """Do it. SourceGone and SourceWrong, where upstream's bytes don't fit, leave it as a transfer that was broken off; after
        anything else it lies where it lay, with the chunks that were mended."""
        taken = self._taken
        try:
            for number, digest in enumerate(taken.file.chunks):
                if not taken.is_right(number):
                    span = taken.span(number)
                    data = read_again(self._origin, self._wanted, *span, digest, self._halt)
                    taken.write(number, data)
                taken.note(number)
            taken.publish()
        except (SourceGone, SourceWrong):
            taken.leave()
            raise
        except BaseException:
            taken.put_back()
            raise


def _read(descriptor: int, length: int) -> bytes:
    parts = []
    while length and (part := os.read(descriptor, length)):
        parts.append(part)
        length -= len(part)
    return b"".join(parts)
