"""Files of a source: as upstream announces them, and as content once they were mirrored.

A pin is what plans, locks and job digests speak of: it is known from metadata alone.
A listing is what deliveries and mounts speak of: it is known after mirroring and names content.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Iterable, Iterator, Mapping, NamedTuple, Sequence

from trainctl.base.json import JsonValue, canonical

_MEMBERS = ("path", "size", "sha256", "chunks")
_is_hex = re.compile("[0-9a-f]{64}").fullmatch
CHUNK_BYTES = 16 * 2**20
"""The unit of transfer, verification and resuming, in bytes."""
_DIGEST_BYTES = 32
_INVALID_NAMES = {"", ".", ".."}
_MAX_NAME = 255
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_FILES_IN_PIECE = 1000
_TAIL = b'],"version":1}'


@dataclass(frozen=True, order=True)
class SourceFile:
    """One file of a source at a revision, from metadata only.

    ``path`` is relative, with ``/``; ``size`` in bytes. ``validator`` is what upstream says identifies
    the content: ``sha256:HEX`` (LFS, or declared), ``git:HEX`` (git blob sha1), ``mtime:NANOSECONDS:INODE`` (local),
    ``etag:TAG`` and ``modified:TIME`` (as a web server or a bucket says), ``generation:NUMBER`` (Google), or ``size:BYTES`` where it says nothing.
    ``checksum`` is what it reports besides, words of ``md5:HEX``, ``crc32:HEX``, ``crc32c:HEX`` and ``crc64nvme:HEX``: downloads are verified against one
    of them, and they are part of no pin. Without HEX it is reported with the file itself; ``crc:`` if there may be some.
    ``HEX/BYTES`` is the CRC of the CRCs of parts of so many bytes.
    """

    path: str
    size: int
    validator: str
    checksum: str = field(default="", compare=False)

    @property
    def sha256(self) -> str | None:
        """The hex digest of the content where upstream announces it."""
        scheme, _, value = self.validator.partition(":")
        return value if scheme == "sha256" else None

    @property
    def identified(self) -> bool:
        """Whether content can be told from other content of the same size, before it is all there."""
        return not self.validator.startswith("size:")


def sort_files(files: Iterable[SourceFile]) -> tuple[SourceFile, ...]:
    """The files sorted by path."""
    return tuple(sorted(files, key=lambda file: file.path))


def file_index(files: Sequence[SourceFile], path: str) -> int:
    """Where in files sorted by path that one is; at least where it would be."""
    low, high = 0, len(files)
    while low < high:
        middle = (low + high) // 2
        if files[middle].path < path:
            low = middle + 1
        else:
            high = middle
    return low


@dataclass(frozen=True)
class ResolvedSource:
    """A source at the immutable revision it resolved to, after patterns; files sorted by path, as ``sort_files`` gives them."""

    source: str
    revision: str
    files: Sequence[SourceFile]
    newest: str | None = field(default=None, compare=False)
    """The revision that upstream has now, where it was asked for another and told."""
    known_as: str | None = None
    """The pin that this version had upstream, if its files come from the listing of a mirror."""
    versions: Mapping[str, str] | None = field(default=None, compare=False)
    """By path the version of a file that upstream keeps, where it is asked for these and not for what is there now."""
    endpoint: str | None = None
    """The server that was asked, where it is not the platform's own."""

    @property
    def identity(self) -> str:
        """What the source is remembered as: another server may have other content by the same URI, name, size and tag.

        No source that a server can be named for holds a space, but for those of buckets, and in their prefixes no ``//`` stands.
        """
        return self.source if self.endpoint is None else f"{self.source} {self.endpoint}"

    @cached_property
    def size(self) -> int:
        """The sum of the files' sizes."""
        return sum(file.size for file in self.files)

    @cached_property
    def pin(self) -> str:
        """The digest of (path, size, validator) of every file."""
        if self.known_as is not None:
            return self.known_as
        found = hashlib.sha256(b"[")
        for number, file in enumerate(self.files):
            found.update(b"," if number else b"")
            found.update(canonical([file.path, file.size, file.validator]))
        found.update(b"]")
        return f"sha256:{found.hexdigest()}"


class Chunk(NamedTuple):
    """A part of a file with its own digest; offset and length in bytes."""

    offset: int
    length: int
    sha256: str


class _FileRow(NamedTuple):
    path: str
    size: int
    digest: bytes
    chunk_digests: bytes


class ListedFile(_FileRow):
    """One file as content. Digests are kept as bytes: a listing of a million files takes some 270 MB of memory.

    ``chunks`` are the hex sha256 of each 16 MiB part if there is more than one.
    """

    __slots__ = ()

    def __new__(cls, path: str, size: int, sha256: str, chunks: Iterable[str] = ()) -> ListedFile:
        """ValueError for what is not a digest in hex."""
        chunk_digests = b"".join(map(bytes.fromhex, chunks))
        return _FileRow.__new__(cls, path, size, bytes.fromhex(sha256), chunk_digests)

    @property
    def sha256(self) -> str:
        """The hex digest of the content."""
        return self.digest.hex()

    @property
    def chunks(self) -> tuple[str, ...]:
        """The hex digests of its chunks, none if it is one."""
        digests = self.chunk_digests
        return tuple(
            digests[at : at + _DIGEST_BYTES].hex() for at in range(0, len(digests), _DIGEST_BYTES)
        )

    @property
    def row(self) -> tuple[str, int, str, tuple[str, ...]]:
        """As plain values, in the order of the arguments."""
        return self.path, self.size, self.sha256, self.chunks

    @property
    def chunk_ranges(self) -> list[Chunk]:
        """The chunks in which the file is transferred and verified; a small file is one."""
        if not self.chunk_digests:
            return [Chunk(0, self.size, self.sha256)]
        return [
            Chunk(at, min(CHUNK_BYTES, self.size - at), sha256)
            for at, sha256 in zip(range(0, self.size, CHUNK_BYTES), self.chunks)
        ]


