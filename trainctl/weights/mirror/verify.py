"""Verifying a mirror: every byte is hashed again, and what is wrong is repaired; what its source has no more goes."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from itertools import chain, count, groupby, islice, takewhile
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from trainctl.base import below
from trainctl.base.listing import ListedFile
from trainctl.base.packed import Arriving, packed_sorted
from trainctl.weights.mirror.afresh import Afresh, Origins, Refusal
from trainctl.weights.mirror.contents import Contents
from trainctl.weights.mirror.denied import denied_records
from trainctl.weights.mirror.directory import DirectoryMirror
from trainctl.weights.mirror.disk import explained
from trainctl.weights.mirror.fetch import LARGE_FROM_BYTES, SMALL_AT_ONCE, Progress, Tally
from trainctl.weights.mirror.hashed import Chunked, Wrong, counted, hash_all
from trainctl.weights.mirror.in_turn import in_turn
from trainctl.weights.mirror.layout import Layout
from trainctl.weights.mirror.lost_listings import Lost, lost_listings, repaired
from trainctl.weights.mirror.mend import Mender, set_aside, turned_out
from trainctl.weights.mirror.needs import Need, References, references

_MOST_THREADS = 8
WRONG_CHUNKS = "listing has wrong chunks"
"""What is wrong with a listing that is what its name says, and names other chunks of a content than it has."""
_AT_ONCE = 20_000
"""Contents that are lost are looked for in listings, and asked for, so many at a time."""


class Outcome(str, Enum):
    """What became of something wrong."""

    WRONG = "wrong"
    REPAIRED = "repaired"
    REMOVED = "removed"
    LEFT = "left"
    """It is none of the mirror's, and nothing is wrong with it."""

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


def findings_arriving() -> Arriving[Finding]:
    """Takes findings as they come, however many."""
    return Arriving(finding_row, finding_of)


def finding_row(finding: Finding) -> tuple[str, str, int, Sequence[str], str, str]:
    """A finding as plain values."""
    return (
        str(finding.path),
        finding.what,
        finding.bytes,
        finding.sources,
        finding.outcome.value,
        finding.detail,
    )


def finding_of(
    path: str, what: str, size: int, sources: Sequence[str], outcome: str, detail: str
) -> Finding:
    """The finding that was such values."""
    return Finding(Path(path), what, size, tuple(sources), Outcome(outcome), detail)


@dataclass(frozen=True)
class Verified:
    """What was looked at, and what was wrong."""

    blobs: int
    bytes: int
    findings: Sequence[Finding]

    @property
    def whole(self) -> bool:
        """Whether the mirror now holds all that is referred to, and nothing wrong."""
        right = (Outcome.REPAIRED, Outcome.LEFT)
        return all(finding.outcome in right for finding in self.findings)


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
    listing: str
    file: ListedFile


class _Lost(NamedTuple):
    """A content that is wrong or missing: ``what`` in words, where it lay or should lie, and its size as far as that is known.

    ``number`` is that in which it was found; ``doubtful`` as in ``Wrong``.
    """

    digest: bytes
    number: int
    what: str
    place: str
    size: int
    doubtful: bool

    @property
    def sha256(self) -> str:
        """As listings name it."""
        return self.digest.hex()


def verify(mirror: DirectoryMirror, asked: Verifying) -> Verified:
    """Hash every content and look for what listings miss. StorageError where the disk refuses."""
    layout = Layout(mirror.root, mirror.chunk_bytes)
    findings = findings_arriving()
    with explained(mirror.root):
        findings.add(_of_references(layout, asked))
        seen = references(layout)
        found = seen.needs
        lost_ones = list(_lost_listings(layout, seen, asked))
        findings.add(map(partial(_of_listing, layout), lost_ones))
        all_known = not (seen.damaged or any(map(_is_needed_still, lost_ones)))
        listings = _listings(layout, {one.listing_id for one in lost_ones if _is_wrong(one)})
        blobs, size = counted(layout)
        hashed = hash_all(layout, Tally(size, asked.progress), asked.parallelism)
        if asked.repair:
            hashed.leave_wrong(layout)
        findings.add(_of_packs(hashed.files, repair=asked.repair))
        findings.add(_of_records(layout, hashed.chunked, repair=asked.repair))
        denied: dict[str, str] = {}
        missing = _missing(layout, found, listings, hashed.chunked, denied)
        lost = iter(_each_once(chain(_changed(hashed.wrong), missing)))
        while some := list(islice(lost, _AT_ONCE)):
            uses = _uses(layout, found, listings, {one.sha256 for one in some})
            sure = (one for one in some if one.sha256 in uses or not one.doubtful)
            findings.add(_Settling(layout, asked, uses, all_known).run(sure))
        findings.add(_of_denied(layout, found, denied, repair=asked.repair))
        findings.add(_of_strays(layout))
    return Verified(blobs, size, findings.all())


def _listings(layout: Layout, lost: Set[str]) -> list[str]:
    """The ids of the listings that are right; what is written meanwhile is."""
    return [path.stem for path in layout.listings() if path.stem not in lost]


