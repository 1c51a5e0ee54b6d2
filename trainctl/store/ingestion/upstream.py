"""Interface of sources to mirror, and verification of their digests."""

from __future__ import annotations

import hashlib
import sys
from typing import Any, Callable, ContextManager, Iterator, Optional, Protocol, Tuple, Union

from trainctl.base.filesystem.safe_path import display_path
from trainctl.base.listing import SourceFile
from trainctl.errors import SourceMismatch

FillFn = Callable[[memoryview], None]
"""Fills a buffer with the next bytes of a range; raises if they don't arrive."""
ProgressFn = Callable[[int, int, int], None]
"""Called with bytes done, total bytes and files done."""


class Upstream(Protocol):
    """A source with its credential; thread-safe, without retries."""

    @property
    def source(self) -> str:
        """The source's URI, for messages."""
        ...

    def open(self, file: SourceFile, offset: int) -> ContextManager[Iterator[bytes]]:
        """Open a file for reading from ``offset``, up to 1 MiB at a time."""
        ...

    def read_range(
        self, file: SourceFile, offset: int, length: int
    ) -> ContextManager[Optional[FillFn]]:
        """Open a range by a connection of its own; None if upstream serves no ranges."""
        ...

    def checksum(self, file: SourceFile) -> str:
        """Return the file's ``checksum`` from a request for this file alone."""
        ...


_NAMES = {"sha256": "sha256", "git": "git blob id", "md5": "MD5"}


def announced_digest(file: SourceFile) -> Tuple[str, str]:
    """Return kind and value of the announced digest, or empty strings.

    An ``md5`` without a value comes with a request for this file alone.
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
    """Computes the sha256 of a file, and the kind of digest that upstream announced."""

    def __init__(self, file: SourceFile) -> None:
        self._file = file
        self._sha256 = hashlib.sha256()
        self.upstream = _upstream_hash(file)

    def update(self, data: Union[bytes, bytearray, memoryview]) -> None:
        """Add the next bytes."""
        self._sha256.update(data)
        if self.upstream is not None:
            self.upstream.update(data)

    def verify(self, upstream: Upstream) -> str:
        """Return the sha256 of all bytes; SourceMismatch if upstream differs."""
        sha256 = self._sha256.hexdigest()
        kind, expected = announced_digest(self._file)
        actual = sha256 if self.upstream is None else self.upstream.hexdigest()
        if not kind or actual == expected:
            return sha256
        if kind == "md5":
            reported = upstream.checksum(self._file)
            # an ETag may or may not be an MD5
            if reported in ("", "md5:", f"md5:{actual}") or expected not in ("", reported[4:]):
                return sha256
            expected = reported.partition(":")[2]
        raise _mismatch_error(upstream.source, self._file, kind, expected, actual)


def _mismatch_error(
    source: str, file: SourceFile, kind: str, expected: str, actual: str
) -> SourceMismatch:
    declared = kind == "sha256" and source.startswith("https:")
    origin = "declared" if declared else "announced upstream"
    return SourceMismatch(
        f"{source}: {display_path(file.path)} differs from the digest {origin}",
        f"Expected {_NAMES[kind]} {expected}, got {actual}. The file was not stored. If the error persists, the file is corrupt upstream or a proxy modifies it{', or the declared digest is wrong' if declared else ''}.",
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
    """Return a hash for identification only, which FIPS mode allows."""
    if sys.version_info >= (3, 9):
        return hashlib.new(name, usedforsecurity=False)
    return hashlib.new(name)


def sha256_of(data: Union[bytes, bytearray, memoryview]) -> str:
    """Return the hex sha256 of bytes."""
    return hashlib.sha256(data).hexdigest()
