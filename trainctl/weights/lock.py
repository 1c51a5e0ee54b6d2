"""``trainctl.lock``: the version of each source that a project uses."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any, TypeAlias

from trainctl.base.lease import FileLease
from trainctl.errors import StorageError, TrainctlError
from trainctl.model.json_codec import OMIT_EMPTY, JsonSerializable

FILE_NAME = "trainctl.lock"
_VERSION = 1

LockKey: TypeAlias = tuple[str, tuple[str, ...] | None, tuple[str, ...] | None, str | None]


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

    @property
    def key(self) -> LockKey:
        """Key of the entry in a lock file."""
        return self.source, self.allow_patterns, self.ignore_patterns, self.endpoint_url


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
                self._merge(new, manifest_keys, replace=replace)
        except OSError as error:
            raise StorageError(
                f"cannot write {self.path}: {error.strerror or error}",
                "Make its directory writable, or run apply with --lockfile=readonly.",
            ) from None

    def _merge(
        self,
        new: Mapping[LockKey, LockEntry],
        manifest_keys: Collection[LockKey] | None,
        *,
        replace: bool,
    ) -> None:
        document, present = self._read()
        raw: dict[LockKey, dict[str, Any]] = {entry.key: dict(row) for entry, row in present}
        for key, entry in new.items():
            if replace or key not in raw:
                raw[key] = {**raw.get(key, {}), **entry.to_json()}
        stays = raw if manifest_keys is None else manifest_keys
        rows = [raw[key] for key in sorted(raw, key=_sort_key) if key in stays or key in new]
        text = json.dumps({**document, "version": _VERSION, "sources": rows}, **_STYLE) + "\n"
        before = self.path.read_text(encoding="utf-8") if self.path.exists() else None
        if before != text and (rows or before is not None):
            self._replace(text)

    def _replace(self, text: str) -> None:
        temporary = self.path.with_name(f".{FILE_NAME}.{secrets.token_hex(8)}")
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
        return document, self._rows(document)

    def _rows(self, document: Any) -> list[tuple[LockEntry, dict[str, Any]]]:
        version = document.get("version") if isinstance(document, dict) else None
        if isinstance(version, int) and version > _VERSION:
            raise self._lock_error(
                1, f"version {version} was written by a newer trainctl", "Use that version."
            )
        if version != _VERSION or not isinstance(document.get("sources"), list):
            raise self._lock_error(1, 'expected an object with "version": 1 and "sources": [...]')
        rows = enumerate(document["sources"], 1)
        return [(self._entry(number, row), row) for number, row in rows]

    def _entry(self, number: int, row: Any) -> LockEntry:
        if not isinstance(row, dict):
            raise self._lock_error(None, f"entry {number} of sources is not an object")
        for name, kinds in _FORM.items():
            value = row.get(name, None if name == "endpoint_url" else ...)
            texts = value if isinstance(value, list) else ()
            if not isinstance(value, kinds) or not all(isinstance(text, str) for text in texts):
                how = "has the wrong type" if name in row else "is missing"
                raise self._lock_error(None, f"entry {number} of sources: {name} {how}")
        return LockEntry.from_json(row)

    def _lock_error(self, line: int | None, reason: str, advice: str = "") -> TrainctlError:
        location = f"{self.path}:{line}" if line else str(self.path)
        return TrainctlError(
            f"cannot read lock file {location}: {reason}",
            advice
            or "Repair it, restore it from git, or delete it: apply then locks the latest revisions.",
            code="invalid-lock-file",
        )


_FORM: dict[str, type | tuple[type, ...]] = {
    "source": str,
    "allow_patterns": (list, NoneType),
    "ignore_patterns": (list, NoneType),
    "revision": str,
    "pin": str,
    "files": int,
    "bytes": int,
    "endpoint_url": (str, NoneType),
}
_STYLE: dict[str, Any] = {"indent": 2, "sort_keys": True, "ensure_ascii": False}


def _sort_key(key: LockKey) -> tuple[str, tuple[str, ...], tuple[str, ...], str]:
    return key[0], key[1] or (), key[2] or (), key[3] or ""
