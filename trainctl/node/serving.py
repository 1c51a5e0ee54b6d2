"""The verb ``serve``: this node hands out what it has of some listings, for as long as its caller is there."""

from __future__ import annotations

from typing import Any, BinaryIO, Callable, Dict, Mapping

from trainctl.node.cache_shelf import CacheShelf
from trainctl.node.caller import own_address, until_gone
from trainctl.node.failure import Failure
from trainctl.node.layout import layout_of
from trainctl.node.listing import parse
from trainctl.node.server import BlobServer, serving

Emit = Callable[[Dict[str, Any]], None]


def serve(request: Mapping[str, Any], emit: Emit, caller: BinaryIO) -> Dict[str, Any]:
    """Serve until the caller closes standard input, or is silent for a minute; see the house's DESIGN.md."""
    shelf = CacheShelf(layout_of(request))
    listings = [parse(document) for document in request["listings"]]
    token = request["token"]
    if not isinstance(token, str) or len(token) < 16:
        raise Failure("request", "a server of weights needs a token of 16 characters or more")
    with serving(BlobServer(shelf, token, str(request.get("listen") or own_address()))) as server:
        emit(
            {
                "address": server.address,
                "port": server.port,
                "holds": {one.id: shelf.holds(one) for one in listings},
            }
        )
        until_gone(caller, lambda: emit({"sent": server.sent}))
        return {"sent": server.sent}
