"""Transfer units: chunks of large files and complete small files, numbered."""

from __future__ import annotations

from typing import Iterable, Iterator, List, NamedTuple

from trainctl.base.listing import Chunk, ListedFile, Listing
from trainctl.base.network.object_server import MAX_PACKED_BYTES

_BATCH_BYTES = 8 * 2**30
_BATCH_LARGE_FILES = 128
_BATCH_MAX_FILES = 4096


class TransferUnit(NamedTuple):
    """One chunk of a file; ``number`` counts within the file."""

    file: ListedFile
    number: int
    chunk: Chunk

    @property
    def is_small(self) -> bool:
        """Whether it is a complete small file, which is fetched together with others."""
        return self.chunk.length == self.file.size < MAX_PACKED_BYTES


def units_of(file: ListedFile) -> List[TransferUnit]:
    """Units of a file, in order."""
    return [TransferUnit(file, number, chunk) for number, chunk in enumerate(file.chunk_ranges)]


def unit_lengths(listing: Listing) -> Iterator[int]:
    """Length of each unit of a listing, in order."""
    return (chunk.length for file in listing.unique_files for chunk in file.chunk_ranges)


def batches(files: Iterable[ListedFile]) -> Iterator[List[ListedFile]]:
    """Group the files into batches, which limits the number of open files.

    Batches depend on the listing only, not on what is missing, so that all nodes have the same: none waits in an
    early batch for what another fetches in a later one.
    """
    batch: List[ListedFile] = []
    size = large = 0
    for file in files:
        batch.append(file)
        size += file.size
        large += file.size >= MAX_PACKED_BYTES
        if size >= _BATCH_BYTES or large >= _BATCH_LARGE_FILES or len(batch) >= _BATCH_MAX_FILES:
            yield batch
            batch, size, large = [], 0, 0
    if batch:
        yield batch


def to_hex(present: Iterable[bool]) -> str:
    """Encode a bit per unit as a hex number, lowest bit first."""
    bits = bytearray()
    for number, is_present in enumerate(present):
        if number % 8 == 0:
            bits.append(0)
        bits[-1] |= is_present << number % 8
    return bits[::-1].hex().lstrip("0") or "0"


def from_hex(text: str, count: int) -> bytes:
    """Decode the bits of ``count`` units; ValueError if not a hex number."""
    even = text.zfill(-(-len(text) // 2) * 2)
    return bytes.fromhex(even)[::-1].ljust(-(-count // 8), b"\0")


def has_bit(bits: bytes, number: int) -> bool:
    """Check whether a unit is present."""
    return bool(bits[number >> 3] >> (number & 7) & 1)
