"""Serve weights to other nodes for as long as the caller is there: of this node's cache, or of a mirror here."""

from __future__ import annotations

from typing import Any, BinaryIO, Callable, Mapping

from trainctl.base.protocol.weights import Sent, ServeMirrorRequest, ServeRequest
from trainctl.node.cache.cache_shelf import CacheShelf
from trainctl.node.content.listing import given
from trainctl.node.system.layout import layout_of
from trainctl.node.transfer.caller import serve_others
from trainctl.node.transfer.shelf import ObjectShelf

Emit = Callable[[Mapping[str, Any]], None]


def serve(request: ServeRequest, emit: Emit, caller: BinaryIO) -> Sent:
    """See the house's DESIGN.md, and ``serve_others``."""
    shelf = CacheShelf(layout_of(request))
    listings = given(request["listings"], caller)
    told = {"holds": {one.id: shelf.holds(one) for one in listings}}
    return serve_others(shelf, request, emit, caller, told)


def serve_mirror(request: ServeMirrorRequest, emit: Emit, caller: BinaryIO) -> Sent:
    """Serve the content of a mirror in a directory, object by object. See ``serve_others``."""
    return serve_others(ObjectShelf(request["path"]), request, emit, caller)
