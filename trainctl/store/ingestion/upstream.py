"""Where a source's bytes come from when it is copied into a store, and their digests while they pass."""

from __future__ import annotations

import hashlib
import sys
from typing import Any, Callable, ContextManager, Iterator, Optional, Protocol, Tuple, Union

from trainctl.base.filesystem.safe_path import display_path
from trainctl.base.listing import SourceFile
from trainctl.errors import SourceMismatch

FillFn = Callable[[memoryview], None]
"""Puts the next bytes of a part into a buffer; raises if they don't arrive."""
ProgressFn = Callable[[int, int, int], None]
"""Called with bytes done, bytes in total, and contents done."""


class Upstream(Protocol):
    """A source, with whatever opens it. Errors are SourceError's kinds; nothing is retried here. Usable from many threads."""

    @property
    def source(self) -> str:
        """The source's URI, for messages."""
        ...

    def open(self, file: SourceFile, offset: int) -> ContextManager[Iterator[bytes]]:
        """The file's bytes from ``offset`` on, in pieces of at most 1 MiB."""
        ...

    def read_range(
        self, file: SourceFile, offset: int, length: int
    ) -> ContextManager[Optional[FillFn]]:
        """Those bytes of the file, by a connection of their own; None if upstream sends whole files only."""
        ...

    def checksum(self, file: SourceFile) -> str:
        """The file's ``checksum`` as its server tells it if it is asked about this file alone."""
        ...


_NAMES = {"sha256": "sha256", "git": "git blob id", "md5": "MD5"}


def announced_digest(file: SourceFile) -> Tuple[str, str]:
    """The kind of digest that upstream announced, ``sha256``, ``git`` or ``md5``, and the digest; twice empty if it announced none.

    An ``md5`` without a digest is told if upstream is asked about this file alone.
    """
    kind, _, value = file.validator.partition(":")
    if kind in ("sha256", "git"):
        return kind, value
    for word in file.checksum.split():
        kind, _, value = word.partition(":")
        if kind == "md5":
            return kind, value
    return "", ""


class FileHash:
    """The sha256 of a file, and its digest as upstream makes it. Takes the bytes in order."""

    def __init__(self, file: SourceFile) -> None:
        self._file = file
        self._whole = hashlib.sha256()
        self.upstream = _upstream_hash(file)

    def update(self, piece: Union[bytes, bytearray, memoryview]) -> None:
        """Take the next bytes."""
        self._whole.update(piece)
        if self.upstream is not None:
            self.upstream.update(piece)

    def checked(self, upstream: Upstream) -> str:
        """The sha256 of all bytes. SourceMismatch if they aren't what upstream announced."""
        sha256 = self._whole.hexdigest()
        kind, expected = announced_digest(self._file)
        found = sha256 if self.upstream is None else self.upstream.hexdigest()
        if kind in ("", "sha256") and not (kind and sha256 != expected):
            return sha256
        if found == expected:
            return sha256
        if kind == "md5":
            told = upstream.checksum(self._file)
            # What an ETag says is an MD5 only sometimes.
            if told in ("", "md5:", f"md5:{found}") or expected not in ("", told[4:]):
                return sha256
            expected = told.partition(":")[2]
        raise _mismatch_error(upstream.source, self._file, kind, expected, found)


def _mismatch_error(
    source: str, file: SourceFile, kind: str, expected: str, found: str
) -> SourceMismatch:
    declared = kind == "sha256" and source.startswith("https:")
    said = "declared" if declared else "announced upstream"
    return SourceMismatch(
        f"{source}: content of {display_path(file.path)} differs from the digest {said}",
        f"Expected {_NAMES[kind]} {expected}, got {found}. The file was not stored. If the error persists, the file is corrupt upstream or a proxy modifies it{', or the declared digest is wrong' if declared else ''}.",
    )


def _upstream_hash(file: SourceFile) -> Any:
    kind, value = announced_digest(file)
    if kind == "md5":
        return _non_security_hash("md5")
    if kind != "git":
        return None
    digest: Any = _non_security_hash("sha1") if len(value) == 40 else hashlib.sha256()
    digest.update(b"blob %d\0" % file.size)
    return digest


def _non_security_hash(name: str) -> Any:
    """A hash that isn't for security, which FIPS allows."""
    if sys.version_info >= (3, 9):
        return hashlib.new(name, usedforsecurity=False)
    return hashlib.new(name)


def sha256_of(data: Union[bytes, bytearray, memoryview]) -> str:
    """The hex sha256 of bytes in memory."""
    return hashlib.sha256(data).hexdigest()
