"""Who needs what of a mirror: its references, those that are being written just now, and those that nobody renews."""

from __future__ import annotations

import contextlib
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainctl.base import below
from trainctl.base.exclusive import STALE_SECONDS, known_dead
from trainctl.errors import StorageError
from trainctl.weights.mirror.layout import DAMAGED, Layout
from trainctl.weights.mirror.names import is_own


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


@dataclass(frozen=True)
class References:
    """What was found of all references: those that are ``damaged`` are told, with what to do, and those that may not be read."""

    needs: tuple[Need, ...]
    damaged: Mapping[Path, StorageError]
    hidden: tuple[StorageError, ...]


def needs(layout: Layout) -> list[Need]:
    """Every reference as it is now. StorageError where one can't be read: nothing may be deleted then."""
    found = references(layout)
    for problem in (*found.hidden, *found.damaged.values()):
        raise problem
    return list(found.needs)


def references(layout: Layout) -> References:
    """The same for who wants to know what there is."""
    found: list[Need] = []
    damaged: dict[Path, StorageError] = {}
    hidden: list[StorageError] = []
    for path, is_file in _paths(layout, hidden):
        if is_file:
            found += _need(layout, path, damaged, hidden)
        else:
            damaged[path] = _replaced(path)
    return References(tuple(found), damaged, tuple(hidden))


def _paths(layout: Layout, hidden: list[StorageError]) -> Iterator[tuple[Path, bool]]:
    """Where each reference is, and whether it is a file. A link in the place of one, or of the directories they are in, is none that
    can be read: to pass over it would be to delete what it keeps."""
    root = layout.root / "references"
    if root.is_symlink():
        yield root, False
    for lineage in _names(layout, root, hidden):
        if lineage.is_symlink():
            yield lineage, False
        for path in _names(layout, lineage, hidden):
            if is_own(path.relative_to(layout.root).as_posix(), directory=False):
                yield path, not _is_replaced(path)


def _is_replaced(path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):  # it was dropped just now
        return not stat.S_ISREG(path.lstat().st_mode)
    return False


def _names(layout: Layout, directory: Path, hidden: list[StorageError]) -> list[Path]:
    """Unlike a glob this doesn't pass over what may not be read."""
    try:
        return sorted(directory / one.name for one in below.entries(layout.root, directory))
    except PermissionError as error:
        hidden.append(_hidden(error))
        return []


def _need(
    layout: Layout, path: Path, damaged: dict[Path, StorageError], hidden: list[StorageError]
) -> Iterator[Need]:
    try:
        status = path.lstat()
        record = layout.read_reference(path)
    except FileNotFoundError:
        return
    except PermissionError as error:
        hidden.append(_hidden(error))
        return
    except StorageError as error:
        damaged[path] = error
        return
    if record is not None:
        used = max(float(record.get("last_used") or 0.0), status.st_mtime)
        yield Need(path, record, status.st_mtime_ns, used)


def _replaced(path: Path) -> StorageError:
    return StorageError(
        f"{path} is damaged: something else is in its place",
        "Links in a mirror are not followed. Remove it, or put what it leads to in its place.",
        code=DAMAGED,
    )


def _hidden(error: PermissionError) -> StorageError:
    return StorageError(
        f"{error.filename} may not be read by this user: nobody knows who needs what of the mirror",
        "Ask whoever may read all of its references to do this, or to give this user the right to.",
    )


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
