"""Files in which bits are wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from trainctl.errors import StorageError


def flip(path: Path, at: int = 0) -> None:
    """Flip a bit of one byte."""
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


def each_flipped(path: Path, every: int = 1) -> Iterator[int]:
    """Have one byte after another wrong, or some of them, and all right at last."""
    right = path.read_bytes()
    for at in range(0, len(right), every):
        flip(path, at)
        yield at
        path.write_bytes(right)


def noticed(path: Path, read: Callable[[], Mapping[str, object]]) -> int:
    """How many of its bytes, flipped one after another, are told as damage; what is read for all that is right."""
    right, told = read(), 0
    for _ in each_flipped(path):
        try:
            found = read()
        except StorageError as error:
            told += error.code == "mirror-damaged"
        else:  # in the name of the check itself
            assert found.items() >= right.items()
    return told
