"""HTTP client of sources: limits per host, errors as SourceError."""

from __future__ import annotations

import contextlib
from typing import Collection, Iterator, Mapping
from urllib.parse import urlsplit

from trainctl.base.http import (
    HttpClient,
    HttpError,
    Response,
)
from trainctl.base.http.limits import LIMITS, retry_after
from trainctl.base.http.refusals import ERROR_BYTES, RefusedRequest, request_error, server_message
from trainctl.base.http.urls import host_of, origin_of
from trainctl.errors import (
    SourceError,
    SourceMismatch,
    SourceThrottled,
    SourceUnavailable,
)
from trainctl.plugin_api.sources import SourceCredential

_THROTTLE_STATUSES = (429, 503)


class SourceResponse:
    """A successful response; ``subject`` begins error messages."""

    def __init__(self, response: Response, subject: str) -> None:
        self._response = response
        self._subject = subject
        self.status = response.status
        self.headers = response.headers
        self.url = response.url

    def iter_bytes(self) -> Iterator[bytes]:
        """Yield the body, up to 1 MiB at a time; SourceInterrupted if it is cut short."""
        buffers = self._response.iter_bytes()
        while True:
            with _source_errors(self._subject):
                data = next(buffers, None)
            if data is None:
                return
            yield data

    def fill(self, view: memoryview) -> None:
        """Fill the view from the body; SourceInterrupted if the body is shorter."""
        with _source_errors(self._subject):
            self._response.fill(view)

    def read(self, limit: int) -> bytes:
        """Return the complete body; SourceError if it is longer than ``limit`` bytes."""
        with _source_errors(self._subject):
            return self._response.read_all(limit)


class SourceClient:
    """Reads URLs; thread-safe. ``direct`` uses no proxy. ``hub``: stays there, see ``at_hub``."""

    def __init__(
        self, read_timeout: float = 30.0, *, direct: bool = False, hub: str | None = None
    ) -> None:
        self._http = HttpClient(
            read_timeout=read_timeout,
            proxies=not direct,
            limits=LIMITS,
            relocate=lambda url: at_hub(url, hub),
        )

    @contextlib.contextmanager
    def get(
        self,
        url: str,
        subject: str,
        headers: Mapping[str, str],
        credential: SourceCredential | None = None,
        method: str = "GET",
        body: bytes | None = None,
    ) -> Iterator[SourceResponse]:
        """Send a request, following redirects if it has no body; the credential stays at its origin.

        ``subject`` begins error messages, which never show the URL, as it may contain a signature.
        """
        with self._request(method, url, subject, headers, credential, body=body) as response:
            yield SourceResponse(response, subject)

    def redirect_from(
        self,
        url: str,
        subject: str,
        headers: Mapping[str, str],
        credential: SourceCredential | None,
        xet: str | None,
    ) -> str | None:
        """Return the first redirect to another origin; None without any. ``xet``: hash of the content, if known."""
        origin, visited = origin_of(urlsplit(url)), {url}
        while True:
            request = self._request("HEAD", url, subject, headers, credential, follow=False)
            with request as response, _source_errors(subject):
                target = response.redirect
            if xet and response.headers.get("X-Xet-Hash") not in (None, xet):
                raise SourceMismatch(f"{subject} has changed since it was resolved", "Plan again.")
            if target is None:
                return None
            if origin_of(urlsplit(target)) != origin:
                return target
            if target in visited:
                raise SourceError(f"{subject}: redirect loop", code="unsafe-redirect")
            visited.add(target)
            url = target

    @contextlib.contextmanager
    def _request(
        self,
        method: str,
        url: str,
        subject: str,
        headers: Mapping[str, str],
        credential: SourceCredential | None,
        *,
        follow: bool = True,
        body: bytes | None = None,
    ) -> Iterator[Response]:
        secret = {"Authorization": f"Bearer {credential.value}"} if credential else None
        with contextlib.ExitStack() as stack:
            with _source_errors(subject):
                request = self._http.request(
                    method, url, headers, secret_headers=secret, follow=follow, body=body
                )
                response = stack.enter_context(request)
                allowed: Collection[int] = range(200, 300 if follow else 400)
                if follow and method in ("GET", "HEAD"):  # 202 and 203 aren't the file
                    allowed = (200, 206) if "Range" in headers else (200,)
                refused = response.status not in allowed
            if refused:
                is_own = origin_of(urlsplit(response.url)) == origin_of(urlsplit(url))
                raise _refusal(
                    response, subject, credential.origin if credential and is_own else None
                )
            yield response


_PUBLIC_HUB = ("huggingface.co", "www.huggingface.co", "hf.co")


def at_hub(url: str, endpoint: str | None) -> str:
    """Return a URL of the public Hub on the server that the user has set instead; others unchanged."""
    parts = urlsplit(url)
    if endpoint is None or parts.hostname not in _PUBLIC_HUB:
        return url
    return f"{endpoint}{url.partition(parts.netloc)[2]}"


def _refusal(response: Response, subject: str, origin: str | None) -> SourceError:
    """Return the error of a status; start a pause if the host asks for one."""
    status, headers, parts = response.status, response.headers, urlsplit(response.url)
    if status == 407:
        summary = f"{subject}: proxy authentication required (407)"
        advice = "Set HTTP_PROXY to http://USER:PASSWORD@HOST:PORT."
        return SourceError(summary, advice, code="unusable-proxy")
    body, code = b"", headers.get("X-Error-Code") or ""
    with contextlib.suppress(HttpError):
        body = response.read(ERROR_BYTES)
    # GitHub's limits
    is_limit = headers.get("Retry-After") or headers.get("X-RateLimit-Remaining") == "0"
    refusal = RefusedRequest(status, host_of(parts), code, server_message(headers, body), origin)
    error = refusal.error(subject, 429 if status == 403 and is_limit else 0)
    error.bare_status = 0 if code else status
    if not isinstance(error, SourceUnavailable):
        return error
    error.retry_after = retry_after(headers)
    if status not in _THROTTLE_STATUSES or LIMITS.of(origin_of(parts)).pause(error.retry_after):
        return error
    return SourceThrottled(error.summary, error.detail, retry_after=error.retry_after)


@contextlib.contextmanager
def _source_errors(subject: str) -> Iterator[None]:
    try:
        yield
    except HttpError as error:
        raise request_error(error, subject) from None