def _referred(found: Sequence[Need], listings: Sequence[str]) -> Iterator[tuple[Need, str]]:
    there = set(listings)
    for need in found:
        yield from ((need, one) for one in need.listings if one in there)


def _changed(wrong: Iterable[Wrong]) -> Iterator[_Lost]:
    for number, (place, digest, size, doubtful) in enumerate(wrong):
        yield _Lost(digest, number, "changed", place, size, doubtful)


def _missing(
    layout: Layout,
    found: Sequence[Need],
    listings: Sequence[str],
    chunked: Chunked,
    denied: dict[str, str],
) -> Iterator[_Lost]:
    """What is referred to and not there; after what has changed, as that may not be there any more.

    Listings that say other chunks of a content than it has are noted in ``denied``, with the path of one.
    """
    contents, numbers = Contents(layout), count(sys.maxsize // 2)
    for listing in dict.fromkeys(listing for _, listing in _referred(found, listings)):
        for file in layout.files_of(listing):
            if file.chunks and chunked.denies(file.sha256, file.chunks):
                denied.setdefault(listing, file.path)
            if contents.find(file.sha256) is None:
                digest, place = bytes.fromhex(file.sha256), str(layout.blob(file.sha256).parent)
                yield _Lost(digest, next(numbers), "missing", place, file.size, doubtful=False)


def _each_once(lost: Iterable[_Lost]) -> Sequence[_Lost]:
    """In the order in which they were found, all of them before the first is mended: what is missing once, and only if it hasn't changed, too."""
    alike = groupby(packed_sorted(lost, tuple, _Lost), key=attrgetter("digest"))
    kept = (one for _, some in alike for one in _kept(some))
    return packed_sorted(kept, lambda one: (one.number, *one), lambda _, *one: _Lost(*one))


def _kept(alike: Iterator[_Lost]) -> Iterator[_Lost]:
    first = next(alike)
    yield first
    yield from takewhile(lambda one: one.what == "changed", alike)


def _uses(
    layout: Layout, found: Sequence[Need], listings: Sequence[str], contents: Set[str]
) -> dict[str, list[_Use]]:
    """By content, of those asked about, who refers to it and as which file."""
    needs: dict[str, list[Need]] = {}
    for need, listing in _referred(found, listings):
        needs.setdefault(listing, []).append(need)
    uses: dict[str, list[_Use]] = {}
    for listing, its in needs.items():
        for file in layout.files_of(listing):
            if file.sha256 in contents:
                its_uses = (_Use(need, listing, file) for need in its)
                uses.setdefault(file.sha256, []).extend(its_uses)
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
    return repaired(layout, seen, lost, asked.origins, asked.own)


def _of_listing(layout: Layout, lost: Lost) -> Finding:
    path, outcome = layout.listing(lost.listing_id), Outcome(lost.outcome)
    return Finding(path, lost.what, 0, lost.sources, outcome, lost.detail)


def _is_needed_still(lost: Lost) -> bool:
    """Nobody knows then what of the mirror is needed."""
    return bool(lost.sources) and _is_wrong(lost)


def _is_wrong(lost: Lost) -> bool:
    return lost.outcome != Outcome.REPAIRED.value


def _of_packs(damaged: Mapping[Path, str], *, repair: bool) -> Iterator[Finding]:
    """What is right in such a pack lies in another by now, and what isn't found there is missing."""
    for path, what in damaged.items():
        yield Finding(path, what, 0, (), Outcome.REPAIRED if repair else Outcome.WRONG)


def _of_records(layout: Layout, chunked: Chunked, *, repair: bool) -> Iterator[Finding]:
    outcome = Outcome.REPAIRED if repair else Outcome.WRONG
    for path in denied_records(layout, chunked, repair=repair):
        yield Finding(path, "chunks changed", 0, (), outcome)


def _of_denied(
    layout: Layout, found: Sequence[Need], denied: Mapping[str, str], *, repair: bool
) -> Iterator[Finding]:
    """The right listing has another name, and the next apply writes it, by what is here."""
    for listing, path in denied.items():
        users = sorted({str(one.record.get("source")) for one in found if listing in one.listings})
        place, outcome = layout.listing(listing), Outcome.WRONG
        if repair:
            below.remove(layout.root, place)
            outcome = Outcome.REMOVED
        yield Finding(place, WRONG_CHUNKS, 0, tuple(users), outcome, path)


def _of_strays(layout: Layout) -> Iterator[Finding]:
    """What others have put where the mirror's own lies. Their names may be no text."""
    for one in layout.strays():
        name = os.fsencode(one.name).decode("utf-8", "backslashreplace")
        yield Finding(layout.root / name, "not the mirror's", one.size, (), Outcome.LEFT, name)


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
            for listing in {use.listing for use in uses}:
                below.remove(self.layout.root, self.layout.listing(listing))
            if uses:
                set_aside(self.layout, uses[0].file)
        findings = []
        for one in lost:
            path = Path(one.place, one.sha256)
            if outcome is Outcome.REMOVED:
                below.remove(self.layout.root, path)
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
