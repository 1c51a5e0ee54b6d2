"""Small files on their way from upstream into packs. Which belong together is known before the first of them is asked for."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

from trainctl.base.json import canonical
from trainctl.base.listing import SourceFile
from trainctl.errors import TrainctlError
from trainctl.weights.bucket import keys, packs
from trainctl.weights.bucket.shelf import Shelf
from trainctl.weights.mirror.layout import Content
from trainctl.weights.mirror.reception import Receiving, Upstream, stopped

_MOST_PACKS = 4
_POLL_SECONDS = 0.2


class Packing:
    """Brings small files into a bucket, see Bringing; they must be asked for in the order in which they were given.

    ``arrived`` hears of every piece, in bytes. ``halt`` ends it between pieces. At most ``_MOST_PACKS`` packs are in memory.
    """

    def __init__(
        self,
        shelf: Shelf,
        upstream: Upstream,
        missing: Mapping[str, Sequence[SourceFile]],
        arrived: Callable[[int], None],
    ) -> None:
        self.halt = threading.Event()
        self._upstream = upstream
        self._objects = shelf.objects
        self._receiving = Receiving(upstream, shelf.chunk_bytes, self.halt, arrived)
        self._room = threading.Semaphore(_MOST_PACKS)
        sizes = ((key, files[0].size) for key, files in missing.items())
        self._packs = [
            _Filling(group, self._room) for group in packs.planned(sizes, shelf.chunk_bytes)
        ]
        self._pack_of = {key: pack for pack in self._packs for key in pack.keys}
        self._lock = threading.Lock()
        self._put: set[str] = set()

    @property
    def put(self) -> frozenset[str]:
        """The packs that were put."""
        return frozenset(self._put)

    def fetch(self, file: SourceFile, key: str) -> Content:
        """See Bringing. It is in the bucket when the last file of its pack is, or when ``close`` has ended."""
        pack = self._pack_of[key]
        pack.open(self.halt)
        held = _Held()
        sha256 = self._receiving.receive(file, held).sha256
        if pack.take(key, sha256, held.data, identified=file.identified):
            self._publish(pack)
        return Content(sha256, file.size)

    def close(self) -> None:
        """Put what arrived of packs that aren't full: it will not have to come again. What can't be put is no news then."""
        with contextlib.suppress(TrainctlError):
            for pack in self._packs:
                self._publish(pack)

    def _publish(self, filling: _Filling) -> None:
        with filling.closed() as (contents, known):
            if not contents:
                return
            pack = packs.put_together(contents)
            packs.put(self._objects, pack)
            mark = keys.pack_mark(self._upstream.resolved, pack.sha256)
            self._objects.put(mark, canonical({"version": 1, "files": known}))
            with self._lock:
                self._put.add(pack.sha256)


class _Filling:
    """A pack that is not whole yet."""

    def __init__(self, group: list[str], room: threading.Semaphore) -> None:
        self.keys = group
        self._room = room
        self._lock = threading.Lock()
        self._is_open = False
        self._is_closed = False
        self._arrived: dict[str, tuple[str, bytearray]] = {}
        self._known: dict[str, str] = {}

    def open(self, halt: threading.Event) -> None:
        """Wait until there is room in memory. Interrupted where it is halted."""
        with self._lock:
            while not self._is_open:
                if halt.is_set():
                    raise stopped()
                self._is_open = self._room.acquire(timeout=_POLL_SECONDS)

    def take(self, key: str, sha256: str, data: bytearray, *, identified: bool) -> bool:
        """A file has arrived; whether it was the last."""
        with self._lock:
            self._arrived[key] = (sha256, data)
            if identified:
                self._known[key] = sha256
            return len(self._arrived) == len(self.keys) and not self._is_closed

    @contextlib.contextmanager
    def closed(self) -> Iterator[tuple[dict[str, bytearray], dict[str, str]]]:
        """What arrived, once: contents by sha256 in the files' order, and the sha256 that fingerprints turned out to be."""
        with self._lock:
            arrived = {} if self._is_closed else self._arrived
            was_open, self._is_closed = self._is_open and not self._is_closed, True
        try:
            yield dict(arrived[key] for key in self.keys if key in arrived), dict(self._known)
        finally:
            self._arrived = {}
            if was_open:
                self._room.release()


class _Held:
    """A Scratch: a file in memory."""

    def __init__(self) -> None:
        self.data = bytearray()

    def inherited(self, size: int, chunk_bytes: int) -> Iterator[tuple[int, bytes, str]]:
        """See Scratch. There is nothing."""
        return islice((), 0)

    def keep(self, number: int, offset: int, chunk: bytes, digest: str) -> None:
        """See Scratch."""

    def begin(self, offset: int, digests: list[str]) -> None:
        """See Scratch."""

    def write(self, offset: int, piece: bytes | memoryview) -> None:
        """See Scratch."""
        self.data[offset:] = piece

    def note(self, number: int, digest: str) -> None:
        """See Scratch. It is one chunk."""
