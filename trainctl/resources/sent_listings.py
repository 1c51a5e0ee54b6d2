"""Listings as they go to nodes: in a request, or, where one has very many files, as rows that follow it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainctl.base.listing import Listing
from trainctl.base.protocol.wire import sent

Request = Mapping[str, Any]


def with_listing(request: Request, listing: Listing | None) -> Request:
    """A request that is about a listing, if one is given."""
    return request if listing is None else {**request, "listing": _document(listing)}


def with_listings(request: Request, listings: Sequence[Listing]) -> Request:
    """A request that is about several."""
    return {**request, "listings": [_document(one) for one in listings]}


def following(*listings: Listing | None) -> Iterator[bytes]:
    """What follows such a request."""
    long = [one for one in listings if one is not None and _is_long(one)]
    return sent(one.rows() for one in long) if long else iter(())


def _document(listing: Listing) -> Mapping[str, Any] | None:
    """What stands in the request; None for what follows it."""
    return None if _is_long(listing) else json.loads(listing.to_bytes())


def _is_long(listing: Listing) -> bool:
    """Whether not all of it is in memory here either."""
    return not isinstance(listing.files, tuple)
