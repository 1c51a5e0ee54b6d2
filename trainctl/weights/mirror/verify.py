"""Verifying a mirror: every byte is hashed again, and what is wrong is repaired; what its source has no more goes."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from trainctl.errors import StorageError
from trainctl.model.files import ListedFile, Listing
from trainctl.weights.mirror.afresh import Afresh, Origins, Refusal
from trainctl.weights.mirror.contents import Contents
from trainctl.weights.mirror.directory import DirectoryMirror
from trainctl.weights.mirror.disk import explained
from trainctl.weights.mirror.fetch import LARGE_FROM_BYTES, SMALL_AT_ONCE, Progress, Tally
from trainctl.weights.mirror.hashed import Wrong, counted, hash_all
from trainctl.weights.mirror.in_turn import in_turn
from trainctl.weights.mirror.layout import Layout
from trainctl.weights.mirror.lost_listings import Lost, lost_listings, repaired
from trainctl.weights.mirror.mend import Mender, set_aside, turned_out
from trainctl.weights.mirror.needs import Need, References, references

_MOST_THREADS = 8
_AT_ONCE = 20_000
"""Contents that are lost are looked for in listings, and asked for, so many at a time."""


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
    origins: Origins | None = None
    progress: Progress | None = None
    own: Sequence[Mapping[str, object]] = ()
    """What the caller's own references say, should they be damaged."""
    parallelism: int = field(default_factory=lambda: min(_MOST_THREADS, os.cpu_count() or 1))


@dataclass(frozen=True)
class _Use:
    """A file of a listing that somebody refers to."""

    need: Need
    listing: Listing
    file: ListedFile


class _Lost(NamedTuple):
    """A content that is wrong or missing: ``what`` in words, where it lay or should lie, and its size as far as that is known."""

    place: Path
    digest: bytes
    what: str
    size: int

    @property
    def sha256(self) -> str:
        """As listings name it."""
        return self.digest.hex()


def verify(mirror: DirectoryMirror, asked: Verifying) -> Verified:
    """Hash every content and look for what listings miss. StorageError where the disk refuses."""
    layout = Layout(mirror.root, mirror.chunk_bytes)
    with explained(mirror.root):
        findings = list(_of_references(layout, asked))
        seen = references(layout)
        found = seen.needs
        lost_ones = list(_lost_listings(layout, seen, asked))
        findings += map(partial(_of_listing, layout), lost_ones)
        all_known = not (seen.damaged or any(map(_is_needed_still, lost_ones)))
        listings = _listings(layout)
        count, total = counted(layout)
        hashed = hash_all(layout, Tally(total, asked.progress), asked.parallelism)
        if asked.repair:
            hashed.leave_wrong(layout)
        findings += _of_packs(hashed.files, repair=asked.repair)
        lost = chain(_changed(hashed.wrong), _missing(layout, found, listings, hashed.wrong))
        while some := list(islice(lost, _AT_ONCE)):
            uses = _uses(found, listings, {one.sha256 for one in some})
            doubtful = {(one.place, one.digest) for one in hashed.wrong if one.doubtful}
            sure = (one for one in some if one.sha256 in uses or one[:2] not in doubtful)
            findings += _Settling(layout, asked, uses, all_known).run(sure)
    return Verified(count, total, tuple(findings))


def _listings(layout: Layout) -> list[Listing]:
    """The listings that can be read."""
    good = []
    for path in layout.listings():
        with suppress(StorageError):
            listing = layout.load_listing(path.stem)
            if listing is not None:
                good.append(listing)
    return good


def _referred(found: Sequence[Need], listings: Sequence[Listing]) -> Iterator[tuple[Need, Listing]]:
    by_id = {listing.id: listing for listing in listings}
    for need in found:
        yield from ((need, by_id[one]) for one in need.listings if one in by_id)


def _changed(wrong: Iterable[Wrong]) -> Iterator[_Lost]:
    return (_Lost(one.place, one.digest, "changed", one.size) for one in wrong)


def _missing(
    layout: Layout, found: Sequence[Need], listings: Sequence[Listing], wrong: Iterable[Wrong]
) -> Iterator[_Lost]:
    """What is referred to and not there; looked for at once, as what is repaired is there then."""
    contents, known = Contents(layout), {one.digest for one in wrong}
    missing: dict[bytes, int] = {}
    for listing in {listing.id: listing for _, listing in _referred(found, listings)}.values():
        for file in listing.files:
            if contents.find(file.sha256) is None:
                missing[bytes.fromhex(file.sha256)] = file.size
    for digest, size in missing.items():
        if digest not in known:
            yield _Lost(layout.blob(digest.hex()).parent, digest, "missing", size)


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


