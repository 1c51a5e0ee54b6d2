"""The places on this machine that parts are fetched from, and the mirror; other nodes are in ``from_peer``."""

from __future__ import annotations

import hashlib
import time
from typing import Iterator, Optional, Sequence, Set

from trainctl.base.failure import Failure
from trainctl.node.content.parts import Part
from trainctl.node.transfer.gathering import MIRROR, Buffer, Fetched, Fetcher, PassOn
from trainctl.node.transfer.origin import DirectoryOrigin, Origin
from trainctl.node.transfer.shared import SharedCache

_PATIENCE_SECONDS = 60.0
_GRACE_SECONDS = 15.0
_SLACK = 4
SHARED = "shared"
"""The place that is the cluster's shared cache."""


class Patience:
    """How long a peer is waited for: so many seconds, and some times what the slowest chunk took that came from the mirror.

    A mirror that is slow makes all peers late, and to ask it for their parts too would make it slower.
    """

    def __init__(self, seconds: Optional[float] = None) -> None:
        self._seconds = _PATIENCE_SECONDS if seconds is None else seconds
        self._slowest = 0.0
        self.grace = min(_GRACE_SECONDS, self._seconds)
        self.began = self.moved = time.monotonic()
        """``moved``: when something came last, from anywhere."""

    def saw(self, seconds: float) -> None:
        """The mirror took so long for a chunk."""
        self._slowest = max(self._slowest, seconds)
        self.moved = time.monotonic()

    @property
    def seconds(self) -> float:
        """How long."""
        return max(self._seconds, _SLACK * self._slowest)


class FromMirror(Fetcher):
    """Fetches from the origin of a request; what can't be had there can't be had. ``early``: large parts are passed on as they arrive."""

    def __init__(self, origin: Origin, patience: Patience, *, early: bool) -> None:
        super().__init__(MIRROR)
        self._early = early
        self._buffer = Buffer()
        self._origin = origin
        self._patience = patience

    def fetch(self, parts: Sequence[Part], pass_on: PassOn) -> Iterator[Fetched]:
        """See Fetcher."""
        began = time.monotonic()
        if parts[0].packed:
            found = self._origin.read_small({one.file.sha256: one.file.size for one in parts})
            for part in parts:
                yield Fetched.of(found[part.file.sha256])
        else:
            part, chunk, digest = parts[0], parts[0].chunk, hashlib.sha256()
            view, done = self._buffer.view(chunk.length), 0

            def arrived(data: memoryview) -> None:
                nonlocal done
                digest.update(data)
                if self._early and part.file.chunks:
                    pass_on(part, done, data)
                done += len(data)

            self._origin.read(*self._origin.place_of(part), view, arrived)
            self._patience.saw(time.monotonic() - began)
            yield Fetched(view, digest.hexdigest())

    def wrong(self, part: Part) -> None:
        """See Fetcher."""
        raise Failure(
            "wrong",
            f"the mirror's bytes of {part.file.path!r} are not those of its listing",
            f"Blob {part.file.sha256}, {part.chunk.length} bytes at {part.chunk.offset}. Nothing of them was kept. "
            "Mend the mirror, then apply again: trainctl mirror verify --repair",
        )

    def abort(self) -> None:
        """See Fetcher."""
        self._origin.abort()

    def close(self) -> None:
        """See Fetcher."""
        self._origin.close()


class FromShared(Fetcher):
    """Takes from the cluster's shared cache; what is gone or wrong there, the mirror has."""

    def __init__(self, shared: SharedCache) -> None:
        super().__init__(SHARED)
        self._buffer = Buffer()
        self._shared = shared
        self._wrong: Set[str] = set()
        self.origin = DirectoryOrigin(str(shared.root))

    def fetch(self, parts: Sequence[Part], pass_on: PassOn) -> Iterator[Fetched]:
        """See Fetcher."""
        for part in parts:
            digest, view = hashlib.sha256(), self._buffer.view(part.chunk.length)
            try:
                self.origin.read(part.file.sha256, part.chunk.offset, view, digest.update)
            except (Failure, OSError):
                yield Fetched(None)
            else:
                yield Fetched(view, digest.hexdigest())

    def wrong(self, part: Part) -> None:
        """See Fetcher. Its other parts may be right, and whoever takes them is as fast as this."""
        self._wrong.add(part.file.sha256)

    def settle(self) -> None:
        """See Fetcher."""
        while self._wrong:
            self._shared.drop(self._wrong.pop())

    def abort(self) -> None:
        """See Fetcher. It waits for nobody."""

    def close(self) -> None:
        """See Fetcher."""
        self.origin.close()
