"""What is fetched at once: a chunk of a large file, or a whole small one. Their order, and so their numbers, follow from the listing alone."""

from __future__ import annotations

from typing import Dict, Iterable, Iterator, List, NamedTuple, Sequence, Tuple

from trainctl.node.content.listing import File, Listing, Piece

PACKED_BYTES = 2**20
"""Contents below this size travel in packs."""
_WINDOW_BYTES = 8 * 2**30
_WINDOW_FILES = 128
_WINDOW_SMALL = 4096

Name = Tuple[str, int]
"""A content's sha256 and the number of one of its chunks."""


class Part(NamedTuple):
    """One chunk of a content; ``number`` counts within the file."""

    file: File
    number: int
    piece: Piece

    @property
    def name(self) -> Name:
        """What tells it from every other."""
        return self.file.sha256, self.number

    @property
    def packed(self) -> bool:
        """Whether it is a whole small file, which travels with others."""
        return self.piece.length == self.file.size < PACKED_BYTES


def parts_of(file: File) -> List[Part]:
    """The parts of a file, in order."""
    return [Part(file, index, piece) for index, piece in enumerate(file.pieces)]


def names_of(listing: Listing) -> Iterator[Tuple[Name, int]]:
    """The name and length of every part of a listing, in the one order that all nodes know."""
    for file in listing.contents:
        for index, piece in enumerate(file.pieces):
            yield (file.sha256, index), piece.length


def windows(files: Iterable[File]) -> Iterator[List[File]]:
    """The contents in groups that are fetched one after another: each bounds what is open at once.

    They are cut by the listing and not by what is missing here, so that all nodes have the same: none waits in an
    early one for what another brings in a late one.
    """
    window: List[File] = []
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


def to_hex(present: Sequence[bool]) -> str:
    """One bit a part, the first the lowest."""
    return f"{int(''.join('1' if one else '0' for one in reversed(present)) or '0', 2):x}"


def from_hex(text: str, names: Sequence[Name]) -> Dict[Name, bool]:
    """Which of the parts; ValueError for what is no hex number."""
    bits = bin(int(text or "0", 16))[:1:-1]
    return {name: index < len(bits) and bits[index] == "1" for index, name in enumerate(names)}
