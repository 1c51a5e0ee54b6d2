"""Repairing one content of a mirror: of a large one only the chunks that are wrong are fetched again."""

from __future__ import annotations

import hashlib
import os
import threading
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from trainctl.errors import SourceGone, SourceWrong
from trainctl.model.files import ListedFile, ResolvedSource, SourceFile
from trainctl.spi.sources import Credential, WeightSource
from trainctl.weights.exclusive import lease
from trainctl.weights.mirror.batch import Batch
from trainctl.weights.mirror.contents import Contents
from trainctl.weights.mirror.disk import make_directory, sync_directory
from trainctl.weights.mirror.hashing import file_sha256
from trainctl.weights.mirror.layout import Layout, fingerprint
from trainctl.weights.mirror.partial import Partial, own_place
from trainctl.weights.mirror.reception import Upstream, stopped
from trainctl.weights.mirror.records import Records
from trainctl.weights.mirror.transfer import Transfer
from trainctl.weights.retry import Retry


@dataclass(frozen=True)
class Origin:
    """A source as upstream shows it now, and what opens it."""

    source: WeightSource
    resolved: ResolvedSource
    credential: Credential | None
    retry: Retry


class Mender:
    """``with Mender(layout) as mender``: small contents that it mends are there when it ends."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._contents = Contents(layout)
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

    def mend(self, origin: Origin, file: ListedFile) -> None:
        """Have the content right again. SourceGone where upstream has not got it any more; SourceError's other kinds as ever.

        What was wrong of a small one is in no pack any more. Killed anywhere, what was right of a large one lies in
        ``partial`` as a transfer that the next apply resumes.
        """
        layout = self._layout
        if not file.chunks:
            layout.blob(file.sha256).unlink(missing_ok=True)
            if self._contents.has(file.sha256, file.size):  # it lies in another pack, too
                return
        wanted = _same(layout, origin.resolved, file)
        if not file.chunks or not layout.blob(file.sha256).exists():
            self._fetch_whole(origin, wanted, file)
            return
        key = fingerprint(origin.resolved, wanted)
        with lease(layout.partial / f"{key}.lease", threading.Event()) as held:
            if not held:
                raise stopped()
            _Mending(layout, origin, wanted, file, key).run()

    def _fetch_whole(self, origin: Origin, wanted: SourceFile, file: ListedFile) -> None:
        upstream = Upstream(origin.source, origin.resolved, origin.credential, origin.retry)
        batch = self._batch(origin.resolved.source)
        never = threading.Event()
        content = Transfer(self._layout, upstream, never, lambda count: None, batch).fetch(
            wanted, fingerprint(origin.resolved, wanted)
        )
        if content.sha256 != file.sha256:
            raise SourceWrong(f"{origin.resolved.source}: {wanted.path!a} has other content now")

    def _batch(self, source: str) -> Batch:
        if source not in self._batches:
            batch = Batch(self._contents, source)
            self._batches[source] = self._stack.enter_context(batch)
        return self._batches[source]


def _same(layout: Layout, resolved: ResolvedSource, file: ListedFile) -> SourceFile:
    """The file upstream whose content is, as far as anybody can know, the one that was mirrored."""
    same_size = {fingerprint(resolved, one): one for one in resolved.files if one.size == file.size}
    small = file.size <= layout.chunk_bytes
    recorded = Records.of(layout, resolved.source).find(same_size) if small else {}
    for key, one in same_size.items():
        known = recorded.get(key) if small else layout.recorded(key)
        if one.sha256 == file.sha256 or (known is not None and known.sha256 == file.sha256):
            return one
    raise SourceGone(
        f"{resolved.source} has not got the content of {file.path!a} any more",
        "The next apply mirrors what it has now.",
    )


class _Mending:
    """A blob that is taken out of sight, made right chunk by chunk, and put back."""

    def __init__(
        self, layout: Layout, origin: Origin, wanted: SourceFile, file: ListedFile, key: str
    ) -> None:
        self._layout = layout
        self._origin = origin
        self._wanted = wanted
        self._file = file
        self._directory = own_place(layout.partial, key)

    def run(self) -> None:
        """Do it; SourceWrong, and the blob left as a partial transfer, where upstream's bytes don't fit."""
        make_directory(self._directory)
        blob, data = self._layout.blob(self._file.sha256), self._directory / "data"
        blob.chmod(0o600)
        blob.rename(data)
        partial = Partial(self._directory, self._directory)
        try:
            os.truncate(data, self._file.size)
            for number, digest in enumerate(self._file.chunks):
                self._chunk(partial, number, digest)
            self._check(data)
        except BaseException:
            partial.release()
            raise
        partial.publish(blob)
        sync_directory(blob.parent)

    def _check(self, data: Path) -> None:
        if file_sha256(data) != self._file.sha256:
            raise SourceWrong(f"the listing of {self._file.path!a} has wrong chunks")

    def _chunk(self, partial: Partial, number: int, digest: str) -> None:
        offset = number * self._layout.chunk_bytes
        length = min(self._layout.chunk_bytes, self._file.size - offset)
        with partial.data.open("rb", buffering=0) as stream:
            stream.seek(offset)
            right = hashlib.sha256(_read(stream.fileno(), length)).hexdigest() == digest
        if not right:
            partial.write(offset, self._fetch(offset, length, digest))
        partial.note(number, digest)

    def _fetch(self, offset: int, length: int, digest: str) -> bytes:
        def attempt() -> bytes:
            found = bytearray()
            origin = self._origin
            with origin.source.open(
                origin.resolved, self._wanted, offset, origin.credential
            ) as pieces:
                for piece in pieces:
                    found += piece
                    if len(found) >= length:
                        break
            return bytes(found[:length])

        data = self._origin.retry.run(attempt, threading.Event())
        if hashlib.sha256(data).hexdigest() != digest:
            raise SourceWrong(
                f"{self._origin.resolved.source}: {self._wanted.path!a} has other content now"
            )
        return data


def _read(descriptor: int, length: int) -> bytes:
    parts = []
    while length and (part := os.read(descriptor, length)):
        parts.append(part)
        length -= len(part)
    return b"".join(parts)
