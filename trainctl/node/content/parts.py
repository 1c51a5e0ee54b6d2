"""What is fetched at once: a chunk of a large file, or a whole small one. Their order, and so their numbers, follow from the listing alone."""

from __future__ import annotations

from typing import Iterable, Iterator, List, NamedTuple

from trainctl.base.listing import Chunk, ListedFile, Listing

PACKED_BYTES = 2**20
"""Contents below this size travel in packs."""
_WINDOW_BYTES = 8 * 2**30
_WINDOW_FILES = 128
_WINDOW_SMALL = 4096


class Part(NamedTuple):
    """One chunk of a content; ``number`` counts within the file."""

    file: ListedFile
    number: int
    chunk: Chunk

    @property
    def packed(self) -> bool:
        """Whether it is a whole small file, which travels with others."""
        return self.chunk.length == self.file.size < PACKED_BYTES


def parts_of(file: ListedFile) -> List[Part]:
    """The parts of a file, in order."""
    return [Part(file, number, chunk) for number, chunk in enumerate(file.chunk_ranges)]


def lengths_of(listing: Listing) -> Iterator[int]:
    """The length of every part of a listing, in the one order that all nodes know: the first has number 0."""
    for file in listing.contents:
        for chunk in file.chunk_ranges:
            yield chunk.length


def windows(files: Iterable[ListedFile]) -> Iterator[List[ListedFile]]:
    """The contents in groups that are fetched one after another: each bounds what is open at once.

    They are cut by the listing and not by what is missing here, so that all nodes have the same: none waits in an
    early one for what another brings in a late one.
    """
    window: List[ListedFile] = []
    size = large = 0
    for file in files:
        window.append(file)
        size += file.size
        large += file.size >= PACKED_BYTES
        if size >= _WINDOW_BYTES or large >= _WINDOW_FILES or len(window) >= _WINDOW_SMALL:
            yield window
            window, size, large = [], 0, 0
    if window:
        yield window


def to_hex(present: Iterable[bool]) -> str:
    """One bit a part, the first the lowest."""
    bits = bytearray()
    for number, one in enumerate(present):
        if number % 8 == 0:
            bits.append(0)
        bits[-1] |= one << number % 8
    return bits[::-1].hex().lstrip("0") or "0"


def from_hex(text: str, count: int) -> bytes:
    """Which of so many parts, for ``is_in``; ValueError for what is no hex number."""
    even = text.zfill(-(-len(text) // 2) * 2)
    return bytes.fromhex(even)[::-1].ljust(-(-count // 8), b"\0")


def is_in(bits: bytes, number: int) -> bool:
    """Whether the part of that number is one of them."""
    return bool(bits[number >> 3] >> (number & 7) & 1)
