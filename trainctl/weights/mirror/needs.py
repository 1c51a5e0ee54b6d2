"""Who needs what of a mirror: its references, those that are being written just now, and those that nobody renews."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainctl.errors import StorageError
from trainctl.node.system.files import names_in
from trainctl.weights.exclusive import STALE_SECONDS, known_dead
from trainctl.weights.mirror.layout import Layout


@dataclass(frozen=True)
class Need:
    """One reference. ``last_used`` is in Unix seconds; ``listings`` are those it keeps, none before its first is whole."""

    path: Path
    record: Mapping[str, Any]
    touched: int
    last_used: float

    @property
    def listings(self) -> frozenset[str]:
        """The listings that must stay: the one it names and the one that this replaces."""
        return frozenset(filter(None, (self.record.get("listing"), self.record.get("previous"))))

    @property
    def writer(self) -> str:
        """The process that is mirroring for it; empty when none is."""
        return str(self.record.get("holder") or "")


def needs(layout: Layout) -> list[Need]:
    """Every reference as it is now. StorageError where one can't be read: nothing may be deleted then."""
    return list(_read(layout, _refuse))


def readable(layout: Layout) -> list[Need]:
    """Those that this user may read, for who only wants to know more by them."""
    return list(_read(layout, lambda failure: None))


def _read(layout: Layout, failed: Callable[[PermissionError], object]) -> Iterator[Need]:
    """``failed`` is told what may not be read, and the others follow."""
    references = layout.root / "references"
    for lineage in _names(references, failed):
        for name in _names(references / lineage, failed):
            if name.endswith(".json"):
                with _told(failed):
                    yield from _need(layout, references / lineage / name)


def _need(layout: Layout, path: Path) -> Iterator[Need]:
    try:
        status = path.stat()
        record = layout.read_reference(path)
    except FileNotFoundError:
        return
    if record is not None:
        used = max(float(record.get("last_used") or 0.0), status.st_mtime)
        yield Need(path, record, status.st_mtime_ns, used)


def _names(directory: Path, failed: Callable[[PermissionError], object]) -> list[str]:
    with _told(failed):
        return names_in(directory)
    return []


@contextlib.contextmanager
def _told(failed: Callable[[PermissionError], object]) -> Iterator[None]:
    try:
        yield
    except PermissionError as error:
        failed(error)


def _refuse(error: PermissionError) -> None:
    raise StorageError(
        f"{error.filename} may not be read by this user: nobody knows who needs what of the mirror",
        "Ask whoever may read all of its references to do this, or to give this user the right to.",
    ) from None


class Watch:
    """Which mirroring goes on, by this process's own clock: a writer shows itself every few seconds.

    One on this machine is known to live or to be dead. One elsewhere counts as living until it was watched for
    ``stale_seconds`` without a sign.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        stale_seconds: float = STALE_SECONDS,
    ) -> None:
        self._clock = clock
        self._stale_seconds = stale_seconds
        self._seen: dict[Path, tuple[int, float]] = {}

    def busy(self, found: Sequence[Need]) -> list[Need]:
        """Those of the references that somebody is mirroring for."""
        return [need for need in found if need.writer and self._lives(need)]

    def _lives(self, need: Need) -> bool:
        if known_dead(need.writer):
            return False
        touched, since = self._seen.get(need.path, (None, 0.0))
        if touched != need.touched:
            self._seen[need.path] = (need.touched, self._clock())
            return True
        return self._clock() - since < self._stale_seconds
