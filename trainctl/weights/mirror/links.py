"""Links to files, that the caller of the mirror program resolved and signed: asked for some at a time, and before their turn comes."""

from __future__ import annotations

import threading
from typing import Any, Mapping, NamedTuple, Sequence

from trainctl.base.listing import ResolvedSource, SourceFile, place_of
from trainctl.base.protocol.asking import Asked
from trainctl.errors import TrainctlError
from trainctl.weights.mirror.caller import Caller
from trainctl.weights.mirror.fetch import LARGE_FROM_BYTES

_AT_ONCE = 64
"""Links that are asked for together: few enough that the last is used before it expires."""
_MOST_KEPT = 1024
"""Links that are kept for who asks again for the same file: more than are on their way."""


class _Question:
    """What was asked for together, and whether anybody wanted any of it yet."""

    def __init__(self, asked: Asked, paths: Sequence[str]) -> None:
        self.asked = asked
        self.paths = paths
        self.wanted = False


class Found(NamedTuple):
    """A link; ``fresh`` if it was asked for only now."""

    link: Mapping[str, Any]
    fresh: bool
    question: _Question


class Links:
    """Finds the links of sources' files, for many threads.

    ``in_turn``: small files are wanted in their order, so a small one's link is asked for with those of the ones after it, and the next
    question is put when the first of them is wanted. Large ones have a turn of their own.
    """

    def __init__(self, caller: Caller, *, in_turn: bool) -> None:
        self._caller = caller
        self._in_turn = in_turn
        self._lock = threading.Lock()
        self._asked: dict[tuple[str, str], tuple[_Question, int]] = {}

    def find(self, resolved: ResolvedSource, file: SourceFile) -> Found:
        """The file's link; the caller's error where there is none."""
        alone = not self._in_turn or file.size > LARGE_FROM_BYTES
        with self._lock:
            known = self._asked.get((resolved.identity, file.path))
            question, number = known or (
                self._ask(resolved, [file.path] if alone else self._small(resolved, file.path)),
                0,
            )
            if not (alone or question.wanted):
                question.wanted = True
                ahead = self._small(resolved, question.paths[-1], after=1)
                if ahead:
                    self._ask(resolved, ahead)
        try:
            links = self._caller.wait(question.asked)["links"]
        except TrainctlError:
            for path in question.paths:
                self._forget(resolved, path, question)
            raise
        return Found(links[number], known is None, question)

    def forget(self, resolved: ResolvedSource, file: SourceFile, found: Found) -> None:
        """Have it made anew for who asks next."""
        self._forget(resolved, file.path, found.question)

    def told(self, resolved: ResolvedSource, file: SourceFile) -> str:
        """What upstream tells the caller of the file's bytes, as ``checksum``."""
        return str(self._caller.ask(_about(resolved, "told", [file.path]))["told"][0])

    def _forget(self, resolved: ResolvedSource, path: str, question: _Question) -> None:
        key = (resolved.identity, path)
        with self._lock:
            if key in self._asked and self._asked[key][0] is question:
                del self._asked[key]

    def _small(self, resolved: ResolvedSource, path: str, after: int = 0) -> list[str]:
        """Of some files from that one on, or after it, the small ones whose links nobody has asked for."""
        start = place_of(resolved.files, path) + after
        return [
            one.path
            for one in resolved.files[start : start + _AT_ONCE]
            if one.size <= LARGE_FROM_BYTES and (resolved.identity, one.path) not in self._asked
        ]

    def _ask(self, resolved: ResolvedSource, paths: Sequence[str]) -> _Question:
        asked = self._caller.begin(_about(resolved, "links", paths))
        question = _Question(asked, paths)
        for number, path in enumerate(paths):
            self._asked[resolved.identity, path] = (question, number)
        while len(self._asked) > _MOST_KEPT:
            del self._asked[next(iter(self._asked))]
        return question


def _about(resolved: ResolvedSource, want: str, paths: Sequence[str]) -> Mapping[str, Any]:
    return {
        "want": want,
        "source": resolved.source,
        "endpoint": resolved.endpoint,
        "revision": resolved.revision,
        "paths": paths,
    }
