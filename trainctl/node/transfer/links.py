"""Links to a listing's contents, which whoever called this program makes when their turn comes."""

from __future__ import annotations

import threading
from typing import Dict, Iterable, Iterator, List, NamedTuple, Optional, Set

from trainctl.base.failure import Failure
from trainctl.base.listing import ListedFile, Listing
from trainctl.base.protocol.conversation import Asking, Gone
from trainctl.node.content.parts import parts_of

_AT_ONCE = 64
_SMALL_AT_ONCE = 1024
"""Contents whose places are asked for together: so many, with no more chunks among them."""


class Place(NamedTuple):
    """Where a content is: behind a link, an object of its own, or what begins at ``offset`` of a pack."""

    link: str
    offset: Optional[int]


class Links:
    """The links to a listing's contents, which the caller makes when their turn comes; used by many threads."""

    def __init__(self, asking: Asking, listing: Listing) -> None:
        self._asking = asking
        self._listing = listing.id
        self._lock = threading.Lock()
        self._order: List[str] = []
        self._places: Dict[str, int] = {}
        self._large: Set[str] = set()
        self._known: Dict[str, Place] = {}
        self._lost = False

    def begin(self, files: Iterable[ListedFile]) -> None:
        """These are what is fetched from now on, in this order."""
        found = {part.chunk.sha256: part for file in files for part in parts_of(file)}
        with self._lock:
            self._order = list(found)
            self._places = {sha256: at for at, sha256 in enumerate(self._order)}
            self._large = {sha256 for sha256, part in found.items() if not part.packed}
            self._known.clear()

    def of(self, sha256: str) -> Place:
        """Where a content is. Failure where the caller can't make a link, or is gone."""
        with self._lock:
            if sha256 not in self._known:
                self._ask(sha256)
            return self._known[sha256]

    def forget(self, sha256: str, link: str) -> None:
        """That one is refused, or used: another is to be made if it is wanted again."""
        with self._lock:
            known = self._known.get(sha256)
            if known is not None and known.link == link:
                del self._known[sha256]

    def lose(self) -> None:
        """There is nothing where a link led: what is known of places may not hold any more."""
        with self._lock:
            self._known.clear()
            self._lost = True

    def _ask(self, sha256: str) -> None:
        if sha256 not in self._places:
            raise Failure("request", f"content {sha256} is in no listing that is fetched")
        wanted = [sha256, *self._after(sha256)]
        question = {"want": "links", "listing": self._listing, "contents": wanted}
        try:
            answer = self._asking.ask({**question, "lost": self._lost})
        except Gone:
            raise Failure(
                "origin",
                "the command that this node was called by has ended",
                "What arrived is kept. Apply again.",
            ) from None
        if "error" in answer:
            error = answer["error"]
            raise Failure("origin", str(error["summary"]), str(error["detail"]))
        self._lost = False
        links = answer["links"]
        for one, (number, offset) in zip(wanted, answer["places"]):
            self._known[one] = Place(links[number], offset)

    def _after(self, sha256: str) -> Iterator[str]:
        """What is wanted next: few enough that the last link is used before it expires, and of small contents, which share links, more."""
        start = self._places[sha256] + 1
        large = int(sha256 in self._large)
        for one in self._order[start : start + _SMALL_AT_ONCE - 1]:
            large += one in self._large
            if large > _AT_ONCE:
                return
            if one not in self._known:
                yield one
