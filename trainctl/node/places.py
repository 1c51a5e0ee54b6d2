"""The places that parts are fetched from: the mirror, and other nodes that need or have the same."""

from __future__ import annotations

import hashlib
import socket
import threading
import time
from typing import Any, Dict, Iterator, Mapping, Optional, Sequence

from trainctl.node.blob_client import BROKEN, SILENCE_SECONDS, BlobClient, Later
from trainctl.node.failure import Failure
from trainctl.node.gathering import MIRROR, Buffer, Fetched, Fetcher
from trainctl.node.origin import DirectoryOrigin, Origin
from trainctl.node.pace import Pace
from trainctl.node.parts import Part
from trainctl.node.shared import SharedCache

_PATIENCE_SECONDS = 60.0
_GRACE_SECONDS = 15.0
_POLL_SECONDS = 10.0
_PAUSE_SECONDS = 0.1
_MOST_BREAKS = _MOST_LIES = 3
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
        self.began = time.monotonic()

    def saw(self, seconds: float) -> None:
        """The mirror took so long for a chunk."""
        self._slowest = max(self._slowest, seconds)

    @property
    def seconds(self) -> float:
        """How long."""
        return max(self._seconds, _SLACK * self._slowest)


class FromMirror(Fetcher):
    """Fetches from the origin of a request; what can't be had there can't be had."""

    def __init__(self, origin: Origin, patience: Patience) -> None:
        super().__init__(MIRROR)
        self._buffer = Buffer()
        self._origin = origin
        self._patience = patience

    def fetch(self, parts: Sequence[Part]) -> Iterator[Fetched]:
        """See Fetcher."""
        began = time.monotonic()
        if parts[0].packed:
            found = self._origin.read_small({one.file.sha256: one.file.size for one in parts})
            for part in parts:
                yield Fetched.of(found[part.file.sha256])
        else:
            piece, digest = parts[0].piece, hashlib.sha256()
            view = self._buffer.view(piece.length)
            self._origin.read(parts[0].file.sha256, piece.offset, view, digest.update)
            self._patience.saw(time.monotonic() - began)
            yield Fetched(view, digest.hexdigest())

    def wrong(self, part: Part) -> None:
        """See Fetcher."""
        raise Failure(
            "wrong",
            f"the mirror's bytes of {part.file.path!a} are not those of its listing",
            f"Blob {part.file.sha256}, {part.piece.length} bytes at {part.piece.offset}. Nothing of them was kept.",
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
        self.origin = DirectoryOrigin(str(shared.root))

    def fetch(self, parts: Sequence[Part]) -> Iterator[Fetched]:
        """See Fetcher."""
        for part in parts:
            digest, view = hashlib.sha256(), self._buffer.view(part.piece.length)
            try:
                self.origin.read(part.file.sha256, part.piece.offset, view, digest.update)
            except (Failure, OSError):
                yield Fetched(None)
            else:
                yield Fetched(view, digest.hexdigest())

    def wrong(self, part: Part) -> None:
        """See Fetcher."""
        self._shared.drop(part.file.sha256)

    def abort(self) -> None:
        """See Fetcher. It waits for nobody."""

    def close(self) -> None:
        """See Fetcher."""
        self.origin.close()


class FromPeer(Fetcher):
    """Fetches from another node, which may be getting it itself. One that is silent, slow or lies is asked no more."""

    def __init__(self, peer: Mapping[str, Any], pace: Pace, patience: Patience) -> None:
        super().__init__(str(peer["node"]))
        silence = min(SILENCE_SECONDS, patience.seconds)
        self._client = BlobClient(peer.get("url"), peer.get("token"), pace, silence=silence)
        self._patience = patience
        self._buffer = Buffer()
        self._breaks = 0
        self._lies = 0
        self._dropped = False
        self._ending = threading.Event()

    def fetch(self, parts: Sequence[Part]) -> Iterator[Fetched]:
        """See Fetcher."""
        until = time.monotonic() + self._patience.seconds
        found: Dict[str, Fetched] = {}
        while not self._dropped and not self._ending.is_set():
            wanted = [one for one in parts if one.file.sha256 not in found]
            if not wanted or not self._ask(wanted, found, until):
                break
        for part in parts:
            yield found.get(part.file.sha256, Fetched(None))

    def wrong(self, part: Part) -> None:
        """See Fetcher."""
        self._lies += 1
        self._dropped = self._dropped or self._lies == _MOST_LIES

    def abort(self) -> None:
        """See Fetcher."""
        self._ending.set()
        self._client.abort()

    def close(self) -> None:
        """See Fetcher."""
        self._client.close()

    def _ask(self, wanted: Sequence[Part], found: Dict[str, Fetched], until: float) -> bool:
        """Ask once; whether it is worth asking again for what did not come."""
        now = time.monotonic()
        wait = max(0.0, min(_POLL_SECONDS, until - now))
        try:
            coming = self._get(wanted, found, wait)
        except socket.timeout:  # silent, or slow: it would be so for every part
            self._dropped = True
            return False
        except BROKEN:
            self._breaks += 1
            self._dropped = self._breaks == _MOST_BREAKS
            return True
        except Failure:
            coming = False
        self._breaks = 0
        if not coming and now > self._patience.began + self._patience.grace:
            return False
        if not coming:
            self._ending.wait(_PAUSE_SECONDS)  # its delivery may not have begun yet
        return time.monotonic() < until

    def _get(self, wanted: Sequence[Part], found: Dict[str, Fetched], wait: float) -> bool:
        """Put what comes into ``found``; whether the peer is alive and brings the rest, or is only busy."""
        if wanted[0].packed:
            pack = self._client.pack([one.file.sha256 for one in wanted], wait)
            found.update((name, Fetched.of(data)) for name, data in pack.contents.items())
            return bool(pack.coming)
        part = wanted[0]
        digest, view, done = hashlib.sha256(), self._buffer.view(part.piece.length), 0
        until = time.monotonic() + wait + self._patience.seconds
        try:
            for count in self._client.read(part.file.sha256, part.piece.offset, view, wait):
                digest.update(view[done : done + count])
                done += count
                if time.monotonic() > until:
                    raise socket.timeout("it takes too long")
        except Later as error:
            if not error.coming:
                self._ending.wait(max(error.seconds, _PAUSE_SECONDS))
            return True
        found[part.file.sha256] = Fetched(view, digest.hexdigest())
        return False
