"""Which contents of a mirror references keep. Nothing may go where that can't be told."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Mapping

from trainctl.base.listing import Listing
from trainctl.errors import StorageError
from trainctl.node.content.digests import Digests
from trainctl.weights.mirror.condemned import own_name
from trainctl.weights.mirror.layout import DAMAGED, Layout
from trainctl.weights.mirror.needs import Need

Places = Mapping[str, Path]
"""Where listings lie that are condemned, by their ids."""


class Keeping:
    """The contents that references keep, by sha256: what their listings name and, as long as one of them has none yet, what no listing
    names: that is what has come for it so far.

    ``going`` are the listings that nobody keeps, wherever they lie. Very seldom a content is said to be kept that isn't, or one that came for
    a source that isn't whole not to be: the former stays for a while, the latter comes again. StorageError where a kept listing can't be read.
    """

    def __init__(
        self, layout: Layout, found: Sequence[Need], going: Iterable[Path], places: Places
    ) -> None:
        self.is_unfinished = any(need.record.get("listing") is None for need in found)
        self._named = _named(kept_listings(layout, found, places))
        self._free = _named(readable(layout, going) if self.is_unfinished else ())

    def __contains__(self, sha256: str) -> bool:
        return sha256 in self._named or (self.is_unfinished and sha256 not in self._free)


def kept_listings(layout: Layout, found: Iterable[Need], places: Places) -> Iterator[Listing]:
    """The listings that references name. StorageError where one is missing or damaged: nobody knows what else has to stay."""
    kept = {listing_id: need for need in found for listing_id in need.listings}
    for listing_id, need in kept.items():
        try:
            listing = layout.load_listing(listing_id, places.get(listing_id))
        except StorageError as error:
            raise not_known(need, error.summary) from None
        if listing is None:
            raise not_known(need, f"{layout.listing(listing_id)} is missing")
        yield listing


def require_listings(layout: Layout, found: Iterable[Need]) -> None:
    """See ``kept_listings``."""
    for _ in kept_listings(layout, found, {}):
        pass


def not_known(need: Need, why: str, place: str = "") -> StorageError:
    """What a reference keeps can't be told, as its listing can't be read; ``place`` is what its path begins with."""
    record = need.record
    return StorageError(
        f"{why}: nobody knows what {record.get('source')} for {record.get('address')} of {record.get('project')} keeps",
        "Nothing was deleted. trainctl mirror verify --repair writes the listing anew, or else an apply in that project. "
        f"If the project is no more, remove its reference: {place}{need.path}",
        code=DAMAGED,
    )


def _named(listings: Iterable[Listing]) -> Digests:
    return Digests(file.sha256 for listing in listings for file in listing.files)


def readable(layout: Layout, paths: Iterable[Path]) -> Iterator[Listing]:
    """Those of some listings that can be read, wherever they lie."""
    for path in paths:
        with contextlib.suppress(StorageError):
            listing = layout.load_listing(Path(own_name(path)).stem, path)
            if listing is not None:
                yield listing
