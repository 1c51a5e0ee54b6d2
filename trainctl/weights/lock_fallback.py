"""What ``trainctl.lock`` names is what is used, or nothing is: what happens where upstream shows something else."""

from __future__ import annotations

from dataclasses import replace

from trainctl.base.listing import ResolvedSource, SourceFile, sort_files
from trainctl.base.units import format_bytes
from trainctl.errors import NodeError, SourceMismatch, SourceNotFound, StorageError, TrainctlError
from trainctl.model.diagnostics import Diagnostic, warning
from trainctl.store.store import MirrorStore
from trainctl.weights.difference import describe_difference
from trainctl.weights.lock import LockEntry


def version_from_lock(source: str, endpoint: str | None, locked: LockEntry) -> ResolvedSource:
    """What is locked of a source, which is absolute, at its server; without its files, which the lock doesn't name."""
    return ResolvedSource(source, locked.revision, (), known_as=locked.pin, endpoint=endpoint)


def mirrored_version(
    store: MirrorStore, wanted: ResolvedSource, locked: LockEntry
) -> ResolvedSource | None:
    """The locked version by its content, which the mirror has; None where it doesn't have all of it, or something that can't be it.

    NodeError and StorageError where the mirror can't be asked.
    """
    listing = store.mirrored(wanted)
    if listing is None or (len(listing.files), listing.size) != (locked.files, locked.bytes):
        return None
    files = (SourceFile(file.path, file.size, f"sha256:{file.sha256}") for file in listing.files)
    return replace(wanted, files=sort_files(files))


def fall_back_to_locked(
    now: ResolvedSource | TrainctlError,
    wanted: ResolvedSource,
    locked: LockEntry,
    store: MirrorStore | None,
) -> tuple[ResolvedSource, Diagnostic]:
    """The locked version, ``wanted``, from the mirror, and the warning that says so.

    ``now`` is what upstream shows instead, or the error if it shows nothing. SourceMismatch, or that error, if the mirror doesn't have all of it.
    """
    why = "The mirror doesn't contain the locked version."
    try:
        kept = mirrored_version(store, wanted, locked) if store else None
        if store is not None and kept is not None:
            return kept, _moved_warning(locked, now, _list_differences(store, kept, now))
    except (NodeError, StorageError) as failure:
        why = f"The mirror is unreachable, so it is unknown whether it contains the locked version: {failure.summary}."
    if isinstance(now, TrainctlError):
        detail = f"{now.detail}\nThe source is in trainctl.lock. {why}".lstrip()
        raise type(now)(now.summary, detail, address=now.address, code=now.code)
    raise SourceMismatch(
        f"the version of {locked.source} pinned in trainctl.lock is no longer available upstream",
        f"{_counts_text(locked, now)}\n{why} Restore it upstream, or use the latest revision: plan --upgrade.",
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
    """What the lock file itself can tell of the difference."""
    before, after = (
        version_size_text(locked.files, locked.bytes),
        version_size_text(len(now.files), now.size),
    )
    if before != after:
        return f"It had {before} and now has {after}."
    revisions = f"{locked.revision} before, {now.revision} now"
    return f"It still has {after}, with different content: {revisions}."


def version_size_text(files: int, size: int) -> str:
    """How much a version is."""
    return f"{files} {'file' if files == 1 else 'files'} ({format_bytes(size)})"


def _list_differences(
    store: MirrorStore, kept: ResolvedSource, now: ResolvedSource | TrainctlError
) -> list[str]:
    """What differs, by name: files whose content the mirror doesn't know may be others."""
    if isinstance(now, TrainctlError):
        return []
    (known,) = store.survey([now]).sources
    pairs = zip(now.files, known.files, strict=True)
    return describe_difference(
        kept.files,
        (
            replace(file, validator=f"sha256:{digest}") if digest else file
            for file, (digest, _, _) in pairs
        ),
    )
