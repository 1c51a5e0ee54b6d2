"""Parts of a listing: what is fetched at once, a chunk of a large file or a whole file of one chunk.

Their order, and so their numbers, follow from the listing alone.
"""

from __future__ import annotations

from typing import Iterable, Iterator, List, NamedTuple

from trainctl.base.listing import Chunk, ListedFile, Listing
from trainctl.base.network.object_server import MAX_PACKED_BYTES

_WINDOW_BYTES = 8 * 2**30
_WINDOW_FILES = 128
_WINDOW_MAX_FILES = 4096


class TransferUnit(NamedTuple):
    """One chunk of a content; ``number`` counts within the file."""

    file: ListedFile
    number: int
    chunk: Chunk

    @property
    def is_small(self) -> bool:
        """Whether it is a whole file that is fetched together with others."""
        return self.chunk.length == self.file.size < MAX_PACKED_BYTES


def units_of(file: ListedFile) -> List[TransferUnit]:
    """The parts of a file, in order."""
    return [TransferUnit(file, number, chunk) for number, chunk in enumerate(file.chunk_ranges)]


def unit_lengths(listing: Listing) -> Iterator[int]:
    """The length of every part of a listing, in order."""
    return (chunk.length for file in listing.unique_files for chunk in file.chunk_ranges)


def windows(files: Iterable[ListedFile]) -> Iterator[List[ListedFile]]:
    """The contents in groups that are fetched one after another: each bounds how many files are open at once.

    They are cut by the listing and not by what is missing here, so that all nodes have the same: none waits in an
    early one for what another fetches in a late one.
    """
    window: List[ListedFile] = []
    size = large = 0
    for file in files:
        window.append(file)
        size += file.size
        large += file.size >= MAX_PACKED_BYTES
        if size >= _WINDOW_BYTES or large >= _WINDOW_FILES or len(window) >= _WINDOW_MAX_FILES:
            yield window
            window, size, large = [], 0, 0
    if window:
        yield window


def to_hex(present: Iterable[bool]) -> str:
    """One bit per part, the first the lowest."""
    bits = bytearray()
    for number, is_there in enumerate(present):
        if number % 8 == 0:
            bits.append(0)
        bits[-1] |= is_there << number % 8
    return bits[::-1].hex().lstrip("0") or "0"


def from_hex(text: str, count: int) -> bytes:
    """The bits of ``count`` parts, for ``has_bit``; ValueError if it is not a hex number."""
    even = text.zfill(-(-len(text) // 2) * 2)
    return bytes.fromhex(even)[::-1].ljust(-(-count // 8), b"\0")


def has_bit(bits: bytes, number: int) -> bool:
    """Whether the part of that number is there."""
    return bool(bits[number >> 3] >> (number & 7) & 1)
