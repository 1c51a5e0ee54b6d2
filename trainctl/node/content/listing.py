"""A listing as the node reads it: checked before any of its names touches the disk."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Dict, List, NamedTuple, Set, Tuple

from trainctl.node.system import layout
from trainctl.node.system.failure import Failure

CHUNK_BYTES = 16 * 2**20
_MAX_COMPONENT = 255


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


class Listing(NamedTuple):
    """Files by content; ``id`` is the sha256 of the document's canonical spelling, so it vouches for every chunk."""

    id: str
    files: Tuple[File, ...]
    document: Dict[str, Any]

    @property
    def size(self) -> int:
        """The sum of the files' sizes."""
        return sum(file.size for file in self.files)

    @property
    def contents(self) -> Dict[str, File]:
        """One file for each different content."""
        return {file.sha256: file for file in self.files}


def parse(document: Any) -> Listing:
    """Read a listing document; Failure says what is wrong with it."""
    if not isinstance(document, dict) or document.get("version") != 1:
        raise Failure("request", "the listing is of a version that this node program doesn't know")
    if document.get("chunk_bytes") != CHUNK_BYTES or not isinstance(document.get("files"), list):
        raise Failure("request", "the listing has other chunks than this node program knows")
    files = tuple(_file(value) for value in document["files"])
    _check_tree([file.path for file in files])
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return Listing(hashlib.sha256(text.encode()).hexdigest(), files, document)


def _file(value: Any) -> File:
    if not isinstance(value, dict) or not isinstance(value.get("size"), int) or value["size"] < 0:
        raise Failure("request", "the listing holds something that is not a file with a size")
    path = _safe_path(value.get("path"))
    chunks = tuple(layout.sha256(one, f"a chunk of {path}") for one in value.get("chunks", ()))
    file = File(path, value["size"], layout.sha256(value.get("sha256"), path), chunks)
    expected = -(-file.size // CHUNK_BYTES) if file.size > CHUNK_BYTES else 0
    if len(chunks) != expected:
        raise Failure("request", f"{path!a} has {len(chunks)} chunks instead of {expected}")
    return file


def _safe_path(value: Any) -> str:
    parts = value.split("/") if isinstance(value, str) else [""]
    if any(part in ("", ".", "..") or len(part.encode()) > _MAX_COMPONENT for part in parts):
        raise Failure("request", f"{value!a} is no path inside a tree")
    if any(ord(character) < 32 or ord(character) == 127 for character in value):
        raise Failure("request", f"{value!a} holds a control character")
    return str(value)


def _check_tree(paths: List[str]) -> None:
    seen: Set[str] = set(paths)
    if len(seen) != len(paths):
        raise Failure("request", "the listing names a path twice")
    for path in paths:
        parts = path.split("/")
        if any("/".join(parts[:count]) in seen for count in range(1, len(parts))):
            raise Failure("request", f"{path!a} lies below a file")
