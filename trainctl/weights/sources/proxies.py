"""Which proxy the environment names for a server, and what is wrong with how it does."""

from __future__ import annotations

import urllib.request
from base64 import b64encode
from typing import Mapping, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from trainctl.errors import SourceError

_PORTS = {"http": 80, "https": 443}


class Proxy(NamedTuple):
    """One that speaks HTTP, ``secure`` by TLS. ``headers`` log in there; ``variable`` is what names it."""

    host: str
    port: int
    headers: Mapping[str, str]
    variable: str
    secure: bool

    @property
    def shown(self) -> str:
        """As errors name it."""
        return f"the proxy {self.host}:{self.port}"

    @property
    def advice(self) -> str:
        """What to do where it doesn't help."""
        kind = "https" if self.secure else "http"
        tls = (
            " It is spoken to by TLS: write http:// if it doesn't speak that."
            if self.secure
            else ""
        )
        return (
            f"{self.variable} names it; one that wants a login is {kind}://USER:PASSWORD@HOST:PORT.{tls} "
            "What NO_PROXY names is reached without it."
        )


def proxy_for(parts: SplitResult) -> Proxy | None:
    """What the environment says of a URL: HTTPS_PROXY or HTTP_PROXY, else ALL_PROXY, but for what NO_PROXY names.

    SourceError where that can't be used; it shows no value, as there may be a password in it.
    """
    if urllib.request.proxy_bypass(parts.netloc):
        return None
    named = urllib.request.getproxies()
    kind = parts.scheme if parts.scheme in named else "all"
    if kind not in named:
        return None
    return _read(named[kind], f"{kind.upper()}_PROXY")


def _read(text: str, variable: str) -> Proxy:
    try:
        where = urlsplit(text if "://" in text else f"http://{text}")
        host, port = where.hostname or "", where.port
    except ValueError:
        raise _unusable(f"{variable} is not the URL of a proxy") from None
    if where.scheme.startswith("socks"):
        raise _unusable(f"{variable} names a SOCKS proxy, and only those that speak HTTP are used")
    if where.scheme not in _PORTS or not host or port == 0:
        raise _unusable(f"{variable} is not the URL of a proxy")
    secure = where.scheme == "https"
    return Proxy(host, port or _PORTS[where.scheme], _login(where), variable, secure)


def _unusable(summary: str) -> SourceError:
    return SourceError(
        summary,
        "Write http://HOST:PORT there, or name in NO_PROXY what is reached without a proxy.",
        code="unusable-proxy",
    )


def _login(where: SplitResult) -> dict[str, str]:
    if not where.username:
        return {}
    user = f"{unquote(where.username)}:{unquote(where.password or '')}"
    return {"Proxy-Authorization": f"Basic {b64encode(user.encode()).decode()}"}
