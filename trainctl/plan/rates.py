"""How fast weights moved before, as far as what is on record tells how fast they will."""

from __future__ import annotations

from collections.abc import Iterable

from trainctl.ledger.state import State

_LARGE = 16 * 10**6
_LONG_SECONDS, _SOME = 1.0, 10**6
"""What takes as long tells a rate of a slow line from this size on; what is smaller took its time for something else."""


def rate_of(transfers: Iterable[tuple[int, float]]) -> float | None:
    """Bytes a second, as the largest of the transfers (bytes, seconds) showed; None where none was large, or slow."""
    telling = (
        (size, seconds)
        for size, seconds in transfers
        if seconds and (size >= _LARGE or (size >= _SOME and seconds >= _LONG_SECONDS))
    )
    size, seconds = max(telling, default=(0, 0.0))
    return size / seconds if size else None


def into_mirror(state: State) -> float | None:
    """The rate from upstream into the mirror."""
    fetched = (
        one.outputs["fetched"] for one in state.resources.values() if "fetched" in one.outputs
    )
    return rate_of((one["bytes"], one["seconds"]) for one in fetched)
