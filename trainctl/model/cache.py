"""A training cache's content, as values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CachedFile:
    """A file, directory or link in a cache: its path there, bytes (of a directory, of all below it), mtime, ``st_mode``."""

    path: str
    size: int
    modified: float
    mode: int


@dataclass(frozen=True, slots=True)
class CacheContent:
    """What a cache holds on a node. ``at`` is when it was looked at, in Unix seconds; ``limit`` the declared size, in bytes."""

    address: str
    node: str
    directory: str
    at: float
    files: int
    bytes: int
    entries: tuple[CachedFile, ...]
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Cleared:
    """What was removed from a cache, or with ``dry_run`` would be; ``left`` counts files that could not be."""

    directory: str
    files: int
    bytes: int
    left: int
    dry_run: bool


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
