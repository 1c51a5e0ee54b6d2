"""The verb ``serve``: this node hands out what it has of some listings, for as long as its caller is there."""

from __future__ import annotations

from typing import Any, BinaryIO, Callable, Mapping

from trainctl.base.protocol.weights import Sent, ServeRequest
from trainctl.node.cache.cache_shelf import CacheShelf
from trainctl.node.content.listing import given
from trainctl.node.system.layout import layout_of
from trainctl.node.transfer.caller import serve_others

Emit = Callable[[Mapping[str, Any]], None]


def serve(request: ServeRequest, emit: Emit, caller: BinaryIO) -> Sent:
    """See the house's DESIGN.md, and ``serve_others``."""
    shelf = CacheShelf(layout_of(request))
    listings = given(request["listings"], caller)
    told = {"holds": {one.id: shelf.holds(one) for one in listings}}
    return serve_others(shelf, request, emit, caller, told)
