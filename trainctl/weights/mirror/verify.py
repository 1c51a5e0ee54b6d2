"""Verifying a mirror: every byte is hashed again, and what is wrong is repaired; what its source has no more goes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from trainctl.errors import Interrupted, SourceGone, SourceWrong, StorageError, TrainctlError
from trainctl.model.files import ListedFile, Listing
from trainctl.weights.mirror.contents import Contents
from trainctl.weights.mirror.directory import DirectoryMirror
from trainctl.weights.mirror.disk import explained
from trainctl.weights.mirror.fetch import Progress, Tally
from trainctl.weights.mirror.hashed import counted, hash_all
from trainctl.weights.mirror.layout import Layout, named_in
from trainctl.weights.mirror.mend import Mender, Origin, set_aside
from trainctl.weights.mirror.needs import Need, needs

_MOST_THREADS = 8
_AT_ONCE = 1000


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
        count, total = counted(layout)
        hashed = hash_all(layout, Tally(total, asked.progress), asked.parallelism)
        if asked.repair:
            hashed.leave_wrong(layout)
        wrong = {path.name for path in hashed.wrong}
        missing = [one for one in _missing(layout, found, listings) if one.name not in wrong]
        uses = _uses(found, listings, wrong | {path.name for path in missing})
        findings = [*_of_listings(damaged, found, repair=asked.repair)]
        findings += _of_packs(hashed.files, repair=asked.repair)
        with Mender(layout) as mender:
            for path, size in hashed.wrong.items():
                if path.name in uses or path not in hashed.doubtful:
                    its = uses.get(path.name, [])
                    findings.append(_settle(layout, mender, path, "changed", size, its, asked))
            for path in missing:
                its = uses[path.name]
                size = its[0].file.size
                findings.append(_settle(layout, mender, path, "missing", size, its, asked))
    return Verified(count, total, tuple(findings))


def _listings(layout: Layout) -> tuple[list[Listing], list[Path]]:
    """The listings that can be read, and the files of those that can't."""
    good, damaged = [], []
    for path in layout.listings():
        try:
            listing = layout.load_listing(path.stem)
        except StorageError:
            damaged.append(path)
            continue
        if listing is not None:
            good.append(listing)
    return good, damaged


def _referred(found: Sequence[Need], listings: Sequence[Listing]) -> Iterator[tuple[Need, Listing]]:
    by_id = {listing.id: listing for listing in listings}
    for need in found:
        yield from ((need, by_id[one]) for one in need.listings if one in by_id)


def _missing(layout: Layout, found: Sequence[Need], listings: Sequence[Listing]) -> list[Path]:
    """What is referred to and not there."""
    known = Contents(layout)
    referred = {listing.id: listing for _, listing in _referred(found, listings)}
    named = (file.sha256 for one in referred.values() for file in one.files)
    return [layout.blob(sha256) for sha256 in dict.fromkeys(named) if known.find(sha256) is None]


def _uses(
    found: Sequence[Need], listings: Sequence[Listing], contents: Set[str]
) -> dict[str, list[_Use]]:
    """By content, of those asked about, who refers to it and as which file."""
    uses: dict[str, list[_Use]] = {}
    for need, listing in _referred(found, listings):
        for file in listing.files:
            if file.sha256 in contents:
                uses.setdefault(file.sha256, []).append(_Use(need, listing, file))
    return uses


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


def _of_packs(damaged: Mapping[Path, str], *, repair: bool) -> Iterator[Finding]:
    """What is right in such a pack lies in another by now, and what isn't found there is missing."""
    for path, what in damaged.items():
        yield Finding(path, what, 0, (), Outcome.REPAIRED if repair else Outcome.WRONG)


def _settle(
    layout: Layout,
    mender: Mender,
    path: Path,
    what: str,
    size: int,
    uses: Sequence[_Use],
    asked: Verifying,
) -> Finding:
    """Repair one content from whoever has it still. It goes, with the listings that need it, where each of its sources has said that it
    has it no more; where one can't be asked nobody knows, and it stays."""
    sources = tuple(sorted({str(use.need.record.get("source")) for use in uses}))
    if not asked.repair:
        return Finding(path, what, size, sources, Outcome.WRONG)
    outcome, detail = _mended(mender, uses, asked)
    if outcome is Outcome.REMOVED:
        for listing in {use.listing.id for use in uses}:
            layout.listing(listing).unlink(missing_ok=True)
        if uses:
            set_aside(layout, uses[0].file)
        path.unlink(missing_ok=True)
    return Finding(path, what, size, sources, outcome, detail)


def _mended(mender: Mender, uses: Sequence[_Use], asked: Verifying) -> tuple[Outcome, str]:
    """What came of asking for a content: WRONG where somebody could not be asked, and why."""
    outcome, detail = Outcome.REMOVED, "" if uses else "nobody refers to it"
    # Whoever has it under several names is asked once.
    for use in {named_in(use.need.record): use for use in uses}.values():
        try:
            if asked.origins is None:
                break
            mender.mend(asked.origins(use.need.record), use.file)
        except Interrupted:
            raise
        except (SourceGone, SourceWrong) as error:
            detail = detail or error.summary
        except TrainctlError as error:
            outcome, detail = Outcome.WRONG, error.summary
        else:
            return Outcome.REPAIRED, ""
    return outcome, detail
