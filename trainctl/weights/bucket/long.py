"""Objects of a mirror that may be long, put and read without having all of one in memory."""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, cast

from trainctl.base.json import canonical
from trainctl.base.listing import ResolvedSource, is_digest
from trainctl.weights.bucket.objects import Objects

_READ_BYTES = 2**20
_PAIR = re.compile(rb'"([0-9a-f]{64})":\s*"([0-9a-f]{64})"')
_PAIR_BYTES = 200
_TAIL_BYTES = 2**16
_CHECK = re.compile(rb',"check":"([0-9a-f]{64})"\}$')
_UNCHECKED = re.compile(rb'"version":\s*1\s*\}\s*$')
"""How records end that have none."""
_CHECK_BYTES = len(',"check":""}') + 64
_FILES_END = re.compile(rb'\}\s*,\s*"listing":')


def put(objects: Objects, key: str, pieces: Iterable[bytes]) -> None:
    """Create or replace an object."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "object"
        with path.open("wb") as stream:
            stream.writelines(pieces)
        objects.put(key, path)


@contextmanager
def opened(objects: Objects, key: str, name: str = "object") -> Iterator[Path | None]:
    """An object's bytes in a file of that name, for as long as the block lasts; None where there is no object."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / name
        with path.open("w+b") as stream:
            found = objects.fetch(key, stream)
        yield path if found else None


class Hashing(io.RawIOBase):
    """Where an object goes of which only the digest is wanted."""

    def __init__(self) -> None:
        self.found = hashlib.sha256()

    def seek(self, offset: int, whence: int = 0) -> int:
        """There is only its beginning."""
        return 0

    def truncate(self, size: int | None = None) -> int:
        """What is fetched begins anew."""
        self.found = hashlib.sha256()
        return 0

    def write(self, data: Any) -> int:
        """The next bytes."""
        self.found.update(data)
        return len(data)


def sha256_of(objects: Objects, key: str) -> str | None:
    """Of an object's bytes as they arrive; None where there is no object."""
    into = Hashing()
    return into.found.hexdigest() if objects.fetch(key, cast(BinaryIO, into)) else None


def record(
    resolved: ResolvedSource, listing: str, turned: Iterable[tuple[str, str]]
) -> Iterator[bytes]:
    """The stored form of a source that is whole: what its fingerprints, in order, turned out to be, and its listing. ``check`` is the sha256 of all
    that comes before it."""
    head, tail = canonical(
        {
            "version": 1,
            "source": resolved.source,
            "pin": resolved.pin,
            "listing": listing,
            "files": {},
        }
    ).split(b"{}", 1)
    pairs = (
        f'{"," if number else ""}"{fingerprint}":"{sha256}"'.encode()
        for number, (fingerprint, sha256) in enumerate(turned)
    )
    found = hashlib.sha256()
    for piece in chain([head + b"{"], pairs, [b"}" + tail[:-1]]):
        found.update(piece)
        yield piece
    yield f',"check":"{found.hexdigest()}"}}'.encode()


def is_right(path: Path) -> bool:
    """Whether a record is what was written. Earlier releases wrote no check."""
    found, left = hashlib.sha256(), path.stat().st_size - _CHECK_BYTES
    with path.open("rb") as stream:
        while left > 0 and (piece := stream.read(min(left, _READ_BYTES))):
            found.update(piece)
            left -= len(piece)
        tail = stream.read()
    check = _CHECK.match(tail)
    return check[1].decode() == found.hexdigest() if check else _UNCHECKED.search(tail) is not None


def listing_in(path: Path) -> str | None:
    """The listing that a record names; None where it names none."""
    with path.open("rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(max(0, size - _TAIL_BYTES))
        tail = stream.read()
    ends = list(_FILES_END.finditer(tail))
    if not ends:
        return None
    try:
        found = str(json.loads(b'{"files": {' + tail[ends[-1].start() :])["listing"])
    except (ValueError, KeyError):
        return None
    return found if is_digest(found) else None


def fingerprints_in(stream: BinaryIO) -> Iterator[tuple[str, str]]:
    """What fingerprints turned out to be, as a record says."""
    data = b""
    while more := stream.read(_READ_BYTES):
        data += more
        end = 0
        for found in _PAIR.finditer(data):
            end = found.end()
            yield found[1].decode(), found[2].decode()
        data = data[max(end, len(data) - _PAIR_BYTES) :]
