"""A run's log, as values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Piece:
    """Lines of one rank that were written at one time, in Unix seconds, each without its end.

    ``open`` says that the last of them goes on in the next piece, ``left_out`` how many bytes before this one are gone.
    """

    rank: int
    time: float
    lines: tuple[str, ...] = ()
    open: bool = False
    left_out: int = 0
    prepared_by: str = ""
    """The run that filled the training cache, in words, where it was not this one; it has the lines."""
