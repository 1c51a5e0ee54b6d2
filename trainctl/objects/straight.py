"""Asking a server, and nobody that it sends on to: what follows takes the headers along, and with them what opens an account."""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

if TYPE_CHECKING:
    from urllib.request import BaseHandler, OpenerDirector

NOWHERE = "127.0.0.1:0"
"""Where nobody can listen."""
_NAME = re.compile(r"([a-z0-9_-]+\.)*[a-z][a-z0-9-]*")


def opener(*handlers: BaseHandler) -> OpenerDirector:
    """What opens requests by urllib; a redirect is an HTTPError."""
    import urllib.request  # loaded by who asks

    class Straight(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: object) -> None:
            """No request follows."""

    return urllib.request.build_opener(Straight, *handlers)


def only(*servers: str) -> dict[str, str]:
    """For the engine, which can't be told to follow nobody: what isn't one of these hosts it asks by a proxy that isn't there.

    Nothing where the environment names a proxy for one of them, as there can be only one, or where a host has a name that the engine may write otherwise.
    """
    found = [urlsplit(server) for server in servers]
    hosts = [one.hostname or "" for one in found]
    if any(map(_by_proxy, found)) or not all(map(_is_plain, hosts)):
        return {}
    return {"proxy_url": f"http://{NOWHERE}", "proxy_excludes": ",".join(hosts)}


def _by_proxy(server: SplitResult) -> bool:
    import urllib.request

    if urllib.request.proxy_bypass(server.netloc):
        return False
    return not {server.scheme, "all"}.isdisjoint(urllib.request.getproxies())


def _is_plain(host: str) -> bool:
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        return _NAME.fullmatch(host) is not None
    return True
