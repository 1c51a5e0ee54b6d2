"""Serving others for as long as whoever called this program is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, BinaryIO, Callable, Dict, Mapping, Optional

from trainctl.node.calls.asking import Asking, Gone
from trainctl.node.system.addresses import is_private, own_address
from trainctl.node.system.failure import Failure
from trainctl.node.system.ports import ports_of
from trainctl.node.transfer.server import BlobServer, serving
from trainctl.node.transfer.shelf import Shelf

if TYPE_CHECKING:
    import ssl  # heavy, and few servers speak TLS

_TELL_SECONDS = 1.0
Emit = Callable[[Mapping[str, Any]], None]


def serve_others(
    shelf: Shelf,
    request: Mapping[str, Any],
    emit: Emit,
    caller: BinaryIO,
    told: Optional[Mapping[str, Any]] = None,
) -> Dict[str, Any]:
    """Hand out contents to who has the request's ``token``, until the caller closes standard input or is silent for a minute.

    Events ``{address, port}`` with what is ``told`` in addition, and ``{sent}`` each second; the result is the latter. It listens at
    ``listen``, by default where the caller's connection came to, at one of its ``ports``.
    """
    token = request["token"]
    if not isinstance(token, str) or len(token) < 16:
        raise Failure("request", "a server of weights needs a token of 16 characters or more")
    asking = Asking(caller, emit)
    address = str(request.get("listen") or own_address())
    ports = ports_of(request.get("ports"))
    tls = None if is_private(address) else _tls(asking)
    with serving(BlobServer(shelf, token, address, ports=ports, tls=tls)) as server:
        asking.tell({"address": server.address, "port": server.port, **(told or {})})
        while not asking.gone.wait(_TELL_SECONDS):
            asking.tell({"sent": server.sent})
        return {"sent": server.sent}


def _tls(asking: Asking) -> ssl.SSLContext:
    """By a certificate that the caller makes: Python's standard library can't."""
    from trainctl.node.calls.tls import server_context

    try:
        answer = asking.ask({"want": "certificate"})
    except Gone:
        raise Failure("failed", "whoever wanted a server has gone") from None
    if "certificate" not in answer:
        raise Failure("failed", "whoever wanted a server has no certificate for it")
    return server_context(answer)
