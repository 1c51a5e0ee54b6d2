"""Files of a source: announced upstream (pin), by sha256 if mirrored (listing).

Plans, locks and job digests refer to pins, which need metadata only. Deliveries and mounts refer to
listings, which exist after mirroring.
"""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from typing import Any, Iterable, Iterator, Sequence

from trainctl.base.json import JsonValue, canonical
from trainctl.base.lazy_dataclass import dataclass, field
from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.base.lazy_pattern import compile_lazily

_MEMBERS = ("path", "size", "sha256", "chunks")
_is_hex = compile_lazily("[0-9a-f]{64}").fullmatch
CHUNK_BYTES = 16 * 2**20
"""The unit of transfer, verification and resuming, in bytes."""
UNKNOWN_SIZE = -1
"""Size of a file with a declared digest whose server reports no size."""
LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\n"
"""Start of the stand-ins in a clone without Git LFS."""
_DIGEST_BYTES = 32
_INVALID_NAMES = {"", ".", ".."}
_MAX_NAME = 255
_CONTROL = compile_lazily(r"[\x00-\x1f\x7f]")
_FILES_PER_BUFFER = 1000
_TAIL = b'],"version":1}'


@dataclass(frozen=True, order=True)
class SourceFile:
    """One file of a source at a revision, from metadata only.

    ``path`` is relative, with ``/``; ``size`` in bytes, or UNKNOWN_SIZE. ``validator`` identifies the content:
    ``sha256:HEX`` (LFS, or declared), ``git:HEX`` (git blob sha1), ``xet:HEX`` (buckets of the Hub),
    ``mtime:NANOSECONDS:INODE`` (local), ``etag:TAG`` and ``modified:TIME`` (web servers, buckets), or ``size:BYTES`` if
    upstream reports nothing else.
    ``checksum``: another checksum, ``sha256:HEX``, ``md5:HEX`` or ``crc32:HEX``. Downloads are verified against it; pins
    don't include it. ``md5:`` without HEX comes with a request for this file alone.
    """

    path: str
    size: int
    validator: str
    checksum: str = field(default="", compare=False)

    @property
    def sha256(self) -> str | None:
        """The hex digest, if upstream announces it."""
        scheme, _, value = self.validator.partition(":")
        return value if scheme == "sha256" else None

    @property
    def is_local(self) -> bool:
        """Whether the validator holds on one machine only."""
        return self.validator.startswith("mtime:")

    @property
    def identified(self) -> bool:
        """Whether the validator distinguishes contents of the same size."""
        return not self.validator.startswith("size:")


def sort_files(files: Iterable[SourceFile]) -> tuple[SourceFile, ...]:
    """Return the files sorted by path."""
    return tuple(sorted(files, key=lambda file: file.path))


def file_index(files: Sequence[SourceFile], path: str) -> int:
    """Return the index of a path in sorted files, or where it would be inserted."""
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
    """A source at an immutable revision; files sorted by ``sort_files``."""

    source: str
    revision: str
    files: Sequence[SourceFile]
    newest: str | None = field(default=None, compare=False)
    """The current upstream revision, if another was requested and upstream reports it."""
    known_as: str | None = None
    """The pin of this version, if its files come from the listing of a mirror or have a declared digest."""
    endpoint: str | None = None
    """The endpoint URL, if it is not the platform's default."""

    @property
    def identity(self) -> str:
        """Key of the source in records, including the endpoint.

        It is unambiguous: only bucket sources with an endpoint may hold spaces, and their prefixes hold no ``//``.
        """
        return self.source if self.endpoint is None else f"{self.source} {self.endpoint}"

    @property
    def is_measured(self) -> bool:
        """Whether all sizes are known."""
        return all(file.size != UNKNOWN_SIZE for file in self.files)

    @cached_property
    def size(self) -> int:
        """The sum of the files' sizes."""
        return sum(file.size for file in self.files)

    @cached_property
    def pin(self) -> str:
        """The digest of (path, size, validator) of every file."""
        if self.known_as is not None:
            return self.known_as
        hasher = hashlib.sha256(b"[")
        for number, file in enumerate(self.files):
            hasher.update(b"," if number else b"")
            hasher.update(canonical([file.path, file.size, file.validator]))
        hasher.update(b"]")
        return f"sha256:{hasher.hexdigest()}"


class Chunk(NamedTuple):
    """A chunk of a file with its own digest; offset and length in bytes."""

    offset: int
    length: int
    sha256: str


class _FileRow(NamedTuple):
    path: str
    size: int
    digest: bytes
    chunk_digests: bytes


