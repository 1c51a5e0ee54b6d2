"""Headers of responses: ranges, and validators of the content.

A response is partial if ``Content-Range`` says so, as some servers send one with status 200.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Mapping

from trainctl.base.http.limits import http_date
from trainctl.base.listing import UNKNOWN_SIZE, SourceFile
from trainctl.errors import SourceInterrupted, SourceMismatch
from trainctl.plugin_api.sources import ByteRange, Fill
from trainctl.sources.client import SourceResponse

_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")
_ETAG = re.compile(r'(?:W/)?"[\x21\x23-\x7e]+"|[\x21\x23-\x7e]+')
"""Entity tags of RFC 9110, in ASCII; some servers omit the quotes."""
_MAX_ETAG = 256


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
    return _modified(headers) or f"size:{size}"


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


def _modified(headers: Mapping[str, str]) -> str | None:
    moment = http_date(headers.get("Last-Modified") or "")
    return f"modified:{moment:%Y-%m-%dT%H:%M:%SZ}" if moment else None
