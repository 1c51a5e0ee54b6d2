"""The one HTTP client: pooled connections on ``http.client``, with proxies, redirects, TLS and limits per host."""

from __future__ import annotations

from trainctl.base.http.client import Headers, HttpClient, Response
from trainctl.base.http.errors import (
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
