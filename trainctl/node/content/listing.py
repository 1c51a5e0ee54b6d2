"""A listing as the node reads it: checked before any of its names touches the disk."""

from __future__ import annotations

import hashlib
import json
import re
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from trainctl.base.failure import Failure
from trainctl.base.json_stream import objects_in
from trainctl.base.packed import packed, packed_sorted
from trainctl.base.protocol.rows import received
from trainctl.node.system import layout

CHUNK_BYTES = 16 * 2**20
_MAX_COMPONENT = 255
_NOWHERE = {"", ".", ".."}
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_AT_ONCE = 256
_FILES = "files"
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)
_TAIL = b'],"version":1}'


class Piece(NamedTuple):
    """A part of a file with its own digest."""

    offset: int
    length: int
    sha256: str


class File(NamedTuple):
    """One file of a listing."""

    path: str
    size: int
    sha256: str
    chunks: Tuple[str, ...]

    @property
    def pieces(self) -> List[Piece]:
        """The parts in which the file is transferred and verified."""
        if not self.chunks:
            return [Piece(0, self.size, self.sha256)]
        return [
            Piece(index * CHUNK_BYTES, min(CHUNK_BYTES, self.size - index * CHUNK_BYTES), digest)
            for index, digest in enumerate(self.chunks)
        ]


class Listing:
    """Files by content, in the order of their paths; ``id`` is the sha256 of the document's canonical spelling, so it vouches for every chunk."""

    def __init__(self, files: Sequence[File]) -> None:
        self.files = files
        digest = hashlib.sha256()
        for piece in self.pieces():
            digest.update(piece)
        self.id = digest.hexdigest()

    @cached_property
    def size(self) -> int:
        """The sum of the files' sizes."""
        return sum(file.size for file in self.files)

    @cached_property
    def contents(self) -> Sequence[File]:
        """One file for each different content."""
        return _packed(_distinct(self.files))

    def names(self, path: str) -> bool:
        """Whether a file has this path."""
        low, high = 0, len(self.files)
        while low < high:
            middle = (low + high) // 2
            if self.files[middle].path < path:
                low = middle + 1
            else:
                high = middle
        return low < len(self.files) and self.files[low].path == path

    def pieces(self) -> Iterator[bytes]:
        """The document in its canonical spelling."""
        yield b'{"chunk_bytes":%d,"files":[' % CHUNK_BYTES
        files = iter(self.files)
        comma = ""
        while some := [file._asdict() for file in islice(files, _AT_ONCE)]:
            yield (comma + _ENCODER.encode(some)[1:-1]).encode()
            comma = ","
        yield _TAIL


def parse(document: Any) -> Listing:
    """Read a listing document; Failure says what is wrong with it."""
    if not isinstance(document, dict) or document.get("version") != 1:
        raise Failure("request", "the listing is of a version that this node program doesn't know")
    if document.get("chunk_bytes") != CHUNK_BYTES or not isinstance(document.get("files"), list):
        raise Failure("request", "the listing has other chunks than this node program knows")
    return _listing(map(_of_document, document["files"]))


def given(documents: Iterable[Any], stream: BinaryIO) -> List[Listing]:
    """The listings of a request; the rows of those that are null in it follow it. Failure says what is wrong with one."""
    lists = received(stream)
    found = []
    for document in documents:
        if document is not None:
            found.append(parse(document))
        else:
            found.append(_listing(_of_row(row) for row in next(lists)))
    return found


def read_stored(path: Path) -> Optional[Listing]:
    """The listing whose document is somewhere in a JSON file, never all of it in memory; None where there is none, or none that is right."""
    try:
        with path.open(encoding="utf-8") as stream:
            return _listing(map(_of_document, objects_in(stream, _FILES)))
    except (FileNotFoundError, NotADirectoryError, ValueError, Failure):
        return None


def _listing(files: Iterable[File]) -> Listing:
    return Listing(_packed(_in_a_tree(files)))


def _packed(files: Iterable[File]) -> Sequence[File]:
    return packed(files, tuple, File)


def _of_document(value: Any) -> File:
    if not isinstance(value, dict):
        raise _no_file()
    return _file(value.get("path"), value.get("size"), value.get("sha256"), value.get("chunks", ()))


def _of_row(row: Any) -> File:
    if not isinstance(row, list) or len(row) != len(File._fields):
        raise _no_file()
    return _file(*row)


def _file(path: Any, size: Any, sha256: Any, chunks: Any) -> File:
    if not isinstance(size, int) or size < 0:
        raise _no_file()
    path = _safe_path(path)
    chunks = tuple(layout.sha256(one, f"a chunk of {path}") for one in chunks)
    file = File(path, size, layout.sha256(sha256, path), chunks)
    expected = -(-size // CHUNK_BYTES) if size > CHUNK_BYTES else 0
    if len(chunks) != expected:
        raise Failure("request", f"{path!r} has {len(chunks)} chunks instead of {expected}")
    return file


def _no_file() -> Failure:
    return Failure("request", "the listing holds something that is not a file with a size")


def _safe_path(value: Any) -> str:
    parts = value.split("/") if isinstance(value, str) else [""]
    if not _NOWHERE.isdisjoint(parts) or max(map(len, map(str.encode, parts))) > _MAX_COMPONENT:
        raise Failure("request", f"{value!r} is no path inside a tree")
    if _CONTROL.search(value):
        raise Failure("request", f"{value!r} holds a control character")
    return str(value)


def _in_a_tree(files: Iterable[File]) -> Iterator[File]:
    """The files, of which none may lie below another. They come in the order of their paths, so whatever this one is below begins it."""
    before: List[str] = []
    for file in files:
        path = file.path
        if before and path <= before[-1]:
            wrong = "twice" if path == before[-1] else "out of order"
            raise Failure("request", f"the listing names the path {path!r} {wrong}")
        while before and not path.startswith(before[-1]):
            before.pop()
        if before and any(path[len(one)] == "/" for one in before):
            raise Failure("request", f"{path!r} lies below a file")
        before.append(path)
        yield file


def _distinct(files: Sequence[File]) -> Iterator[File]:
    """The first file of each content. What is in memory is a bit a file."""
    rows = ((bytes.fromhex(file.sha256), number) for number, file in enumerate(files))
    known = bytearray(len(files) // 8 + 1)
    before = b""
    for digest, number in packed_sorted(rows, tuple, lambda *row: row):
        known[number >> 3] |= (digest == before) << (number & 7)
        before = digest
    return (file for number, file in enumerate(files) if not known[number >> 3] >> (number & 7) & 1)
