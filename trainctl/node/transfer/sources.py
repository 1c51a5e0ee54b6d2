"""Where the contents of one listing come from, as the request of a delivery says."""

from __future__ import annotations

from itertools import accumulate
from typing import (
    TYPE_CHECKING,
    Any,
    BinaryIO,
    Callable,
    Dict,
    List,
    Mapping,
    Optional,
    Sequence,
    Union,
)

from trainctl.base.failure import Failure
from trainctl.base.listing import ListedFile, Listing
from trainctl.base.pace import Pace
from trainctl.node.content.parts import Part
from trainctl.node.system import layout as names
from trainctl.node.transfer.gathering import Fetcher
from trainctl.node.transfer.origin import Clone, Origin
from trainctl.node.transfer.origins import open_origin
from trainctl.node.transfer.owners import Owners
from trainctl.node.transfer.places import SHARED, FromMirror, FromShared, Patience
from trainctl.node.transfer.shared import shared_of

if TYPE_CHECKING:
    from trainctl.base.protocol.conversation import Asking
    from trainctl.node.transfer.from_peer import FromPeer
    from trainctl.node.transfer.links import Links
    from trainctl.node.transfer.signed_keys import SignedKeys


class Sources:
    """``asking`` hands out links where the request's origin is a bucket.

    The request's ``origin`` and how much a second may come from there (``max_rate``), its ``peers`` with what each holds, and which of them is this ``node``.
    """

    def __init__(
        self, request: Mapping[str, Any], listing: Listing, asking: Optional[Asking] = None
    ) -> None:
        pace = Pace(_rate(request.get("max_rate")))
        patience = Patience(request.get("patience"))
        peers = request.get("peers") or []
        me = request.get("node")
        self._owners = _owners(peers, me, listing)
        self._numbers: Dict[str, int] = {}
        self._peers: List[FromPeer] = []
        among_peers = bool(peers)
        self._links = links = _links(request, listing, asking)
        opened = _opener(request["origin"], listing, links, pace, evenly=among_peers)
        self.origin = opened()
        self.fetchers: List[Fetcher] = [FromMirror(self.origin, patience, early=among_peers)]
        # Among peers a chunk that comes alone is passed on sooner than two that share the mirror's link.
        # What limits a stream from a bucket is not that link.
        alone = among_peers and links is None
        for _ in range(1, 1 if alone else self.origin.streams):
            self.fetchers.append(FromMirror(opened(), patience, early=among_peers))
        self.mirror = list(self.fetchers)
        self.shared = shared_of(request)
        self._cloned = self.origin
        if self.shared is not None:
            if request.get("lineage"):  # whoever verifies uses it for nobody
                self.shared.refer(names.name(request["lineage"], "lineage"), listing)
            readers = [FromShared(self.shared), FromShared(self.shared)]
            self._cloned = readers[0].origin
            self.fetchers += readers
        if among_peers:
            from trainctl.node.transfer.from_peer import FromPeer  # heavy

            others = [one for one in peers if one["node"] != me]
            self._peers = [FromPeer(one, patience, self.late) for one in others]
            self.fetchers += self._peers

    def begin(self, window: Sequence[ListedFile], number: int) -> None:
        """What is fetched next is among these; their first part has that number in the listing."""
        if self._owners is not None:
            before = accumulate((len(file.chunk_ranges) for file in window), initial=number)
            self._numbers = {file.sha256: first for file, first in zip(window, before)}
        if self._links is not None:
            self._links.begin(window)

    def clone(self, file: ListedFile, clone: Clone) -> bool:
        """Fill a file without copying bytes, if that is possible."""
        try:
            return self._cloned.clone(file, clone)
        except Failure:  # it isn't there; whoever is asked for its bytes says so
            return False

    def line(self, part: Part) -> List[str]:
        """Whom to ask for a part before the mirror."""
        if self.shared is not None:
            return [SHARED]
        return self._owners.line(self._number(part)) if self._owners else []

    def late(self, part: Part) -> bool:
        """Whether whoever is asked for a part first will have to be given it before."""
        return self._owners is not None and self._owners.late(self._number(part))

    def _number(self, part: Part) -> int:
        return self._numbers[part.file.sha256] + part.number

    def strangers(self) -> Dict[str, str]:
        """By peer what is wrong with who answered in its place."""
        return {one.place: one.stranger for one in self._peers if one.stranger}

    def close(self) -> None:
        """Close every connection."""
        for fetcher in self.fetchers:
            fetcher.close()


def asking_of(
    request: Mapping[str, Any], caller: BinaryIO, emit: Callable[[Mapping[str, Any]], None]
) -> Optional[Asking]:
    """Whoever called, where they have to sign links: where the mirror is in a bucket."""
    if not _is_signed(request.get("origin") or {}):
        caller.read()
        return None
    from trainctl.base.protocol.conversation import Asking

    return Asking(caller, emit)


def _is_signed(origin: Mapping[str, Any]) -> bool:
    """Whether the caller signs URLs of a bucket's objects."""
    is_bucket = origin.get("type") == "objects" and not {"path", "urls"} & set(origin)
    return origin.get("type") == "bucket" or is_bucket


def _opener(
    value: Any, listing: Listing, links: Any, pace: Pace, *, evenly: bool
) -> Callable[[], Origin]:
    """What opens a stream to the mirror."""
    if isinstance(value, dict) and value.get("type") == "objects":
        from trainctl.node.transfer.objects import object_origins

        return object_origins(value, listing, links, pace)
    return lambda: open_origin(value, pace, evenly=evenly, links=links)


def _links(
    request: Mapping[str, Any], listing: Listing, asking: Optional[Asking]
) -> Union[Links, SignedKeys, None]:
    """Links to a bucket's objects; None for a mirror that isn't in a bucket."""
    if asking is None or not _is_signed(request["origin"]):
        return None
    if request["origin"]["type"] == "objects":
        from trainctl.node.transfer.signed_keys import SignedKeys

        return SignedKeys(asking)
    from trainctl.node.transfer.links import Links  # only who fetches that way pays for it

    return Links(asking, listing)


def _rate(value: Any) -> Optional[int]:
    if value is not None and (not isinstance(value, int) or value <= 0):
        raise Failure("request", f"max_rate {value!r} is no number of bytes a second")
    return value


def _owners(peers: Any, me: Any, listing: Listing) -> Optional[Owners]:
    """Who fetches what; None for a node that has no peers."""
    if not peers:
        return None
    holds = {str(one["node"]): str((one.get("holds") or {}).get(listing.id, "0")) for one in peers}
    if me not in holds:
        raise Failure("request", f"node {me!r} is none of its own peers")
    try:
        return Owners(listing, str(me), holds)
    except ValueError:
        raise Failure("request", "what a peer holds is no hexadecimal number") from None
