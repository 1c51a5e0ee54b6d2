"""Listings that are lost, written anew from what else is known: their content is all there, and nobody can say so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainctl.base.listing import ListedFile, Listing, ResolvedSource, listed_in_order
from trainctl.weights.bucket import keys, long, packs
from trainctl.weights.bucket.disk_map import DiskMap
from trainctl.weights.bucket.look import Looking
from trainctl.weights.bucket.shelf import Shelf
from trainctl.weights.mirror.fetch import by_fingerprint, parts
from trainctl.weights.mirror.layout import fingerprint


def listed_anew(
    shelf: Shelf, resolved: ResolvedSource, record: Mapping[str, Any], listing_id: str
) -> bool:
    """Put the listing of a source at a reference's pin, if that is the one of that id: then it is right, whatever it was made from.

    ``resolved`` may have files that patterns left out: which were mirrored is what the source's record says.
    """
    mirrored = DiskMap()
    with long.opened(shelf.objects, keys.record_at(resolved, str(record.get("pin")))) as path:
        if path is not None:
            with path.open("rb") as stream:
                mirrored.update(long.fingerprints_in(stream))
    in_packs: set[str] = set()
    files = _files(Looking(shelf, resolved), resolved, mirrored, in_packs)
    listing = Listing(listed_in_order(files))
    if listing.id != listing_id:
        return False
    if in_packs:
        shelf.objects.put(keys.packs(listing_id), packs.hint(in_packs))
    long.put(shelf.objects, keys.listing(listing_id), listing.pieces())
    return True


def _files(
    looking: Looking, resolved: ResolvedSource, mirrored: DiskMap, in_packs: set[str]
) -> Iterator[ListedFile]:
    """Those that were mirrored and are there; ``in_packs`` learns where the small ones are."""
    for part in parts(resolved):
        groups = by_fingerprint(part)
        wanted = mirrored.find(groups)
        here = looking.have({one: files for one, files in groups.items() if one in wanted})
        in_packs |= here.packs
        for file in part.files:
            content = here.contents.get(fingerprint(part, file))
            if content is not None:
                yield content.listed(file.path)