def _of_references(layout: Layout, asked: Verifying) -> Iterator[Finding]:
    """One's own are written anew; only its project knows what another says. StorageError where one may not be read."""
    seen = references(layout)
    for problem in seen.hidden:
        raise problem
    own = {layout.reference(str(one["lineage"]), str(one["address"])): one for one in asked.own}
    for path in seen.damaged:
        repaired = asked.repair and path in own
        if repaired:
            layout.prepare()
            layout.write_reference(own[path])
        outcome = Outcome.REPAIRED if repaired else Outcome.WRONG
        users = (str(own[path]["source"]),) if path in own else ()
        yield Finding(path, "reference changed", 0, users, outcome)


def _lost_listings(layout: Layout, seen: References, asked: Verifying) -> Iterable[Lost]:
    """Before contents, as they say what is right."""
    lost = lost_listings(layout, seen)
    if asked.origins is None or not asked.repair:
        return lost
    return repaired(layout, seen, lost, asked.origins)


def _of_listing(layout: Layout, lost: Lost) -> Finding:
    path, outcome = layout.listing(lost.listing_id), Outcome(lost.outcome)
    return Finding(path, lost.what, 0, lost.sources, outcome, lost.detail)


def _is_needed_still(lost: Lost) -> bool:
    """Nobody knows then what of the mirror is needed."""
    return bool(lost.sources) and lost.outcome != Outcome.REPAIRED.value


def _of_packs(damaged: Mapping[Path, str], *, repair: bool) -> Iterator[Finding]:
    """What is right in such a pack lies in another by now, and what isn't found there is missing."""
    for path, what in damaged.items():
        yield Finding(path, what, 0, (), Outcome.REPAIRED if repair else Outcome.WRONG)


@dataclass(frozen=True)
class _Settling:
    """What becomes of some contents that are lost. ``uses`` are theirs, by sha256; ``all_known``: there are no others, as
    whoever has a damaged reference, or a lost listing, may need what nobody else does.
    """

    layout: Layout
    asked: Verifying
    uses: Mapping[str, Sequence[_Use]]
    all_known: bool
    _halt: threading.Event = field(default_factory=threading.Event)

    def run(self, lost: Iterable[_Lost]) -> Iterator[Finding]:
        """Small ones many at a time; of large ones memory holds a chunk. All is in the mirror when it has ended."""
        places: dict[str, list[_Lost]] = {}
        for one in lost:
            places.setdefault(one.sha256, []).append(one)
        small = {name for name, its in places.items() if its[0].size <= LARGE_FROM_BYTES}
        with Mender(self.layout, self._halt) as mender:
            act = partial(self._settled, mender, self._afresh())
            for some, most in ((small, SMALL_AT_ONCE), (places.keys() - small, 1)):
                these = (its for name, its in places.items() if name in some)
                for _, findings in in_turn(act, these, most, self._halt):
                    yield from findings

    def _afresh(self) -> Afresh | None:
        if self.asked.origins is None:
            return None
        wanted = self.uses.keys()
        recorded = partial(turned_out, self.layout, wanted)
        return Afresh(self.asked.origins, wanted, recorded, self._halt)

    def _settled(
        self, mender: Mender, afresh: Afresh | None, lost: Sequence[_Lost]
    ) -> list[Finding]:
        """One content, wherever it lay. It goes, with the listings that need it, where each of its sources has said that it has it no
        more; where one can't be asked nobody knows, and it stays."""
        uses = self.uses.get(lost[0].sha256, ())
        sources = tuple(sorted({str(use.need.record.get("source")) for use in uses}))
        outcome, detail = Outcome.WRONG, ""
        if self.asked.repair and (uses or self.all_known):
            outcome, detail = self._mended(mender, afresh, uses)
        if outcome is Outcome.REMOVED:
            for listing in {use.listing.id for use in uses}:
                self.layout.listing(listing).unlink(missing_ok=True)
            if uses:
                set_aside(self.layout, uses[0].file)
        findings = []
        for one in lost:
            path = one.place / one.sha256
            if outcome is Outcome.REMOVED:
                path.unlink(missing_ok=True)
            findings.append(Finding(path, one.what, one.size, sources, outcome, detail))
        return findings

    def _mended(
        self, mender: Mender, afresh: Afresh | None, uses: Sequence[_Use]
    ) -> tuple[Outcome, str]:
        """What came of asking for a content: WRONG where somebody could not be asked, and why."""
        if uses and mender.has(uses[0].file):
            return Outcome.REPAIRED, ""
        refused: Refusal | None = Refusal(is_gone=True, why="")
        if afresh is not None:
            known = ((use.need.record, use.file, use.file) for use in uses)
            refused = afresh.ask(known, mender.mend)
        if refused is None:
            return Outcome.REPAIRED, ""
        return Outcome.REMOVED if refused.is_gone else Outcome.WRONG, refused.why
