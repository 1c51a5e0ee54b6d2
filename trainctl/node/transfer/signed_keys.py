"""Presigned URLs of a mirror's objects, which the operator signs when they are about to be read."""

from __future__ import annotations

import threading
from typing import Dict, Iterable, List

from trainctl.base.failure import Failure
from trainctl.base.listing import ListedFile
from trainctl.base.protocol.conversation import Asking, Gone
from trainctl.node.content.parts import parts_of
from trainctl.node.transfer.links import Place
from trainctl.store import keys

_AT_ONCE = 64
"""Few enough that the last is used before it expires."""


class SignedKeys:
    """The presigned URLs of one delivery; used by many threads."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking
        self._lock = threading.Lock()
        self._order: List[str] = []
        self._numbers: Dict[str, int] = {}
        self._known: Dict[str, str] = {}

    def begin(self, files: Iterable[ListedFile]) -> None:
        """Expect that these are read next, in this order. Small files are in packs, which are signed as they are read."""
        parts = (part for file in files for part in parts_of(file) if not part.packed)
        with self._lock:
            self._order = list(dict.fromkeys(keys.blob(part.chunk.sha256) for part in parts))
            self._numbers = {key: number for number, key in enumerate(self._order)}
            self._known.clear()

    def of(self, key: str) -> Place:
        """An object's URL. Failure ``missing`` if there is no such object, ``origin`` if the operator can't sign it."""
        with self._lock:
            if key not in self._known:
                self._ask(key)
            if not self._known[key]:
                raise Failure("missing", f"the bucket does not have {key}")
            return Place(self._known[key], 0)

    def forget(self, key: str, link: str) -> None:
        """A URL was used or refused: ask for another if it is wanted again."""
        with self._lock:
            if self._known.get(key) == link:
                del self._known[key]

    def lose(self) -> None:
        """An object was not found; what is asked for again is signed again."""

    def _ask(self, key: str) -> None:
        start = self._numbers.get(key, len(self._order)) + 1
        wanted = [key, *(k for k in self._order[start : start + _AT_ONCE] if k not in self._known)]
        try:
            answer = self._asking.ask({"want": "links", "keys": wanted})
        except Gone:
            raise Failure(
                "origin",
                "the command that called this node has ended",
                "What arrived is kept. Apply again.",
            ) from None
        if "error" in answer:
            error = answer["error"]
            raise Failure("origin", str(error["summary"]), str(error["detail"]))
        self._known.update(zip(wanted, answer["links"]))
