"""What a bucket's records say of files whose digests upstream announces in its own way: believed once the bytes were read back.

A pack is read whole, by one request; a few at a time are in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial

from trainctl.base.listing import Listing, ResolvedSource, SourceFile
from trainctl.weights.bucket import keys, packs
from trainctl.weights.bucket.packs import Place
from trainctl.weights.bucket.shelf import Shelf
from trainctl.weights.mirror.announced import is_that, is_told_by_reading
from trainctl.weights.mirror.fetch import parts
from trainctl.weights.mirror.in_turn import in_turn
from trainctl.weights.mirror.layout import Content, fingerprint

_AT_ONCE = 4


def proven(
    shelf: Shelf,
    groups: Mapping[str, Sequence[SourceFile]],
    found: Mapping[str, Content],
    in_packs: Collection[str],
) -> dict[str, Content]:
    """Of what was found of files, by fingerprint, what is theirs; what isn't, or isn't there, is to be fetched. ``in_packs``: where small ones are."""
    asked = {one: found[one] for one in found if is_told_by_reading(groups[one][0])}
    if not asked:
        return dict(found)
    small = {one.sha256 for one in asked.values() if shelf.is_small(one.size)}
    places = packs.find(shelf.objects, small, in_packs)
    together: dict[str, list[str]] = {}
    for one, content in asked.items():
        place = places.get(content.sha256)
        together.setdefault(place.pack if place else content.sha256, []).append(one)
    reading = partial(_right, shelf, groups, asked, places)
    right = {one for _, some in in_turn(reading, together.values(), _AT_ONCE) for one in some}
    return {one: content for one, content in found.items() if one in right or one not in asked}


def is_whole(shelf: Shelf, resolved: ResolvedSource, listing: Listing) -> bool:
    """Whether all that a listing says of a source, which it can be that of, is so; looked at once, as it costs as many requests as there are packs."""
    this = (listing.id, resolved.pin)
    if this not in shelf.proven and _is_whole(shelf, resolved, listing):
        shelf.proven.add(this)
    return this in shelf.proven


def _is_whole(shelf: Shelf, resolved: ResolvedSource, listing: Listing) -> bool:
    listed, in_packs = iter(listing.files), packs.hinted(shelf, listing.id)
    for part in parts(resolved):
        pairs = zip(part.files, listed, strict=False)
        told = [(file, one) for file, one in pairs if is_told_by_reading(file)]
        groups = {fingerprint(part, file): [file] for file, _ in told}
        contents = (Content(one.sha256, one.size, one.chunks) for _, one in told)
        found = dict(zip(groups, contents, strict=True))
        if len(proven(shelf, groups, found, in_packs)) < len(found):
            return False
    return True


def _right(
    shelf: Shelf,
    groups: Mapping[str, Sequence[SourceFile]],
    found: Mapping[str, Content],
    places: Mapping[str, Place],
    some: Sequence[str],
) -> list[str]:
    """Those that are what they are said to be, of some that lie together."""
    place = places.get(found[some[0]].sha256)
    pack = memoryview(b"" if place is None else shelf.objects.get(keys.blob(place.pack)) or b"")

    def pieces(content: Content) -> Iterator[bytes | memoryview]:
        at = places.get(content.sha256)
        if at is not None:
            yield pack[at.offset : at.offset + at.length]
            return
        for one in content.chunks or (content.sha256,):
            yield shelf.objects.get(keys.blob(one)) or b""

    return [one for one in some if is_that(groups[one][0], found[one].sha256, pieces(found[one]))]
