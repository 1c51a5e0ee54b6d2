"""Serving others for as long as whoever called this program is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, BinaryIO, Callable, Mapping, Optional

from trainctl.base.addresses import Serving, is_private, shared_loopback
from trainctl.base.failure import Failure
from trainctl.base.ports import ports_of
from trainctl.base.protocol.conversation import Asking, Gone
from trainctl.base.protocol.weights import Sent
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
) -> Sent:
    """Hand out contents to who has the request's ``token``, until the caller closes standard input or is silent for a minute.

    Events ``{urls, loopback, why}`` with what is ``told`` in addition, and ``{sent}`` each second; the result is the latter. It listens at
    ``listen``, by default wherever others might reach this host, at one of its ``ports``. Failure where there is no such address.
    """
    token = request["token"]
    if not isinstance(token, str) or len(token) < 16:
        raise Failure("request", "a server of weights needs a token of 16 characters or more")
    asking = Asking(caller, emit)
    wanted = request.get("listen")
    addresses, why = ([wanted], "") if wanted else Serving.here()
    if not addresses:
        raise Failure("failed", why)
    ports = ports_of(request.get("ports"))
    tls = None if all(map(is_private, addresses)) else _tls(asking)
    with serving(BlobServer(shelf, token, addresses, ports=ports, tls=tls)) as server:
        terms = {"loopback": shared_loopback(addresses), "why": why}
        asking.tell({"urls": server.urls, **terms, **(told or {})})
        while not asking.gone.wait(_TELL_SECONDS):
            asking.tell({"sent": server.sent})
        return {"sent": server.sent}


def _tls(asking: Asking) -> ssl.SSLContext:
    """By a certificate that the caller makes: Python's standard library can't."""
    from trainctl.base.tls import server_context

    try:
        answer = asking.ask({"want": "certificate"})
    except Gone:
        raise Failure("failed", "whoever wanted a server has gone") from None
    if "certificate" not in answer:
        raise Failure("failed", "whoever wanted a server has no certificate for it")
    return server_context(answer)
