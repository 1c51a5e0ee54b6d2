"""What a web server says that identifies a file's content, as the validator of a ``SourceFile``."""

from __future__ import annotations

import re
from datetime import timezone
from email.utils import parsedate_to_datetime
from typing import Mapping

from trainctl.base.listing import SourceFile
from trainctl.errors import SourceMismatch

_ETAG = re.compile(r'(?:W/)?"[\x21\x23-\x7e]+"|[\x21\x23-\x7e]+')
"""As RFC 9110 writes entity tags, in ASCII; or without quotes, as some servers do."""
_MAX_ETAG = 256


def validator_of(headers: Mapping[str, str], size: int) -> str:
    """``etag:TAG``, else ``modified:TIME`` in UTC, else ``size:BYTES``. A tag that is malformed or endless is none."""
    tag = (headers.get("ETag") or "").strip()
    if len(tag) <= _MAX_ETAG and _ETAG.fullmatch(tag):
        return f"etag:{tag}"
    return _modified(headers) or f"size:{size}"


def if_range(validator: str) -> str | None:
    """The value for ``If-Range``: a strong entity tag, the only thing that may stand there beside dates.

    A weak one may mean several contents. A date is no strong validator unless it is known to be older than the answer
    (RFC 9110, section 13.1.5), so dates are compared by us, in the answer to a plain range request.
    """
    kind, _, tag = validator.partition(":")
    return tag if kind == "etag" and tag.startswith('"') else None


def same_content(one: str, other: str) -> bool:
    """Whether two validators name the same content, as far as they can: by the weak comparison of RFC 9110, 8.8.3.2."""
    return one.replace("etag:W/", "etag:", 1) == other.replace("etag:W/", "etag:", 1)


def describe_validator(validator: str) -> str:
    """The validator as part of a sentence."""
    kind, _, value = validator.partition(":")
    names = {"etag": "ETag", "modified": "Last-Modified"}
    return f"{names[kind]} {value}" if kind in names else "neither ETag nor Last-Modified"


def has_no_md5_etag(headers: Mapping[str, str]) -> bool:
    """Whether S3 has encrypted the object with a key for which ETags are no MD5s (the same page)."""
    by = headers.get("x-amz-server-side-encryption") or ""
    return by.startswith("aws:kms") or bool(
        headers.get("x-amz-server-side-encryption-customer-algorithm")
    )


def check_not_replaced(headers: Mapping[str, str], what: str, file: SourceFile) -> None:
    """SourceMismatch where a bucket's answer is of another version of an object than was resolved, so far as it says."""
    kind = file.validator.partition(":")[0]
    found = headers.get("ETag") if kind == "etag" else None
    if found and not same_content(f"{kind}:{found.strip()}", file.validator):
        raise SourceMismatch(
            f"{what} has changed since it was resolved ({describe_validator(file.validator)} before, {found} now)",
            "Plan and apply again.",
        )


def _modified(headers: Mapping[str, str]) -> str | None:
    try:
        moment = parsedate_to_datetime(headers.get("Last-Modified") or "")
        # A date without a zone is in UTC: HTTP knows no other.
        moment = (
            moment.replace(tzinfo=timezone.utc)
            if moment.tzinfo is None
            else moment.astimezone(timezone.utc)
        )
    except (TypeError, ValueError, OverflowError):  # the first before Python 3.10
        return None
    return f"modified:{moment:%Y-%m-%dT%H:%M:%SZ}"
