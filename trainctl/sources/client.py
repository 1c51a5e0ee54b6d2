"""HTTP client of sources: limits per host, errors as SourceError."""

from __future__ import annotations

import contextlib
from typing import Iterator, Mapping
from urllib.parse import urlsplit

from trainctl.base.http import (
    HostThrottled,
    HttpClient,
    HttpError,
    HttpInterrupted,
    HttpUnreachable,
    Response,
    UnsafeRedirect,
    UntrustedCertificate,
    UnusableProxy,
)
from trainctl.base.http.limits import LIMITS, retry_after
from trainctl.base.http.urls import host_of, origin_of
from trainctl.errors import (
    SourceDenied,
    SourceError,
    SourceInterrupted,
    SourceMismatch,
    SourceNotFound,
    SourceThrottled,
    SourceUnavailable,
    SourceUnreachable,
)

_THROTTLE_STATUSES = (429, 503)
_CODES = {
    UnsafeRedirect: "unsafe-redirect",
    UntrustedCertificate: "untrusted-certificate",
    UnusableProxy: "unusable-proxy",
}


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
    """Reads URLs; thread-safe. ``direct`` uses no proxy."""

    def __init__(self, read_timeout: float = 30.0, *, direct: bool = False) -> None:
        self._http = HttpClient(read_timeout=read_timeout, proxies=not direct, limits=LIMITS)

    @contextlib.contextmanager
    def get(
        self,
        url: str,
        subject: str,
        headers: Mapping[str, str],
        token: str | None = None,
        method: str = "GET",
        body: bytes | None = None,
    ) -> Iterator[SourceResponse]:
        """Send a request, following redirects if it has no body; the token stays at its origin.

        ``subject`` begins error messages, which never show the URL, as it may contain a signature.
        """
        with self._request(method, url, subject, headers, token, body=body) as response:
            yield SourceResponse(response, subject)

    def redirect_from(
        self, url: str, subject: str, headers: Mapping[str, str], token: str
    ) -> str | None:
        """Return the first redirect to another origin; None without any."""
        origin, visited = origin_of(urlsplit(url)), {url}
        while True:
            request = self._request("HEAD", url, subject, headers, token, follow=False)
            with request as response, _source_errors(subject):
                target = response.redirect
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
        token: str | None,
        *,
        follow: bool = True,
        body: bytes | None = None,
    ) -> Iterator[Response]:
        secret = {"Authorization": f"Bearer {token}"} if token is not None else None
        with contextlib.ExitStack() as stack:
            with _source_errors(subject):
                request = self._http.request(
                    method, url, headers, secret_headers=secret, follow=follow, body=body
                )
                response = stack.enter_context(request)
                refused = response.status >= (400 if not follow else 300)
            if refused:
                sent = (
                    token if origin_of(urlsplit(response.url)) == origin_of(urlsplit(url)) else None
                )
                raise _refusal(response, subject, sent)
            yield response


def _refusal(response: Response, subject: str, token: str | None) -> SourceError:
    """Return the error of a status; start a pause if the host asks for one."""
    parts = urlsplit(response.url)
    if response.status == 407:
        summary = f"{subject}: proxy authentication required (407)"
        advice = "Set HTTP_PROXY to http://USER:PASSWORD@HOST:PORT."
        return SourceError(summary, advice, code="unusable-proxy")
    error = _error_for(response.status, response.headers, subject, host_of(parts), token)
    if not isinstance(error, SourceUnavailable) or response.status not in _THROTTLE_STATUSES:
        return error
    if LIMITS.of(origin_of(parts)).pause(error.retry_after):
        return error
    return SourceThrottled(error.summary, error.detail, retry_after=error.retry_after)


@contextlib.contextmanager
def _source_errors(subject: str) -> Iterator[None]:
    try:
        yield
    except HttpError as error:
        raise _error(error, subject) from None


def _error(error: HttpError, subject: str) -> SourceError:
    summary = f"{subject}: {error.reason}"
    if isinstance(error, HostThrottled):
        return SourceThrottled(summary, retry_after=error.retry_after)
    if isinstance(error, HttpUnreachable):
        return SourceUnreachable(summary, error.advice)
    if isinstance(error, HttpInterrupted):
        return SourceInterrupted(summary, error.advice)
    if isinstance(error, UnusableProxy):
        summary = error.reason
    return SourceError(summary, error.advice, code=_CODES.get(type(error)))


_TRANSIENT_STATUSES = {408, 425, 429, 500, 502, 503, 504}


def _error_for(
    status: int, headers: Mapping[str, str], subject: str, host: str, token: str | None
) -> SourceError:
    """Return the error of a status; ``token`` selects the advice and is never shown."""
    # GitHub's limits
    is_limit = headers.get("Retry-After") or headers.get("X-RateLimit-Remaining") == "0"
    if status == 429 or (status == 403 and is_limit):
        return SourceUnavailable(
            f"{subject}: rate limited by {host} ({status})",
            "" if token else "Use a token, which may have a higher limit.",
            retry_after=retry_after(headers),
        )
    if status in _TRANSIENT_STATUSES:
        return SourceUnavailable(
            f"{subject}: {host} is unavailable ({status})", retry_after=retry_after(headers)
        )
    if headers.get("X-Error-Code") == "GatedRepo":
        return _gated_error(subject, token)
    if status in (401, 403):
        return _denied_error(subject, host, status, token)
    if status in (404, 410):
        return _not_found_error(subject, host, status, headers.get("X-Error-Code"), token)
    if status in (412, 416):
        return SourceMismatch(f"{subject} has changed since it was resolved", "Plan again.")
    return SourceError(
        f"{subject}: {host} answered {status}",
        "Check that the URL and endpoint_url are those of the right server.",
    )


_USE_AUTH = "Declare a secret with a token that has read access, and name it in the source's auth: {auth_method: CUSTOM_SECRET, auth_secret_name: NAME}."


def _gated_error(subject: str, token: str | None) -> SourceError:
    accept = "Accept the licence on the Hugging Face page with the account of the token"
    if token is None:
        return SourceDenied(
            f"{subject}: the repository is gated, and no token was sent",
            f"{accept}. {_USE_AUTH}",
            code="gated-source",
        )
    return SourceDenied(
        f"{subject}: the repository is gated, and the token's account has no access",
        f"{accept}, or use a token of an account with access.",
        code="gated-source",
    )


def _denied_error(subject: str, host: str, status: int, token: str | None) -> SourceError:
    if token is None:
        return SourceDenied(
            f"{subject}: {host} requires authentication ({status}), or the source doesn't exist",
            f"Check the name. {_USE_AUTH}",
        )
    return SourceDenied(
        f"{subject}: permission denied by {host} ({status})",
        "The token may be expired, or lack read access. Create a new token and update the secret.",
    )


def _not_found_error(
    subject: str, host: str, status: int, code: str | None, token: str | None
) -> SourceError:
    if code == "RevisionNotFound":
        return SourceNotFound(
            f"{subject}: revision not found on {host} (404)",
            "Use an existing branch, tag or commit after @.",
        )
    if code == "EntryNotFound":
        return SourceNotFound(
            f"{subject}: {host} lists the file, but doesn't have it at this revision (404)",
            "Exclude it with ignore_patterns, or have it restored upstream.",
        )
    private = f" If it is private: {_USE_AUTH[0].lower()}{_USE_AUTH[1:]}" if token is None else ""
    return SourceNotFound(f"{subject}: not found on {host} ({status})", f"Check the name.{private}")
