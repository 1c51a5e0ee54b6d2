"""The map of a partial content, and what is handed out by it."""

from __future__ import annotations

import pytest

from trainctl.node.content.chunk_map import STEP_BYTES, arriving, here
from trainctl.node.content.listing import CHUNK_BYTES


@pytest.mark.parametrize(
    ("marks", "offset", "length", "count"),
    [
        (b"", 0, 100, 0),
        (b"\0\1", 0, 100, 0),
        (b"\1\0", 0, CHUNK_BYTES, CHUNK_BYTES),
        (b"\1\0", 5, 2 * CHUNK_BYTES, CHUNK_BYTES - 5),
        (b"\1\1", 5, CHUNK_BYTES, CHUNK_BYTES),
        (b"\4", 0, CHUNK_BYTES, 3 * STEP_BYTES),
        (b"\4", 2 * STEP_BYTES, CHUNK_BYTES - 2 * STEP_BYTES, STEP_BYTES),
        (b"\4", 3 * STEP_BYTES, 10, 0),
        (b"\4", 4 * STEP_BYTES, 10, 0),
        (b"\1\3", 0, 2 * CHUNK_BYTES, CHUNK_BYTES + 2 * STEP_BYTES),
        (b"\1", CHUNK_BYTES + 7, 10, 0),
    ],
)
def test_what_is_here(marks: bytes, offset: int, length: int, count: int) -> None:
    """Verified chunks, and the beginning of one that is arriving, as far as they follow each other from the offset on."""
    assert here(marks, offset, length) == count


def test_a_chunk_that_arrives_is_never_taken_for_a_verified_one() -> None:
    """Whatever has come of it: less than a MiB says nothing, more says how many."""
    marks = [arriving(length) for length in (0, STEP_BYTES - 1, STEP_BYTES, CHUNK_BYTES)]

    assert marks == [0, 0, 2, 17]
