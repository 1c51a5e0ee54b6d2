"""Verifying a mirror: every byte is hashed again, and what is wrong is repaired, or goes so that it is fetched again."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from trainctl.errors import StorageError, TrainctlError
from trainctl.model.files import ListedFile, Listing
from trainctl.weights.mirror.directory import DirectoryMirror
from trainctl.weights.mirror.disk import explained
from trainctl.weights.mirror.fetch import Progress, Tally
from trainctl.weights.mirror.hashing import file_sha256
from trainctl.weights.mirror.layout import Layout
from trainctl.weights.mirror.mend import Origin, mend
from trainctl.weights.mirror.needs import Need, needs

_MOST_THREADS = 8


class Outcome(str, Enum):
    """What became of something wrong."""

    WRONG = "wrong"
    REPAIRED = "repaired"
    REMOVED = "removed"

    __str__ = str.__str__


@dataclass(frozen=True)
class Finding:
    """Something wrong: ``what`` in words, and whose it is. ``path`` lies in the mirror; ``bytes`` are those to be had again."""

    path: Path
    what: str
    bytes: int
    sources: tuple[str, ...]
    outcome: Outcome
    detail: str = ""


@dataclass(frozen=True)
class Verified:
    """What was looked at, and what was wrong."""

    blobs: int
    bytes: int
    findings: tuple[Finding, ...]

    @property
    def whole(self) -> bool:
        """Whether the mirror now holds all that is referred to, and nothing wrong."""
        return all(finding.outcome is Outcome.REPAIRED for finding in self.findings)


@dataclass(frozen=True)
class Verifying:
    """What is asked for. ``origins`` finds, for the source of a reference, where its bytes come from, if it can be asked."""

    repair: bool = False
    origins: Callable[[Mapping[str, object]], Origin] | None = None
    progress: Progress | None = None
    parallelism: int = field(default_factory=lambda: min(_MOST_THREADS, os.cpu_count() or 1))


@dataclass(frozen=True)
class _Use:
    """A file of a listing that somebody refers to."""

    need: Need
    listing: Listing
    file: ListedFile


def verify(mirror: DirectoryMirror, asked: Verifying) -> Verified:
    """Hash every content and look for what listings miss. StorageError where the disk refuses."""
    layout = Layout(mirror.root, mirror.chunk_bytes)
    with explained(mirror.root):
        found = needs(layout)
        listings, damaged = _listings(layout)
        uses = _uses(found, listings)
        blobs = sorted(layout.root.glob("blobs/sha256/*/*"))
        sizes = {path: path.stat().st_size for path in blobs}
        wrong = _wrong(blobs, sizes, asked)
        missing = [layout.blob(one) for one in uses if not layout.blob(one).exists()]
        expected = {file.sha256: file.size for one in listings for file in one.files}
        findings = [*_of_listings(damaged, found, repair=asked.repair)]
        for path, what in [
            *((path, "changed") for path in wrong),
            *((p, "missing") for p in missing),
        ]:
            size = expected.get(path.name, sizes.get(path, 0))
            findings.append(_settle(layout, path, what, size, uses.get(path.name, []), asked))
    return Verified(len(blobs), sum(sizes.values()), tuple(findings))


def _listings(layout: Layout) -> tuple[list[Listing], list[Path]]:
    """The listings that can be read, and the files of those that can't."""
    good, damaged = [], []
    for path in sorted(layout.root.glob("listings/*.json")):
        try:
            listing = layout.load_listing(path.stem)
        except StorageError:
            damaged.append(path)
            continue
        if listing is not None:
            good.append(listing)
    return good, damaged


def _uses(found: Sequence[Need], listings: Sequence[Listing]) -> dict[str, list[_Use]]:
    """By content, who refers to it and as which file."""
    by_id = {listing.id: listing for listing in listings}
    uses: dict[str, list[_Use]] = {}
    for need in found:
        for listing in (by_id[one] for one in need.listings if one in by_id):
            for file in listing.files:
                uses.setdefault(file.sha256, []).append(_Use(need, listing, file))
    return uses


def _wrong(blobs: Sequence[Path], sizes: Mapping[Path, int], asked: Verifying) -> list[Path]:
    tally = Tally(sum(sizes.values()), asked.progress)

    def look(path: Path) -> bool:
        right = file_sha256(path) in (path.name, None)
        tally.add(sizes[path], 1)
        return right

    with ThreadPoolExecutor(max(1, asked.parallelism), thread_name_prefix="verify") as pool:
        return [path for path, right in zip(blobs, pool.map(look, blobs)) if not right]


def _of_listings(
    damaged: Sequence[Path], found: Sequence[Need], *, repair: bool
) -> Iterator[Finding]:
    """A listing can't be repaired from itself: it goes, and the next apply writes it anew."""
    for path in damaged:
        if repair:
            path.unlink(missing_ok=True)
        outcome = Outcome.REMOVED if repair else Outcome.WRONG
        users = {str(need.record.get("source")) for need in found if path.stem in need.listings}
        yield Finding(path, "listing changed", 0, tuple(sorted(users)), outcome)


def _settle(
    layout: Layout, path: Path, what: str, size: int, uses: Sequence[_Use], asked: Verifying
) -> Finding:
    """Repair one content from whoever has it still; else remove it and the listings that need it."""
    sources = tuple(sorted({str(use.need.record.get("source")) for use in uses}))
    if not asked.repair:
        return Finding(path, what, size, sources, Outcome.WRONG)
    detail = "" if uses else "nobody refers to it"
    for use in uses:
        try:
            if asked.origins is None:
                break
            mend(layout, asked.origins(use.need.record), use.file, threading.Event())
        except TrainctlError as error:
            detail = error.summary
        else:
            return Finding(path, what, size, sources, Outcome.REPAIRED)
    for listing in {use.listing.id for use in uses}:
        layout.listing(listing).unlink(missing_ok=True)
    path.unlink(missing_ok=True)
    return Finding(path, what, size, sources, Outcome.REMOVED, detail)
