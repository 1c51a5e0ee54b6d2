"""Verifying a bucket: every object is read and hashed again, and what is wrong is fetched again, or goes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainctl.errors import StorageError, TrainctlError
from trainctl.model.files import ListedFile, Listing
from trainctl.weights.bucket import keys
from trainctl.weights.bucket.look import referred
from trainctl.weights.bucket.objects import Found
from trainctl.weights.bucket.repair import fetched_again
from trainctl.weights.bucket.shelf import Shelf, at_once
from trainctl.weights.mirror.fetch import Progress, Tally
from trainctl.weights.mirror.needs import Need
from trainctl.weights.mirror.port import Origins
from trainctl.weights.mirror.verify import Finding, Outcome, Verified

_AT_ONCE = 8


@dataclass(frozen=True)
class _Use:
    """An object that is a part of a listed file; ``need`` is None where no reference has the listing."""

    need: Need | None
    listing: Listing
    file: ListedFile
    offset: int
    length: int


def verify(shelf: Shelf, origins: Origins | None, progress: Progress | None) -> Verified:
    """Read every content and look for what listings miss; with ``origins`` it is repaired. StorageError where the bucket refuses."""
    found = referred(shelf)
    listings, damaged = _listings(shelf)
    uses = _uses(shelf, found, listings)
    blobs = list(shelf.objects.list(keys.BLOBS))
    wrong = _wrong(shelf, blobs, progress)
    there = {keys.stem(one.key) for one in blobs}
    findings = [_of_listing(shelf, one, found, repair=origins is not None) for one in damaged]
    for sha256, what in [
        *((keys.stem(one.key), "changed") for one in wrong),
        *((sha256, "missing") for sha256 in sorted(uses.keys() - there)),
    ]:
        size = next((one.size for one in wrong if keys.stem(one.key) == sha256), 0)
        findings.append(_settle(shelf, sha256, what, size, uses.get(sha256, []), origins))
    _mend_chunked(shelf, listings, repair=origins is not None)
    return Verified(len(blobs), sum(one.size for one in blobs), tuple(findings))


def _listings(shelf: Shelf) -> tuple[list[Listing], list[str]]:
    """The listings that can be read, and the ids of those that can't."""
    good, damaged = [], []
    for found in shelf.objects.list(keys.LISTINGS):
        try:
            listing = shelf.load_listing(keys.stem(found.key))
        except StorageError:
            damaged.append(keys.stem(found.key))
            continue
        if listing is not None:
            good.append(listing)
    return good, damaged


def _uses(
    shelf: Shelf, found: Sequence[Need], listings: Sequence[Listing]
) -> dict[str, list[_Use]]:
    """By content, which files it is or is a part of."""
    users = {one: need for need in found for one in need.listings}
    uses: dict[str, list[_Use]] = {}
    for listing in listings:
        for file in listing.files:
            for number, sha256 in enumerate(file.chunks or (file.sha256,)):
                offset = number * shelf.chunk_bytes
                length = min(shelf.chunk_bytes, file.size - offset)
                use = _Use(users.get(listing.id), listing, file, offset, length)
                uses.setdefault(sha256, []).append(use)
    return uses


def _wrong(shelf: Shelf, blobs: Sequence[Found], progress: Progress | None) -> list[Found]:
    tally = Tally(sum(one.size for one in blobs), progress)

    def look(found: Found) -> bool:
        data = shelf.objects.get(found.key)
        tally.add(found.size, 1)
        return data is None or hashlib.sha256(data).hexdigest() == keys.stem(found.key)

    right = at_once(look, blobs, _AT_ONCE)
    return [one for one, is_right in zip(blobs, right, strict=True) if not is_right]


def _of_listing(shelf: Shelf, listing_id: str, found: Sequence[Need], *, repair: bool) -> Finding:
    """A listing can't be repaired from itself: it goes, and the next apply writes it anew."""
    if repair:
        shelf.objects.delete([keys.listing(listing_id)])
    users = {str(need.record.get("source")) for need in found if listing_id in need.listings}
    outcome = Outcome.REMOVED if repair else Outcome.WRONG
    return Finding(
        Path(keys.listing(listing_id)), "listing changed", 0, tuple(sorted(users)), outcome
    )


def _settle(
    shelf: Shelf, sha256: str, what: str, size: int, uses: Sequence[_Use], origins: Origins | None
) -> Finding:
    """Repair one object from whoever has it still; else remove it and what needs it."""
    key = keys.blob(sha256)
    size = uses[0].length if uses else size
    needs = [use.need for use in uses if use.need is not None]
    sources = tuple(sorted({str(need.record.get("source")) for need in needs}))
    if origins is None:
        return Finding(Path(key), what, size, sources, Outcome.WRONG)
    detail = "" if needs else "nobody refers to it"
    for use in uses:
        if use.need is None:
            continue
        try:
            origin = origins(use.need.record)
            data = fetched_again(shelf, origin, use.file, use.offset, use.length, sha256)
        except TrainctlError as error:
            detail = error.summary
        else:
            shelf.objects.put(key, data)
            return Finding(Path(key), what, size, sources, Outcome.REPAIRED)
    shelf.objects.delete(_needing(uses))
    shelf.objects.delete([key])
    return Finding(Path(key), what, size, sources, Outcome.REMOVED, detail)


def _needing(uses: Iterable[_Use]) -> list[str]:
    """What must go before an object that can't be had again."""
    found = {keys.listing(use.listing.id) for use in uses}
    return sorted(found) + sorted(
        {keys.chunked(use.file.sha256) for use in uses if use.file.chunks}
    )


def _mend_chunked(shelf: Shelf, listings: Sequence[Listing], *, repair: bool) -> None:
    """What is said of larger contents must be what listings say; what isn't goes, and costs nobody anything that is there."""
    if not repair:
        return
    listed = {file.sha256: file for listing in listings for file in listing.files}
    named = [one for one in shelf.objects.list(keys.CHUNKED) if keys.stem(one.key) in listed]
    known = at_once(lambda one: _chunks(shelf, listed[keys.stem(one.key)]), named)
    wrong = [
        one.key
        for one, chunks in zip(named, known, strict=True)
        if chunks != listed[keys.stem(one.key)].chunks
    ]
    shelf.objects.delete(wrong)


def _chunks(shelf: Shelf, file: ListedFile) -> tuple[str, ...]:
    try:
        content = shelf.content(file.sha256, file.size)
    except StorageError:
        return ()
    return content.chunks if content else ()
