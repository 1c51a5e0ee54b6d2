"""HTTP client of sources: limits per host, errors as SourceError; ranges and validators of responses.

A response is partial if ``Content-Range`` says so, as some servers send one with status 200.
"""

from __future__ import annotations

import contextlib
import re
from typing import Collection, Iterator, Mapping
from urllib.parse import urlsplit

from trainctl.base.http import (
    HttpClient,
    HttpError,
    Response,
)
from trainctl.base.http.limits import LIMITS, http_date, retry_after
from trainctl.base.http.refusals import ERROR_BYTES, RefusedRequest, request_error, server_message
from trainctl.base.http.urls import host_of, origin_of
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.base.listing import UNKNOWN_SIZE, SourceFile
from trainctl.errors import (
    SourceError,
    SourceInterrupted,
    SourceMismatch,
    SourceThrottled,
    SourceUnavailable,
)
from trainctl.plugin_api.sources import ByteRange, Fill, SourceCredential

_THROTTLE_STATUSES = (429, 503)
_CONTENT_RANGE = compile_lazily(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")
_ETAG = compile_lazily(r'(?:W/)?"[\x21\x23-\x7e]+"|[\x21\x23-\x7e]+')
"""Entity tags of RFC 9110, in ASCII; some servers omit the quotes."""
_MAX_ETAG = 256  # validators are stored for each file of a mirror


class SourceResponse:
    """A successful response; ``subject`` begins error messages."""

    def __init__(self, response: Response, subject: str) -> None:
        self._response = response
        self._subject = subject
        self.status = response.status
        self.headers = response.headers
        self.url = response.url

    @property
    def redirect(self) -> str | None:
        """The redirect URL, if any; SourceError if it must not be followed."""
        with _source_errors(self._subject):
            return self._response.redirect

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
        *,
        follow: bool = True,
    ) -> Iterator[SourceResponse]:
        """Send a request, following redirects if it has no body; the credential stays at its origin.

        ``subject`` begins error messages, which never show the URL, as it may contain a signature. Without ``follow``,
        a redirect is a response.
        """
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
            with self.get(url, subject, headers, credential, "HEAD", follow=False) as response:
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


def read_from(
    response: SourceResponse, subject: str, file: SourceFile, offset: int
) -> Iterator[bytes]:
    """Yield the bytes from ``offset``, whether or not the server supports ranges.

    SourceMismatch if the file's length differs, SourceInterrupted if the body is cut short.
    """
    part = _content_range(response)
    if int(part[1]) != offset if part else response.status == 206:
        raise SourceInterrupted(f"{subject}: the server returned a different range than requested")
    if file.size == UNKNOWN_SIZE:
        return response.iter_bytes()
    _check_total_length(response, subject, file)
    return _check_length(response.iter_bytes(), subject, file, offset, 0 if part else offset)


def read_range(
    response: SourceResponse, subject: str, file: SourceFile, span: ByteRange
) -> Fill | None:
    """Return a function that reads exactly that range; None for other responses.

    SourceMismatch if the file's length differs.
    """
    part = _content_range(response)
    if part is None or (int(part[1]), int(part[2])) != (span.offset, sum(span) - 1):
        return None
    _check_total_length(response, subject, file)
    return response.fill


def download_headers(source: str) -> dict[str, str]:
    """Return the headers of every request for a file of a source.

    Google decompresses objects with Content-Encoding: gzip unless the request accepts it.
    """
    accept = {"Accept-Encoding": "gzip"} if source.startswith("gs:") else {}
    return {"User-Agent": "trainctl", **accept}


def range_header(offset: int, length: int | None = None) -> dict[str, str]:
    """Return the ``Range`` header; empty for the complete file."""
    if length is not None:
        return {"Range": f"bytes={offset}-{offset + length - 1}"}
    return {"Range": f"bytes={offset}-"} if offset else {}


def _check_total_length(response: SourceResponse, subject: str, file: SourceFile) -> None:
    length = total_length(response)
    if length is not None and length != file.size:
        raise SourceMismatch(
            f"{subject}: the server has {length} bytes, expected {file.size}",
            "The file has changed, or a proxy answers instead of the server. Plan again.",
        )


def total_length(response: SourceResponse) -> int | None:
    """Return the length of the complete file in bytes; None if unknown."""
    part = _content_range(response)
    if part is not None or response.status == 206:
        return int(part[3]) if part and part[3] != "*" else None
    text = response.headers.get("Content-Length") or ""
    return int(text) if text else None


def _content_range(response: SourceResponse) -> re.Match[str] | None:
    """Return first byte, last byte and total length of a partial response."""
    part = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range") or "")
    if part is None or response.status == 206:
        return part
    length = int(part[2]) - int(part[1]) + 1
    return part if response.headers.get("Content-Length") == str(length) else None


def _check_length(
    body: Iterator[bytes], subject: str, file: SourceFile, offset: int, skip: int
) -> Iterator[bytes]:
    left = file.size - offset
    for received in body:
        data = received[skip:] if skip < len(received) else b""
        skip -= len(received) - len(data)
        left -= len(data)
        if left < 0:
            raise SourceMismatch(f"{subject}: received more than the expected {file.size} bytes")
        if data:
            yield data
    if left:
        raise SourceInterrupted(f"{subject}: connection closed with {left} bytes missing")


def validator_of(headers: Mapping[str, str], size: int) -> str:
    """Return ``etag:TAG``, else ``modified:TIME`` in UTC, else ``size:BYTES``."""
    tag = (headers.get("ETag") or "").strip()
    if len(tag) <= _MAX_ETAG and _ETAG.fullmatch(tag):
        return f"etag:{tag}"
    moment = http_date(headers.get("Last-Modified") or "")
    return f"modified:{moment:%Y-%m-%dT%H:%M:%SZ}" if moment else f"size:{size}"


def if_range(validator: str) -> str | None:
    """Return the value for ``If-Range``, a strong entity tag; None otherwise.

    Dates are weak validators unless older than the response (RFC 9110, section 13.1.5), so they are compared here, with
    the response to a plain range request.
    """
    kind, _, tag = validator.partition(":")
    return tag if kind == "etag" and tag.startswith('"') else None


def same_content(validator: str, other: str) -> bool:
    """Compare validators by the weak comparison of RFC 9110, 8.8.3.2."""
    return validator.replace("etag:W/", "etag:", 1) == other.replace("etag:W/", "etag:", 1)


def describe_validator(validator: str) -> str:
    """Return a validator as text for messages."""
    kind, _, value = validator.partition(":")
    names = {"etag": "ETag", "modified": "Last-Modified"}
    return f"{names[kind]} {value}" if kind in names else "neither ETag nor Last-Modified"


def has_no_md5_etag(headers: Mapping[str, str]) -> bool:
    """Return whether S3's encryption makes the ETag something else than an MD5.

    https://docs.aws.amazon.com/AmazonS3/latest/API/API_Object.html
    """
    by = headers.get("x-amz-server-side-encryption") or ""
    return by.startswith("aws:kms") or bool(
        headers.get("x-amz-server-side-encryption-customer-algorithm")
    )


def check_not_replaced(headers: Mapping[str, str], subject: str, file: SourceFile) -> None:
    """Raise SourceMismatch if a bucket's response has another ETag than was resolved."""
    kind = file.validator.partition(":")[0]
    tag = headers.get("ETag") if kind == "etag" else None
    if tag and not same_content(f"{kind}:{tag.strip()}", file.validator):
        raise SourceMismatch(
            f"{subject} has changed since it was resolved ({describe_validator(file.validator)} before, {tag} now)",
            "Plan and apply again.",
        )
