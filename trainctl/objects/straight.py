"""Asking a server, and nobody that it sends on to: urllib would take the headers along, and with them what opens an account."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from urllib.request import BaseHandler, OpenerDirector


def opener(*handlers: BaseHandler) -> OpenerDirector:
    """What opens requests; a redirect is an HTTPError."""
    import urllib.request  # loaded by who asks

    class Straight(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: object) -> None:
            """No request follows."""

    return urllib.request.build_opener(Straight, *handlers)