class ListedFile(_FileRow):
    """One file of a listing.

    ``chunks``: hex sha256 of each 16 MiB chunk if there is more than one. Digests are held as bytes, which keeps a
    listing of a million files at some 270 MB of memory.
    """

    __slots__ = ()

    def __new__(cls, path: str, size: int, sha256: str, chunks: Iterable[str] = ()) -> ListedFile:
        """Raise ValueError if a digest is not hex."""
        chunk_digests = b"".join(map(bytes.fromhex, chunks))
        return _FileRow.__new__(cls, path, size, bytes.fromhex(sha256), chunk_digests)

    @property
    def sha256(self) -> str:
        """The hex digest."""
        return self.digest.hex()

    @property
    def chunks(self) -> tuple[str, ...]:
        """The hex digests of its chunks; empty if it has one only."""
        digests = self.chunk_digests
        return tuple(
            digests[at : at + _DIGEST_BYTES].hex() for at in range(0, len(digests), _DIGEST_BYTES)
        )

    @property
    def row(self) -> tuple[str, int, str, tuple[str, ...]]:
        """The constructor's arguments."""
        return self.path, self.size, self.digest.hex(), self.chunks if self.chunk_digests else ()

    @property
    def chunk_ranges(self) -> list[Chunk]:
        """The chunks in which the file is transferred and verified, at least one."""
        if not self.chunk_digests:
            return [Chunk(0, self.size, self.sha256)]
        return [
            Chunk(at, min(CHUNK_BYTES, self.size - at), sha256)
            for at, sha256 in zip(range(0, self.size, CHUNK_BYTES), self.chunks)
        ]


@dataclass(frozen=True)
class Listing:
    """Files by sha256, sorted by path. The id authenticates every chunk."""

    files: tuple[ListedFile, ...]

    @cached_property
    def size(self) -> int:
        """The sum of the files' sizes."""
        return sum(file.size for file in self.files)

    @cached_property
    def unique_files(self) -> tuple[ListedFile, ...]:
        """The first file of each distinct blob."""
        first: dict[bytes, ListedFile] = {}
        for file in self.files:
            first.setdefault(file.digest, file)
        return self.files if len(first) == len(self.files) else tuple(first.values())

    @cached_property
    def paths(self) -> frozenset[str]:
        """The paths of all files."""
        return frozenset(file.path for file in self.files)

    def rows(self) -> Iterator[tuple[str, int, str, tuple[str, ...]]]:
        """Return each file's ``row``."""
        return (file.row for file in self.files)

    def to_bytes(self) -> bytes:
        """Return the stored form, canonical JSON, whose digest is the id."""
        return b"".join(self.iter_bytes())

    def iter_bytes(self) -> Iterator[bytes]:
        """Yield the stored form, some files at a time."""
        yield b'{"chunk_bytes":%d,"files":[' % CHUNK_BYTES
        files = sorted(self.files)
        for start in range(0, len(files), _FILES_PER_BUFFER):
            rows: list[JsonValue] = [
                dict(zip(_MEMBERS, file.row)) for file in files[start : start + _FILES_PER_BUFFER]
            ]
            yield (b"," if start else b"") + canonical(rows)[1:-1]
        yield _TAIL

    @cached_property
    def id(self) -> str:
        """The hex sha256 of the stored form."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    @classmethod
    def from_bytes(cls, data: bytes) -> Listing:
        """Parse a stored listing; ValueError if it isn't a listing of version 1."""
        try:
            return cls.parse(json.loads(data, object_hook=_parse_object))
        except RecursionError:
            raise ValueError("it is nested too deeply") from None

    @classmethod
    def parse(cls, document: Any) -> Listing:
        """Parse a listing's document; ValueError as for ``from_bytes``."""
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
        """Return the listing with these ``rows``; ValueError as for ``from_bytes``."""
        return cls(tuple(map(_file_of_row, rows)))

    def check(self) -> None:
        """Raise ValueError unless paths are safe, sorted and unique, and chunks match."""
        above: list[str] = []
        for path, size, _, chunk_digests in self.files:
            names = path.split("/")
            long = (
                len(path.encode()) > _MAX_NAME and max(map(len, map(str.encode, names))) > _MAX_NAME
            )
            if long or not _INVALID_NAMES.isdisjoint(names):
                raise ValueError(f"{path!r} is not a relative path")
            if _CONTROL.search(path):
                raise ValueError(f"{path!r} contains a control character")
            expected = -(-size // CHUNK_BYTES) if size > CHUNK_BYTES else 0
            count = len(chunk_digests) // _DIGEST_BYTES
            if count != expected:
                raise ValueError(f"{path!r} has {count} chunks instead of {expected}")
            if above and path <= above[-1]:
                raise ValueError(f"path {path!r} is repeated or out of order")
            while above and not path.startswith(above[-1]):
                above.pop()
            if above and any(path[len(file)] == "/" for file in above):
                raise ValueError(f"the parent of {path!r} is a file")
            above.append(path)


def is_digest(value: object) -> bool:
    """Return whether the value is a sha256 in lower-case hex."""
    return isinstance(value, str) and _is_hex(value) is not None


def _parse_object(value: dict[str, Any]) -> Any:
    """Convert files while parsing, so that not all of them are dictionaries at once."""
    return _parse_file(value) if value.keys() == set(_MEMBERS) else value


def _parse_file(value: Any) -> ListedFile:
    """Parse a file of a listing, which may be anything; ValueError if it is malformed."""
    try:
        row = tuple(map(value.__getitem__, _MEMBERS))
    except (KeyError, TypeError, AttributeError):
        row = (value,)
    return _file_of_row(row)


def _file_of_row(row: Sequence[Any]) -> ListedFile:
    try:
        path, size, sha256, chunks = row
        is_valid = type(size) is int and size >= 0 and _is_hex(sha256) and all(map(_is_hex, chunks))
        path.encode()
        file = ListedFile(path, size, sha256, chunks)
    except (TypeError, AttributeError, ValueError):
        is_valid = False
    if not is_valid:
        raise ValueError(f"malformed file entry: {str(row)[:200]}")
    return file
