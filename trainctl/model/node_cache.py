"""What nodes' caches of weights hold and what became of it, as values that are shown."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CachedListing:
    """A listing in a node's cache and what was done about it.

    ``outcome`` is evicted, leased or busy; of a verification whole, dropped or wrong. ``last_used`` is in Unix seconds.
    """

    node: str
    id: str
    source: str
    files: int
    bytes: int
    outcome: str
    last_used: float | None = None
    leased_by: tuple[str, ...] = ()
    wrong_files: tuple[str, ...] = ()
    detail: str = ""


@dataclass(frozen=True, slots=True)
class CacheReport:
    """What became of the caches: ``freed`` in bytes, ``hashed`` those that were read again; ``silent`` nodes with why they could not be asked."""

    listings: tuple[CachedListing, ...]
    freed: int = 0
    hashed: int = 0
    silent: tuple[tuple[str, str], ...] = ()
