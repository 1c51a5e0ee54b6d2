"""Use the locked version from the mirror if upstream differs or is unreachable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from heapq import merge
from itertools import groupby

from trainctl.base.filesystem.safe_path import display_path
from trainctl.base.listing import ResolvedSource, SourceFile, sort_files
from trainctl.base.units import format_bytes
from trainctl.errors import NodeError, SourceMismatch, SourceNotFound, StorageError, TrainctlError
from trainctl.model.diagnostics import Diagnostic, warning
from trainctl.store.store import MirrorStore
from trainctl.weights.lock import LockEntry

_SHOWN = 5


def version_from_lock(source: str, endpoint: str | None, entry: LockEntry) -> ResolvedSource:
    """Return the locked version of an absolute source, without files."""
    return ResolvedSource(source, entry.revision, (), known_as=entry.pin, endpoint=endpoint)


def mirrored_version(
    store: MirrorStore, version: ResolvedSource, entry: LockEntry
) -> ResolvedSource | None:
    """Return the locked version with the mirror's files; None if incomplete.

    NodeError or StorageError if the mirror is unreachable.
    """
    listing = store.mirrored(version)
    if listing is None or (len(listing.files), listing.size) != (entry.files, entry.bytes):
        return None
    files = (SourceFile(file.path, file.size, f"sha256:{file.sha256}") for file in listing.files)
    return replace(version, files=sort_files(files))


def fall_back_to_locked(
    now: ResolvedSource | TrainctlError,
    version: ResolvedSource,
    locked: LockEntry,
    store: MirrorStore | None,
) -> tuple[ResolvedSource, Diagnostic]:
    """Return the locked ``version`` from the mirror, and a warning.

    ``now``: the version upstream, or its error. Raises SourceMismatch, or that error, if the mirror doesn't have it.
    """
    reason = "The mirror doesn't contain the locked version."
    try:
        mirrored = mirrored_version(store, version, locked) if store else None
        if store is not None and mirrored is not None:
            return mirrored, _moved_warning(locked, now, _list_differences(store, mirrored, now))
    except (NodeError, StorageError) as failure:
        reason = f"The mirror is unreachable, so it is unknown whether it contains the locked version: {failure.summary}."
    if isinstance(now, TrainctlError):
        detail = f"{now.detail}\nThe source is in trainctl.lock. {reason}".lstrip()
        raise type(now)(now.summary, detail, address=now.address, code=now.code)
    raise SourceMismatch(
        f"the version of {locked.source} pinned in trainctl.lock is no longer available upstream",
        f"{_counts_text(locked, now)}\n{reason} Restore it upstream, or use the latest revision: plan --upgrade.",
        code="lock-mismatch",
    )


def _moved_warning(
    locked: LockEntry, now: ResolvedSource | TrainctlError, differing: list[str]
) -> Diagnostic:
    used = "Using the locked version from the mirror."
    if isinstance(now, SourceNotFound):
        return warning(
            f"{locked.source} not found upstream", f"{now.summary}. {used}", code="upstream-changed"
        )
    if isinstance(now, TrainctlError):
        return warning(
            f"upstream of {locked.source} is unreachable", f"{now.summary}. {used}", code=now.code
        )
    return warning(
        f"{locked.source} has changed upstream since it was locked",
        "\n".join(
            [
                _counts_text(locked, now),
                *differing,
                f"{used} To use the latest revision, run plan --upgrade.",
            ]
        ),
        code="upstream-changed",
    )


def _counts_text(locked: LockEntry, now: ResolvedSource) -> str:
    """Describe the difference by what the lock file records."""
    before, after = (
        version_size_text(locked.files, locked.bytes),
        version_size_text(len(now.files), now.size),
    )
    if before != after:
        return f"It had {before} and now has {after}."
    revisions = f"{locked.revision} before, {now.revision} now"
    return f"It still has {after}, with different content: {revisions}."


def version_size_text(files: int, size: int) -> str:
    """Describe a version's files and bytes."""
    return f"{files} {'file' if files == 1 else 'files'} ({format_bytes(size)})"


def _list_differences(
    store: MirrorStore, mirrored: ResolvedSource, now: ResolvedSource | TrainctlError
) -> list[str]:
    """Describe the difference by file names."""
    if isinstance(now, TrainctlError):
        return []
    (known,) = store.survey([now]).sources
    pairs = zip(now.files, known.files, strict=True)
    return describe_difference(
        mirrored.files,
        (
            replace(file, validator=f"sha256:{digest}") if digest else file
            for file, (digest, _, _) in pairs
        ),
    )


def describe_difference(before: Iterable[SourceFile], now: Iterable[SourceFile]) -> list[str]:
    """Describe added, changed and removed files, a line each.

    Both inputs are sorted by path and may be huge; they are not held in memory.
    """
    names: dict[str, list[str]] = {"added": [], "changed": [], "removed": []}
    counts = dict.fromkeys(names, 0)
    for change, path in _changes(before, now):
        counts[change] += 1
        if len(names[change]) < _SHOWN:
            names[change].append(display_path(path))
    return [
        f"{change}: {', '.join(names[change])}"
        + (f" and {more} more" if (more := count - _SHOWN) > 0 else "")
        for change, count in counts.items()
        if count
    ]


def _changes(before: Iterable[SourceFile], now: Iterable[SourceFile]) -> Iterator[tuple[str, str]]:
    """Yield change and path, sorted by path."""
    both = merge(
        ((file, 0) for file in before), ((file, 1) for file in now), key=lambda row: row[0].path
    )
    for path, rows in groupby(both, key=lambda row: row[0].path):
        files = list(rows)
        if len(files) == 2:
            if files[0][0] != files[1][0]:
                yield "changed", path
        else:
            yield ("added" if files[0][1] else "removed"), path
