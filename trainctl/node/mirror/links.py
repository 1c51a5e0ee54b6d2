"""URLs by which this host may read a source's files, as the caller signs them: some at a time, and before they are needed."""

from __future__ import annotations

import threading
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from trainctl.base.listing import SourceFile, place_of
from trainctl.base.protocol.conversation import Asked, Asking, Gone
from trainctl.base.protocol.wire import error_from_json
from trainctl.errors import Interrupted, TrainctlError

_SMALL_BYTES = 2**20
_AT_ONCE = 64
"""Links of one question: few enough that the last is used before it expires."""
_MOST_KEPT = 1024
"""Links kept for files that are read again: more than are read at the same time."""


class _Question:
    """Files whose links were asked for together, and whether any of them was needed yet."""

    def __init__(self, asked: Asked, paths: Sequence[str]) -> None:
        self.asked = asked
        self.paths = paths
        self.is_needed = False


class Link(NamedTuple):
    """A link; ``is_new`` if it was made for whoever needs it now."""

    url: str
    token: str
    is_relayed: bool
    is_new: bool
    question: _Question


class Links:
    """Finds the links of a source's files, for many threads.

    Small files are read in order: the link of one is asked for with those of the next ones, and when the first of them
    is needed, the next question is asked. Large files have a question each.
    """

    def __init__(self, asking: Asking, files: Sequence[SourceFile]) -> None:
        self._asking = asking
        self._files = files
        self._lock = threading.Lock()
        self._asked: Dict[str, Tuple[_Question, int]] = {}

    def find(self, file: SourceFile) -> Link:
        """The file's link. The caller's error if it can make none, Interrupted if it has gone."""
        is_small = file.size <= _SMALL_BYTES
        with self._lock:
            known = self._asked.get(file.path)
            if known is None:
                known = self._ask(self._next(file.path) if is_small else [file.path]), 0
                is_new = True
            else:
                is_new = False
            question, number = known
            if is_small and not question.is_needed:
                question.is_needed = True
                following = self._next(question.paths[-1], skip=1)
                if following:
                    self._ask(following)
        try:
            link = self._answer(question)[number]
        except TrainctlError:
            for path in question.paths:
                self._forget(path, question)
            raise
        relayed = bool(link.get("relayed"))
        return Link(link["url"], link.get("token", ""), relayed, is_new, question)

    def forget(self, file: SourceFile, link: Link) -> None:
        """Have another link made when the file is read again."""
        self._forget(file.path, link.question)

    def _answer(self, question: _Question) -> List[Mapping[str, Any]]:
        try:
            answer = self._asking.wait(question.asked)
        except Gone:
            raise Interrupted("the command that mirrored has ended", "What arrived is kept.") from None  # fmt: skip
        if "error" in answer:
            raise error_from_json(answer["error"])
        links: List[Mapping[str, Any]] = answer["links"]
        return links

    def _forget(self, path: str, question: _Question) -> None:
        with self._lock:
            if path in self._asked and self._asked[path][0] is question:
                del self._asked[path]

    def _next(self, path: str, skip: int = 0) -> List[str]:
        """The small files among some from ``path`` on whose links weren't asked for."""
        start = place_of(self._files, path) + skip
        return [
            file.path
            for file in self._files[start : start + _AT_ONCE]
            if file.size <= _SMALL_BYTES and file.path not in self._asked
        ]

    def _ask(self, paths: Sequence[str]) -> _Question:
        question = _Question(self._asking.begin({"want": "links", "paths": paths}), paths)
        for number, path in enumerate(paths):
            self._asked[path] = question, number
        while len(self._asked) > _MOST_KEPT:
            del self._asked[next(iter(self._asked))]
        return question
