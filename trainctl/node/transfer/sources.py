"""The places from which a delivery fetches, as its request names them: mirror, shared cache and peers."""

from __future__ import annotations

import hashlib
import time
from itertools import accumulate
from typing import (  # fmt: skip
    TYPE_CHECKING,
    Any,
    BinaryIO,
    Callable,
    Dict,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
)

from trainctl.base.failure import Failure
from trainctl.base.listing import ListedFile, Listing
from trainctl.base.pace import Pace
from trainctl.node.system import layout as names
from trainctl.node.transfer.parts import Part
from trainctl.node.transfer.pool import MIRROR, Buffer, Fetched, Fetcher, PassOn
from trainctl.node.transfer.readers import Clone, DirectoryReader, Mirror, ObjectReader
from trainctl.node.transfer.shared import SHARED, FromShared, shared_of

if TYPE_CHECKING:
    from trainctl.base.protocol.conversation import Asking
    from trainctl.node.transfer.http_reader import SignedUrls
    from trainctl.node.transfer.peers import FromPeer, PeerOrder


class Sources:
    """What ``origin``, ``max_rate``, ``shared``, ``peers``, ``node`` and ``patience`` of a request say.

    ``asking`` signs URLs if the mirror is in a bucket.
    """

    def __init__(
        self, request: Mapping[str, Any], listing: Listing, asking: Optional[Asking] = None
    ) -> None:
        self._urls: Optional[SignedUrls] = None
        self._order: Optional[PeerOrder] = None
        self._numbers: Dict[str, int] = {}
        self._peers: List[FromPeer] = []
        pace = Pace(_rate(request.get("max_rate")))
        self._mirror = Mirror(self._reader(request.get("origin"), asking, pace), listing)
        peers = request.get("peers") or []
        saw = self._add_peers(peers, request, listing) if peers else _ignore
        # Among peers a chunk that comes alone is passed on sooner than two that share the mirror's link.
        # What limits a stream from a bucket is not that link.
        streams = 1 if peers and self._urls is None else self._mirror.streams
        self.from_mirror = [
            FromMirror(self._mirror, saw, early=bool(peers)) for _ in range(streams)
        ]
        self.shared = shared_of(request)
        from_shared: List[Fetcher] = []
        if self.shared is not None:
            if request.get("lineage"):
                self.shared.refer(names.name(request["lineage"], "lineage"), listing)
            from_shared = [FromShared(self.shared), FromShared(self.shared)]
        self.fetchers: List[Fetcher] = [*self.from_mirror, *from_shared, *self._peers]

    def begin(self, window: Sequence[ListedFile], number: int) -> None:
        """What is fetched next is among these files; their first part has that number in the listing."""
        if self._order is not None:
            before = accumulate((len(file.chunk_ranges) for file in window), initial=number)
            self._numbers = {file.sha256: first for file, first in zip(window, before)}
        if self._urls is not None:
            self._urls.begin(window)

    def clone(self, file: ListedFile, clone: Clone) -> bool:
        """Fill a file without copying bytes, if that is possible."""
        try:
            return (self.shared or self._mirror).clone(file, clone)
        except Failure:  # an object is missing: reading it reports that
            return False

    def places(self, part: Part) -> List[str]:
        """Where to ask for a part, before the mirror."""
        if self.shared is not None:
            return [SHARED]
        if self._order is None:
            return []
        return self._order.places(self._numbers[part.file.sha256] + part.number)

    def strangers(self) -> Dict[str, str]:
        """By peer why the server in its place is not the peer."""
        return {peer.place: peer.stranger for peer in self._peers if peer.stranger}

    def close(self) -> None:
        """Close all connections."""
        for fetcher in self.fetchers:
            fetcher.close()
        self._mirror.close()

    def _reader(self, origin: Any, asking: Optional[Asking], pace: Pace) -> ObjectReader:
        if not isinstance(origin, dict) or origin.get("type") != "objects":
            kind = origin.get("type") if isinstance(origin, dict) else None
            raise Failure("request", f"this node program knows no origin of type {kind!r}")
        if "path" in origin:
            return DirectoryReader(origin["path"], pace)
        from trainctl.node.transfer.http_reader import (  # slow to import  # fmt: skip
            BucketReader,
            ServerReader,
            SignedUrls,
        )

        if "urls" in origin:
            return ServerReader(origin, pace)
        if asking is None:
            raise Failure("request", "the mirror is in no place that this node program can read")
        self._urls = SignedUrls(asking)
        return BucketReader(self._urls, pace)

    def _add_peers(
        self, peers: Sequence[Mapping[str, Any]], request: Mapping[str, Any], listing: Listing
    ) -> Callable[[float], None]:
        from trainctl.node.transfer.peers import FromPeer, Patience, PeerOrder  # slow to import

        me, patience = str(request.get("node")), Patience(request.get("patience"))
        holds = {str(peer["node"]): str((peer.get("holds") or {}).get(listing.id, "0")) for peer in peers}  # fmt: skip
        if me not in holds:
            raise Failure("request", f"node {me!r} is none of its own peers")
        try:
            self._order = PeerOrder(listing, me, holds)
        except ValueError:
            raise Failure("request", "what a peer holds is not a hexadecimal number") from None
        self._peers = [FromPeer(peer, patience) for peer in peers if str(peer["node"]) != me]
        return patience.saw


class FromMirror(Fetcher):
    """Fetches from the mirror, the last place. If it is ``early``, chunks are passed on as they arrive."""

    def __init__(self, mirror: Mirror, saw: Callable[[float], None], *, early: bool) -> None:
        super().__init__(MIRROR)
        self._mirror = mirror
        self._saw = saw
        self._early = early
        self._buffer = Buffer()

    def fetch(self, parts: Sequence[Part], pass_on: PassOn) -> Iterator[Fetched]:
        """See Fetcher."""
        began = time.monotonic()
        if parts[0].is_small:
            found = self._mirror.read_small({part.file.sha256: part.file.size for part in parts})
            for part in parts:
                yield Fetched.of(found[part.file.sha256])
            return
        part, digest, done = parts[0], hashlib.sha256(), 0
        view = self._buffer.view(part.chunk.length)

        def arrived(data: memoryview) -> None:
            nonlocal done
            digest.update(data)
            if self._early and part.file.chunks:
                pass_on(part, done, data)
            done += len(data)

        self._mirror.read(part, view, arrived)
        self._saw(time.monotonic() - began)
        yield Fetched(view, digest.hexdigest())

    def reject(self, part: Part) -> None:
        """See Fetcher."""
        raise Failure(
            "wrong",
            f"the mirror's bytes of {part.file.path!r} are not those of its listing",
            f"Content {part.file.sha256}, {part.chunk.length} bytes at {part.chunk.offset}. Nothing of them was kept. "
            "Repair the mirror, then apply again: trainctl mirror verify --repair",
        )

    def abort(self) -> None:
        """See Fetcher."""
        self._mirror.abort()


def asking_of(
    request: Mapping[str, Any], caller: BinaryIO, emit: Callable[[Mapping[str, Any]], None]
) -> Optional[Asking]:
    """The caller, if it has to sign URLs of a bucket's objects."""
    if {"path", "urls"} & set(request.get("origin") or {"path": ""}):
        caller.read()
        return None
    from trainctl.base.protocol.conversation import Asking

    return Asking(caller, emit)


def _rate(value: Any) -> Optional[int]:
    if value is not None and (not isinstance(value, int) or value <= 0):
        raise Failure("request", f"max_rate {value!r} is not a number of bytes a second")
    return value


def _ignore(seconds: float) -> None:
    """Nothing waits for peers."""