@dataclass(frozen=True)
class Listing:
    """What a delivery delivers: files by content, sorted by path. The id authenticates every chunk."""

    files: tuple[ListedFile, ...]

    @cached_property
    def size(self) -> int:
        """The sum of the files' sizes."""
        return sum(file.size for file in self.files)

    @cached_property
    def contents(self) -> tuple[ListedFile, ...]:
        """The first file of each different content."""
        first: dict[bytes, ListedFile] = {}
        for file in self.files:
            first.setdefault(file.digest, file)
        return self.files if len(first) == len(self.files) else tuple(first.values())

    @cached_property
    def paths(self) -> frozenset[str]:
        """The paths of all files."""
        return frozenset(file.path for file in self.files)

    def rows(self) -> Iterator[tuple[str, int, str, tuple[str, ...]]]:
        """The files as plain values."""
        return (file.row for file in self.files)

    def to_bytes(self) -> bytes:
        """The stored form, canonical, so that its digest is the id."""
        return b"".join(self.pieces())

    def pieces(self) -> Iterator[bytes]:
        """The stored form, some files at a time."""
        yield b'{"chunk_bytes":%d,"files":[' % CHUNK_BYTES
        files = sorted(self.files)
        for start in range(0, len(files), _FILES_IN_PIECE):
            rows: list[JsonValue] = [
                dict(zip(_MEMBERS, file.row)) for file in files[start : start + _FILES_IN_PIECE]
            ]
            yield (b"," if start else b"") + canonical(rows)[1:-1]
        yield _TAIL

    @cached_property
    def id(self) -> str:
        """The hex sha256 of the stored form."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    @classmethod
    def from_bytes(cls, data: bytes) -> Listing:
        """Read a stored listing; ValueError if it isn't a listing of version 1."""
        try:
            return cls.parse(json.loads(data, object_hook=_parse_object))
        except RecursionError:
            raise ValueError("it is nested too deeply") from None

    @classmethod
    def parse(cls, document: Any) -> Listing:
        """Read a listing's document; ValueError as of ``from_bytes``."""
        files = document.get("files") if isinstance(document, dict) else None
        if not isinstance(files, list):
            raise ValueError("it is not a listing")  # noqa: TRY004  as for every other defect
        if document.get("version") != 1 or document.get("chunk_bytes") != CHUNK_BYTES:
            raise ValueError(
                f"a listing of version {document.get('version')!r} is newer than this trainctl"
            )
        return cls(
            tuple(file if isinstance(file, ListedFile) else _parse_file(file) for file in files)
        )

    @classmethod
    def of_rows(cls, rows: Iterable[Sequence[Any]]) -> Listing:
        """The listing whose ``rows`` these are; ValueError as of ``from_bytes``."""
        return cls(tuple(_parse_file(dict(zip(_MEMBERS, row))) for row in rows))

    def check(self) -> None:
        """ValueError unless the files can be in one directory, are sorted by path, and have as many chunks as their size asks for."""
        above: list[str] = []
        for path, size, _, chunk_digests in self.files:
            _check_path(path)
            expected = -(-size // CHUNK_BYTES) if size > CHUNK_BYTES else 0
            count = len(chunk_digests) // _DIGEST_BYTES
            if count != expected:
                raise ValueError(f"{path!r} has {count} chunks instead of {expected}")
            if above and path <= above[-1]:
                raise ValueError(f"it names the path {path!r} twice or out of order")
            while above and not path.startswith(above[-1]):
                above.pop()
            if any(path[len(file)] == "/" for file in above):
                raise ValueError(f"{path!r} lies below a file")
            above.append(path)


def _check_path(path: str) -> None:
    names = path.split("/")
    if (
        not _INVALID_NAMES.isdisjoint(names)
        or max(len(name.encode()) for name in names) > _MAX_NAME
    ):
        raise ValueError(f"{path!r} is not a path inside a tree")
    if _CONTROL.search(path):
        raise ValueError(f"{path!r} holds a control character")


def is_digest(value: object) -> bool:
    """Whether it is how a sha256 is written."""
    return isinstance(value, str) and _is_hex(value) is not None


def _parse_object(value: dict[str, Any]) -> Any:
    """A file as soon as it is parsed, so that not all of them are dictionaries at once."""
    return _parse_file(value) if value.keys() == set(_MEMBERS) else value


def _parse_file(value: Any) -> ListedFile:
    """A file of a listing. Whoever writes to a mirror may write there what they like under its right name, so ValueError says what is no file."""
    try:
        path, size, sha256, chunks = map(value.__getitem__, _MEMBERS)
        is_right = type(size) is int and size >= 0 and _is_hex(sha256) and all(map(_is_hex, chunks))
        path.encode()
        file = ListedFile(path, size, sha256, chunks)
    except (KeyError, TypeError, AttributeError, ValueError):
        is_right = False
    if not is_right:
        raise ValueError(f"it names something that is no file: {str(value)[:200]}")
    return file
