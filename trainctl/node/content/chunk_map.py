"""The map beside a partial content: a byte for each chunk that says how much of it is here. See DESIGN.md, "Cache"."""

from __future__ import annotations

from trainctl.node.content.listing import CHUNK_BYTES

STEP_BYTES = 2**20
"""What is on its way is passed on in steps of so many bytes."""
ABSENT, VERIFIED = 0, 1


def arriving(length: int) -> int:
    """The mark of a chunk whose first ``length`` bytes have arrived and are not verified."""
    steps = length // STEP_BYTES
    return steps + VERIFIED if steps else ABSENT


def here(marks: bytes, offset: int, length: int) -> int:
    """How many of those bytes of a content may be read, from the first on."""
    at, end = offset, offset + length
    while at < end:
        number = at // CHUNK_BYTES
        mark = marks[number] if number < len(marks) else ABSENT
        if mark != VERIFIED:
            arrived = number * CHUNK_BYTES + max(0, mark - VERIFIED) * STEP_BYTES
            return max(at, min(arrived, end)) - offset
        at = (number + 1) * CHUNK_BYTES
    return length


def verified(marks: bytes, size: int) -> int:
    """How many bytes of a file of that size, whose end may be missing, are chunks that were verified."""
    starts = (number * CHUNK_BYTES for number, mark in enumerate(marks) if mark == VERIFIED)
    return sum(max(0, min(CHUNK_BYTES, size - start)) for start in starts)
