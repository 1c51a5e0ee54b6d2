"""What upstream tells of a file's content, and what makes the same of its bytes while they pass. DESIGN.md, "Checksums"."""

from __future__ import annotations

import hashlib
import sys
import zlib
from functools import lru_cache
from typing import Callable, Mapping, Protocol, Union

from trainctl.base.listing import SourceFile

_CRC_DIGITS = {"crc64nvme": 16, "crc32c": 8, "crc32": 8}
CRC_FROM_BYTES = 16 * 2**20
"""From this size on a CRC is preferred to an MD5, which costs a second of a processor for each GiB, and is worth a request."""
SPOKEN = {
    "sha256": "sha256",
    "git": "git blob id",
    "md5": "MD5",
    "crc32": "CRC32",
    "crc32c": "CRC32C",
    "crc64nvme": "CRC64NVME",
}
"""How errors call them."""

_Piece = Union[bytes, memoryview]


class _Sum(Protocol):
    def update(self, piece: _Piece, /) -> object: ...

    def hexdigest(self) -> str: ...


class Sums:
    """Takes every byte of a file in order."""

    def __init__(self, made: Mapping[str, _Sum]) -> None:
        self._made = made

    def update(self, piece: _Piece) -> None:
        """Take the next bytes."""
        for one in self._made.values():
            one.update(piece)

    def told(self) -> dict[str, str]:
        """What upstream would tell of the bytes so far, by its kind."""
        return {kind: one.hexdigest() for kind, one in self._made.items()}


def announced(file: SourceFile) -> tuple[str, str]:
    """By what the content is compared, ``sha256``, ``git``, ``md5`` or a CRC, and what upstream tells; two times nothing where there is nothing."""
    kind, _, value = file.validator.partition(":")
    if kind in ("sha256", "git"):
        return kind, value
    told = _told(file)
    crcs = [one for one in _CRC_DIGITS if told.get(one) and _crc(one)]
    kinds = ["md5"] if told.get("md5") else []
    for one in crcs + kinds if file.size >= CRC_FROM_BYTES else kinds + crcs:
        return one, told[one]
    return "", ""


def is_worth_asking(file: SourceFile) -> bool:
    """Whether upstream is to be asked for this one file, before its bytes are, what it tells of them."""
    kind = announced(file)[0]
    if not kind:
        return bool(_untold(file)) or "crc" in _told(file) or _told(file).get("md5") == ""
    return kind == "md5" and file.size >= CRC_FROM_BYTES and bool(_untold(file))


def sums_of(file: SourceFile) -> Sums | None:
    """What makes that of a file's bytes; None where sha256 is all that is needed.

    Beside an MD5, which the server may say is none when it is asked, the CRCs that it would tell then.
    """
    kind, value = announced(file)
    if kind == "git":
        sha = _insecure("sha1") if len(value) == 40 else hashlib.sha256()
        sha.update(b"blob %d\0" % file.size)
        return Sums({kind: sha})
    if kind == "md5":
        return Sums({kind: _insecure(kind), **{one: _Crc(one) for one in _untold(file)}})
    if kind not in _CRC_DIGITS:
        return None
    part = value.partition("/")[2]
    return Sums({kind: _OfParts(kind, int(part)) if part else _Crc(kind)})


class _Crc:
    """One CRC, in the shape of hashlib's."""

    def __init__(self, kind: str) -> None:
        compute = _crc(kind)
        assert compute is not None  # noqa: S101  who asks for one that can't be had is wrong
        self._compute, self._digits, self._value = compute, _CRC_DIGITS[kind], 0

    def update(self, piece: _Piece) -> None:
        self._value = self._compute(piece, self._value)

    def hexdigest(self) -> str:
        return f"{self._value:0{self._digits}x}"


class _OfParts:
    """The CRC of the CRCs of parts of so many bytes."""

    def __init__(self, kind: str, part: int) -> None:
        self._kind, self._part = kind, part
        self._ended = b""
        self._begin()

    def update(self, piece: _Piece) -> None:
        view = memoryview(piece)
        while view:
            taken, view = view[: self._room], view[self._room :]
            self._now.update(taken)
            self._room -= len(taken)
            if not self._room:
                self._ended += bytes.fromhex(self._now.hexdigest())
                self._begin()

    def hexdigest(self) -> str:
        whole = _Crc(self._kind)
        last = bytes.fromhex(self._now.hexdigest()) if self._room < self._part else b""
        whole.update(self._ended + last)
        return f"{whole.hexdigest()}/{self._part}"

    def _begin(self) -> None:
        self._now, self._room = _Crc(self._kind), self._part


@lru_cache(maxsize=None)
def _crc(kind: str) -> Callable[[_Piece, int], int] | None:
    """The function; None where there is none: hosts have the standard library alone, and it has CRC32 only."""
    if kind == "crc32":
        return zlib.crc32
    try:
        from awscrt import checksums
    except ImportError:
        return None
    found: Callable[[_Piece, int], int] | None = getattr(checksums, kind, None)
    return found


def _told(file: SourceFile) -> dict[str, str]:
    words = (word.partition(":") for word in file.checksum.split())
    return {kind: value for kind, _, value in words}


def _untold(file: SourceFile) -> list[str]:
    """The CRCs that can be had here and that upstream tells where it is asked."""
    told = _told(file)
    return [one for one in _CRC_DIGITS if told.get(one) == "" and _crc(one)]


def _insecure(name: str) -> hashlib._Hash:
    """Where only some hashes are for security, as under FIPS, this use of it isn't; Python 3.8 can't say so."""
    if sys.version_info >= (3, 9):
        return hashlib.new(name, usedforsecurity=False)
    return hashlib.new(name)
