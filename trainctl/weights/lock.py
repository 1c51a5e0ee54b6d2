"""``trainctl.lock``: the version of each source that a project uses.

If upstream differs or is unreachable, the locked version comes from the mirror.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable
from heapq import merge
from itertools import groupby
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeAlias

from trainctl.base.filesystem.safe_path import display_path
from trainctl.base.lazy_dataclass import MISSING, dataclass, field, fields, replace
from trainctl.base.lease import FileLease
from trainctl.base.listing import ResolvedSource, SourceFile, sort_files
from trainctl.base.units import format_bytes
from trainctl.errors import NodeError, SourceMismatch, SourceNotFound, StorageError, TrainctlError
from trainctl.model.diagnostics import Diagnostic, warning
from trainctl.model.json_codec import OMIT_EMPTY, JsonSerializable

if TYPE_CHECKING:
    from trainctl.store.store import MirrorStore

FILE_NAME = "trainctl.lock"
_VERSION = 1
_SHOWN = 5
"""Names of files in a description of changes."""

LockKey: TypeAlias = tuple[
    str, tuple[str, ...] | None, tuple[str, ...] | None, str | None, str | None
]


@dataclass(frozen=True, slots=True)
class LockEntry(JsonSerializable):
    """A source with its patterns as in the manifest, and its version."""

    source: str
    allow_patterns: tuple[str, ...] | None
    ignore_patterns: tuple[str, ...] | None
    revision: str
    pin: str
    files: int
    bytes: int
    endpoint_url: str | None = field(default=None, metadata=OMIT_EMPTY)
    name: str | None = field(default=None, metadata=OMIT_EMPTY)

    @property
    def key(self) -> LockKey:
        """Key of the entry in a lock file."""
        return self.source, self.allow_patterns, self.ignore_patterns, self.name, self.endpoint_url


class LockFile:
    """The lock file in a manifest's directory; a missing file counts as empty."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE_NAME

    def entries(self) -> dict[LockKey, LockEntry]:
        """Return all entries; TrainctlError, with the line, if the file can't be read."""
        return {entry.key: entry for entry, _ in self._read()[1]}

    def put(
        self,
        entries: Iterable[LockEntry],
        *,
        replace: bool = False,
        manifest_keys: Collection[LockKey] | None = None,
    ) -> None:
        """Add or ``replace`` entries; remove others not in ``manifest_keys``."""
        new = {entry.key: entry for entry in entries}
        lease_path = self.path.with_name(f".{FILE_NAME}.lease")
        try:
            with FileLease(lease_path, renewed=True):
                document, present = self._read()
                raw: dict[LockKey, dict[str, Any]] = {
                    entry.key: dict(row) for entry, row in present
                }
                for key, entry in new.items():
                    if replace or key not in raw:
                        raw[key] = {**raw.get(key, {}), **entry.to_json()}
                stays = raw if manifest_keys is None else manifest_keys
                keys = (key for key in sorted(raw, key=_sort_key) if key in stays or key in new)
                rows = [raw[key] for key in keys]
                document = {**document, "version": _VERSION, "sources": rows}
                text = json.dumps(document, **_STYLE) + "\n"
                before = self.path.read_text(encoding="utf-8") if self.path.exists() else None
                if before != text and (rows or before is not None):
                    self._replace(text)
        except OSError as error:
            raise StorageError(
                f"cannot write {self.path}: {error.strerror or error}",
                "Make its directory writable, or run apply with --lockfile=readonly.",
            ) from None

    def _replace(self, text: str) -> None:
        temporary = self.path.with_name(f".{FILE_NAME}.{os.urandom(8).hex()}")
        try:
            with temporary.open("w", encoding="utf-8") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            if self.path.exists():
                temporary.chmod(self.path.stat().st_mode)  # others may share the checkout
            temporary.replace(self.path)
        finally:
            temporary.unlink(missing_ok=True)

    def _read(self) -> tuple[dict[str, Any], list[tuple[LockEntry, dict[str, Any]]]]:
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return {}, []
        except (OSError, UnicodeDecodeError) as error:
            raise self._lock_error(None, str(error)) from None
        for number, line in enumerate(text.splitlines(), 1):
            if line.startswith(("<<<<<<<", ">>>>>>>")):
                raise self._lock_error(number, "unresolved merge conflict")
        try:
            document = json.loads(text)
        except json.JSONDecodeError as error:
            raise self._lock_error(error.lineno, error.msg) from None
        except (ValueError, RecursionError):
            raise self._lock_error(None, "numbers are too long, or nesting is too deep") from None
        version = document.get("version") if isinstance(document, dict) else None
        if isinstance(version, int) and version > _VERSION:
            raise self._lock_error(
                1, f"version {version} was written by a newer trainctl", "Use that version."
            )
        if version != _VERSION or not isinstance(document.get("sources"), list):
            raise self._lock_error(1, 'expected an object with "version": 1 and "sources": [...]')
        rows = enumerate(document["sources"], 1)
        return document, [(self._entry(number, row), row) for number, row in rows]

    def _entry(self, number: int, row: Any) -> LockEntry:
        if not isinstance(row, dict):
            raise self._lock_error(None, f"entry {number} of sources is not an object")
        for member in fields(LockEntry):
            value = row.get(member.name, ... if member.default is MISSING else None)
            texts = value if isinstance(value, list) else ()
            is_valid = isinstance(value, _JSON_TYPES[str(member.type)])
            if not is_valid or not all(isinstance(text, str) for text in texts):
                how = "has the wrong type" if member.name in row else "is missing"
                raise self._lock_error(None, f"entry {number} of sources: {member.name} {how}")
        return LockEntry.from_json(row)

    def _lock_error(self, line: int | None, reason: str, advice: str = "") -> TrainctlError:
        location = f"{self.path}:{line}" if line else str(self.path)
        return TrainctlError(
            f"cannot read lock file {location}: {reason}",
            advice
            or "Repair it, restore it from git, or delete it: apply then locks the latest revisions.",
            code="invalid-lock-file",
        )


