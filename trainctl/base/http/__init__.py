"""HTTP client on ``http.client``: pooled connections, proxies, redirects, TLS.

Begin with ``client.HttpClient``. ``connection`` connects, also through proxies, and detects stalled responses;
``limits`` holds the request limits per host; ``urls`` resolves redirects. The exceptions are defined in ``network.http_errors``.
"""

from __future__ import annotations

from trainctl.base.http.client import HttpClient, Response
from trainctl.base.http.connection import Headers
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
