"""HTTP client on ``http.client``: pooled connections, proxies, redirects, TLS.

Begin with ``client.HttpClient``. ``connection`` connects, also through proxies, and detects stalled responses;
``limits`` holds the request limits per host; ``urls`` resolves redirects. The exceptions are defined in ``network.http_errors``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainctl.base.network.http_errors import (
    HostThrottled,
    HttpError,
    HttpInterrupted,
    HttpStalled,
    HttpUnreachable,
    UnsafeRedirect,
    UntrustedCertificate,
    UnusableProxy,
)

if TYPE_CHECKING:
    from trainctl.base.http.client import HttpClient, Response
    from trainctl.base.http.connection import Headers

__all__ = [
    "Headers",
    "HostThrottled",
    "HttpClient",
    "HttpError",
    "HttpInterrupted",
    "HttpStalled",
    "HttpUnreachable",
    "Response",
    "UnsafeRedirect",
    "UntrustedCertificate",
    "UnusableProxy",
]


def __getattr__(name: str) -> Any:
    """Load the client when it is asked for: many use its exceptions and URLs only."""
    if name == "Headers":
        from trainctl.base.http.connection import Headers

        return Headers
    if name in ("HttpClient", "Response"):
        from trainctl.base.http.client import HttpClient, Response

        return HttpClient if name == "HttpClient" else Response
    raise AttributeError(name)
