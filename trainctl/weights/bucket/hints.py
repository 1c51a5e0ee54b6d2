"""In which packs the small files of listings are said to be, held against the packs that there are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from functools import partial
from itertools import islice

from trainctl.weights.bucket import keys, packs
from trainctl.weights.bucket.disk_set import digest
from trainctl.weights.bucket.in_packs import InPacks
from trainctl.weights.bucket.shelf import Shelf
from trainctl.weights.mirror.in_turn import in_turn
from trainctl.weights.mirror.layout import unless_damaged

_FILES_AT_ONCE = 20_000


def wrong_hints(shelf: Shelf, listings: Iterable[str]) -> Iterator[str]:
    """The listings of which nonsense is said, or that files are in a pack that isn't there."""
    there = {digest(keys.stem(one.key)) for one in shelf.objects.list(keys.SLICES)}
    for listing_id, wrong in in_turn(partial(_is_wrong, shelf, there), listings):
        if wrong:
            yield listing_id


def _is_wrong(shelf: Shelf, there: Set[bytes], listing_id: str) -> bool:
    """A collection may say something else meanwhile."""
    data = shelf.objects.get(keys.packs(listing_id))
    if data is None:
        return False
    named = packs.hinted(shelf, listing_id)
    new = (one for one in named if digest(one) not in there)
    wrong = data != packs.hint(named) or any(not _is_there(shelf, one) for one in new)
    return wrong and data == shelf.objects.get(keys.packs(listing_id))


def _is_there(shelf: Shelf, pack: str) -> bool:
    return shelf.objects.head(keys.slices(pack)) is not None


def put_anew(shelf: Shelf, listings: Iterable[str]) -> None:
    """Say where their small files are."""
    every = None
    for listing_id in listings:
        listing = unless_damaged(partial(shelf.read_listing, listing_id))
        if listing is None:
            continue
        if every is None:
            there = {keys.stem(one.key) for one in shelf.objects.list(keys.SLICES)}
            every = InPacks(shelf.objects, there)
        found: set[str] = set()
        files = iter(listing.files)
        while some := list(islice(files, _FILES_AT_ONCE)):
            found.update(every.known(one.sha256 for one in some if not one.chunks).values())
        if found:
            shelf.objects.put(keys.packs(listing_id), packs.hint(found))
        else:
            shelf.objects.delete([keys.packs(listing_id)])
