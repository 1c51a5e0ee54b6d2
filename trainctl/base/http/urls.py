"""URLs: origins, quoting, and where a redirect or a link may lead."""

from __future__ import annotations

from typing import Tuple
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from trainctl.base.http.errors import UnsafeRedirect

PORTS = {"http": 80, "https": 443}
_URL_CHARACTERS = "!#$%&'()*+,/:;=?@[]~"
"""Characters that quoting keeps: those with a meaning in URLs, and ``%`` of what is quoted already."""
Origin = Tuple[str, str, int]


def origin_of(parts: SplitResult) -> Origin:
    """Scheme, host and port: a credential for one origin is sent to no other."""
    return parts.scheme, parts.hostname or "", parts.port or PORTS.get(parts.scheme, 0)


def host_of(parts: SplitResult) -> str:
    """Host and port for messages, without the user and password that a URL may hold."""
    return parts.netloc.rpartition("@")[2]


def quote_url(url: "str | bytes") -> str:
    """The URL with spaces and all that is not ASCII percent-encoded as UTF-8."""
    return quote(url, safe=_URL_CHARACTERS)


def resolve_reference(url: str, reference: str, kind: str = "a redirect") -> str:
    """The absolute URL of a ``Location`` or ``Link`` in the response of ``url``; https never leads to http."""
    try:
        # http.client decodes headers as Latin-1: the same bytes go into the next request
        target = quote_url(urljoin(url, reference).encode("latin-1"))
        parts = urlsplit(target)
        valid = bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise UnsafeRedirect(f"{kind} to an invalid URL")
    scheme = urlsplit(url).scheme
    if parts.scheme not in (("https",) if scheme == "https" else ("http", "https")):
        raise UnsafeRedirect(f"{kind} from {scheme} to a less secure scheme")
    return target
