"""Who else brings the same into a mirror, for those who wait for it."""

from __future__ import annotations

import contextlib
import time
from typing import Any, Callable, Iterable, Mapping

from trainctl.base.exclusive import holder_name, process_of
from trainctl.base.listing import ResolvedSource
from trainctl.errors import TrainctlError
from trainctl.weights.mirror.layout import Reference, named_in

SAY_SECONDS = 1.0
"""How long somebody waits before that is said, and how often it is said again."""

Waiting = Callable[[str], None]
"""Told in words what is waited for, as long as it is."""


def nobody(text: str) -> None:
    """For callers with nobody to tell."""


class WaitsFor:
    """Called with the holder again and again while it is waited for; says who that is, by the references that it has written."""

    def __init__(
        self,
        resolved: ResolvedSource,
        mine: Reference,
        waiting: Waiting,
        references: Callable[[], Iterable[Mapping[str, Any]]],
    ) -> None:
        self._same = (resolved.source, resolved.endpoint, resolved.revision)
        self._mine = (mine.lineage, mine.address)
        self._waiting = waiting
        self._references = references
        self._words: dict[str, str] = {}
        self._due = time.monotonic() + SAY_SECONDS

    def __call__(self, holder: str) -> None:
        """Nothing within the first second, nor twice in one."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + SAY_SECONDS
        if holder not in self._words:
            self._words[holder] = self._who(holder)
        self._waiting(f"waits for {self._words[holder]} brings the same")

    def _who(self, holder: str) -> str:
        with contextlib.suppress(
            TrainctlError
        ):  # a reference that can't be read is told by who needs it
            for record in self._references():
                same = named_in(record) == self._same
                mine = (record.get("lineage"), record.get("address")) == self._mine
                if record.get("holder") == holder and same and not mine:
                    if holder == holder_name():
                        return f"{record.get('address')}, which"
                    return f"{record.get('owner')} (process {process_of(holder)}), who"
        process = process_of(holder)
        return "somebody who" if process == "?" else f"process {process}, which"
