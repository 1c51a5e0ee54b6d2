"""URLs: origins, quoting and redirect targets."""

from __future__ import annotations

import functools
from typing import Tuple
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from trainctl.base.network.http_errors import UnsafeRedirect

PORTS = {"http": 80, "https": 443}
_URL_CHARACTERS = "!#$%&'()*+,/:;=?@[]~"
"""Characters that are not quoted: those with a meaning in URLs, and ``%``."""
Origin = Tuple[str, str, int]


def origin_of(parts: SplitResult) -> Origin:
    """Return scheme, host and port: a credential is sent to its own origin only."""
    return _origin(parts.scheme, parts.netloc)


@functools.lru_cache(maxsize=256)
def _origin(scheme: str, netloc: str) -> Origin:
    parts = SplitResult(scheme, netloc, "", "", "")
    return scheme, parts.hostname or "", parts.port or PORTS.get(scheme, 0)


def host_of(parts: SplitResult) -> str:
    """Return host and port for messages, without user and password."""
    return parts.netloc.rpartition("@")[2]


def quote_url(url: "str | bytes") -> str:
    """Percent-encode spaces and non-ASCII characters."""
    return quote(url, safe=_URL_CHARACTERS)


def resolve_reference(url: str, reference: str, kind: str = "a redirect") -> str:
    """Resolve a ``Location`` or ``Link``; UnsafeRedirect from https to http."""
    try:
        # http.client decodes headers as Latin-1; send the same bytes in the next request
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
