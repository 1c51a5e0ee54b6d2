"""The verb ``serve``: this node hands out what it has of some listings, for as long as its caller is there."""

from __future__ import annotations

import os
import threading
import time
from typing import Any, BinaryIO, Callable, Dict, Mapping

from trainctl.node.cache_shelf import CacheShelf
from trainctl.node.failure import Failure
from trainctl.node.layout import layout_of
from trainctl.node.listing import parse
from trainctl.node.server import BlobServer, private_family, serving

Emit = Callable[[Dict[str, Any]], None]
_SILENCE_SECONDS = 60.0
_TELL_SECONDS = 1.0


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
        _wait(caller, lambda: emit({"sent": server.sent}))
        return {"sent": server.sent}


def own_address() -> str:
    """Where peers reach this machine: the address that the caller's SSH connection came to, if it is private; loopback without one.

    Failure where there is only a public one. Source: sshd(8), SSH_CONNECTION.
    """
    words = os.environ.get("SSH_CONNECTION", "").split()
    if len(words) != 4:
        return "127.0.0.1"
    address = words[2].partition("%")[0]
    private_family(address)
    return address


def _wait(caller: BinaryIO, tell: Callable[[], None]) -> None:
    """Until the caller is gone; it is told now and then that we are not."""
    ended = threading.Event()
    heard = time.monotonic()

    def listen() -> None:
        nonlocal heard
        while os.read(caller.fileno(), 4096):
            heard = time.monotonic()
        ended.set()

    threading.Thread(target=listen, daemon=True).start()
    while not ended.wait(_TELL_SECONDS) and time.monotonic() - heard < _SILENCE_SECONDS:
        tell()