_JSON_TYPES: dict[str, type | tuple[type, ...]] = {
    "str": str,
    "int": int,
    "str | None": (str, NoneType),
    "tuple[str, ...] | None": (list, NoneType),
}
"""Types of members in JSON, by those of ``LockEntry``."""
_STYLE: dict[str, Any] = {"indent": 2, "sort_keys": True, "ensure_ascii": False}


def _sort_key(key: LockKey) -> tuple[str, tuple[str, ...], tuple[str, ...], str, str]:
    return key[0], key[1] or (), key[2] or (), key[3] or "", key[4] or ""


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
            differences: list[str] = []
            if isinstance(now, ResolvedSource):
                (known,) = store.survey([now]).sources
                digests = (digest for digest, _, _ in known.files)
                files = (
                    replace(file, validator=f"sha256:{digest}") if digest else file
                    for file, digest in zip(now.files, digests, strict=True)
                )
                differences = describe_difference(mirrored.files, files)
            return mirrored, _moved_warning(locked, now, differences)
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


def describe_difference(before: Iterable[SourceFile], now: Iterable[SourceFile]) -> list[str]:
    """Describe added, changed and removed files, a line each.

    Both inputs are sorted by path and may be huge; they are not held in memory.
    """
    names: dict[str, list[str]] = {"added": [], "changed": [], "removed": []}
    counts = dict.fromkeys(names, 0)
    both = merge(
        ((file, "removed") for file in before),
        ((file, "added") for file in now),
        key=lambda row: row[0].path,
    )
    for path, rows in groupby(both, key=lambda row: row[0].path):
        files = list(rows)
        if len(files) == 2 and files[0][0] == files[1][0]:
            continue
        change = "changed" if len(files) == 2 else files[0][1]
        counts[change] += 1
        if len(names[change]) < _SHOWN:
            names[change].append(display_path(path))
    return [
        f"{change}: {', '.join(names[change])}"
        + (f" and {more} more" if (more := count - _SHOWN) > 0 else "")
        for change, count in counts.items()
        if count
    ]
