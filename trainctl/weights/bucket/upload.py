"""One file's way from upstream into a bucket: chunk by chunk, each put under its digest once that is known."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from trainctl.base.json import canonical
from trainctl.base.listing import SourceFile
from trainctl.errors import SourceWrong
from trainctl.weights.bucket import keys
from trainctl.weights.bucket.room import Room, Seat
from trainctl.weights.bucket.shelf import Shelf
from trainctl.weights.mirror.hashing import Digests
from trainctl.weights.mirror.layout import Content
from trainctl.weights.mirror.parts import Buffers
from trainctl.weights.mirror.reception import Receiving, Upstream

_UPLOADS = 2
MOST_CHUNKS = 3
MOST_AHEAD = 3


@dataclass(frozen=True)
class Uploads:
    """Brings single files into a bucket. ``arrived`` hears of every piece, in bytes; ``halt`` ends it between pieces.
    ``marked`` are the digests of chunks that are there, by fingerprint.

    They are held in memory, which is to stay below 300 MB, for at most ``MOST_CHUNKS`` chunks, all of them together, beside the
    ``MOST_AHEAD`` that upstream's connections are at. Nobody waits for ever: a chunk that is whole goes its way without room for another,
    and for the one whose turn it is each file has room of its own.
    """

    shelf: Shelf
    upstream: Upstream
    marked: Mapping[str, Sequence[str]]
    halt: threading.Event
    arrived: Callable[[int], None]
    ahead: Buffers
    room: Room
    pool: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(_UPLOADS, thread_name_prefix="upload")
    )

    def fetch(self, file: SourceFile, key: str) -> Content:
        """Have the file's content in the bucket and say what it is; ``key`` is its fingerprint."""
        receiving = Receiving(
            self.upstream, self.shelf.chunk_bytes, self.halt, self.arrived, self.ahead
        )
        incoming = _Incoming(self, file, key)
        try:
            return incoming.publish(receiving.receive(file, incoming))
        except SourceWrong:
            incoming.forget()
            raise
        finally:
            incoming.close()

    def close(self) -> None:
        """End the threads, once all that arrived is put: it will not have to come again."""
        self.pool.shutdown()


class _Incoming:
    """A Scratch: the chunks of one file that are in memory or on their way."""

    def __init__(self, uploads: Uploads, file: SourceFile, key: str) -> None:
        self._uploads = uploads
        self._objects = uploads.shelf.objects
        self._file = file
        self._key = key
        self._chunk_bytes = uploads.shelf.chunk_bytes
        self._seat = Seat(uploads.room, min(self._chunk_bytes, file.size))
        self._buffers: dict[int, bytearray] = {}
        self._sent: list[Future[None]] = []
        self._left = list(uploads.marked.get(self._key, ())) if file.identified else []

    def inherited(self, size: int, chunk_bytes: int) -> Iterator[tuple[int, bytes, str]]:
        """See Scratch."""
        for number, digest in enumerate(self._left):
            data = self._objects.get(keys.blob(digest))
            if data is None or len(data) != min(chunk_bytes, size - number * chunk_bytes):
                return
            yield number, data, digest

    def keep(self, number: int, offset: int, chunk: bytes, digest: str) -> None:
        """See Scratch. It lies where it belongs."""

    def begin(self, offset: int, digests: list[str]) -> None:
        """See Scratch. Waits for room before anything is asked for."""
        self._seat.begin(len(digests))

    def write(self, offset: int, piece: bytes | memoryview) -> None:
        """See Scratch. Waits for room where too much is in memory. Only what nothing identifies begins anew."""
        self._raise_failure()
        if not offset and not self._file.identified:
            self._drop()
            self._seat.passed(-1)
        view = memoryview(piece)
        while view:
            number, at = divmod(offset, self._chunk_bytes)
            buffer = self._buffer(number)
            taken = min(len(view), len(buffer) - at)
            buffer[at : at + taken] = view[:taken]
            offset, view = offset + taken, view[taken:]

    def note(self, number: int, digest: str) -> None:
        """See Scratch."""
        data = self._buffers.pop(number)
        try:
            self._sent.append(self._uploads.pool.submit(self._upload, number, digest, data))
        except RuntimeError:  # it was stopped, and nobody waited for this thread
            self._seat.give_back(number)
        self._seat.passed(number)

    def publish(self, digests: Digests) -> Content:
        """All of it is there and right: say so in the bucket."""
        content = Content(digests.sha256, self._file.size, digests.chunks)
        if content.chunks:
            for one in self._sent:
                one.result()
            record = canonical({"version": 1, "size": content.size, "chunks": content.chunks})
            self._objects.put(keys.chunked(content.sha256), record)
        else:
            self._objects.put(keys.blob(content.sha256), self._buffers.get(0, b""))
        self._mark("whole", content.sha256)
        return content

    def forget(self) -> None:
        """It was wrong: nothing of it is to be taken up again."""
        resolved = self._uploads.upstream.resolved
        mine = f"{keys.marks(resolved)}/{self._key}."
        for one in self._sent:
            one.exception()  # whatever it was, it must not put a mark after this
        listed = self._objects.list(keys.marks(resolved))
        self._objects.delete([one.key for one in listed if one.key.startswith(mine)])

    def close(self) -> None:
        """Give back what is in memory, when what is being put is."""
        self._drop()
        wait(self._sent)
        self._seat.end()

    def _drop(self) -> None:
        for number in list(self._buffers):
            del self._buffers[number]
            self._seat.give_back(number)

    def _buffer(self, number: int) -> bytearray:
        if number not in self._buffers:
            length = min(self._chunk_bytes, self._file.size - number * self._chunk_bytes)
            self._seat.take(number, length)
            self._buffers[number] = bytearray(length)
        return self._buffers[number]

    def _upload(self, number: int, digest: str, data: bytearray) -> None:
        try:
            self._objects.put(keys.blob(digest), data)
            self._mark(str(number), digest)
        finally:
            self._seat.give_back(number)

    def _mark(self, what: str, sha256: str) -> None:
        if self._file.identified:
            resolved = self._uploads.upstream.resolved
            self._objects.put(keys.mark(resolved, self._key, what, sha256), b"")

    def _raise_failure(self) -> None:
        for one in self._sent:
            if one.done():
                one.result()
