"""Checkpoint store in an S3-compatible bucket, with multipart uploads."""

from __future__ import annotations

import calendar
import contextlib
import html
import time
from typing import Any, BinaryIO, Callable, Iterator, Mapping, Optional, Tuple
from urllib.parse import unquote_plus

from trainctl.base import sigv4
from trainctl.base.checkpoints.s3_client import S3Client, element_text, elements
from trainctl.base.failure import Failure
from trainctl.base.objects import ObjectStat
from trainctl.base.pagination import pages
from trainctl.base.parallel import map_ordered
from trainctl.base.throughput import RateLimiter

PART_BYTES = 16 * 2**20
_MAX_PARTS = 10_000
"""https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html"""
_THREADS = 4
_Page = Tuple[bytes, Optional[sigv4.Query]]
"""A page's body, and the query of the next page."""


class S3CheckpointStore:
    """A ``CheckpointStore`` below a prefix of a bucket."""

    def __init__(
        self, bucket: str, prefix: str, place: Mapping[str, Any], credential: Mapping[str, Any]
    ) -> None:
        self._client = S3Client(bucket, place.get("endpoint_url"), credential)
        self._prefix = f"{prefix}/" if prefix else ""
        self._part_bytes = int(place.get("part_bytes") or PART_BYTES)

    def put(self, key: str, data: bytes) -> None:
        """Create or replace a small object, by one request."""
        self._client.request("PUT", self._prefix + key, (), data)

    def put_file(self, key: str, stream: BinaryIO, size: int, rate_limiter: RateLimiter) -> None:
        """Create or replace an object, in parts if large; five of them in memory."""
        part = max(self._part_bytes, -(-size // _MAX_PARTS))
        if size <= part:
            self._client.request(
                "PUT",
                self._prefix + key,
                (),
                _read_exactly(stream, size),
                rate_limiter=rate_limiter,
            )
        else:
            _MultipartUpload(self._client, self._prefix + key, part).send(
                stream, size, rate_limiter
            )

    def get(self, key: str) -> Optional[bytes]:
        """Return a small object; None if it is missing."""
        response = self._client.request("GET", self._prefix + key, absent=True)
        if response.status == 404 and element_text(response.body, "Code") == "NoSuchBucket":
            raise Failure("denied", "bucket of the checkpoints not found")
        return None if response.status == 404 else response.body

    def read(self, key: str, offset: int, write: Callable[[bytes], None]) -> None:
        """Pass an object's bytes from ``offset`` to ``write``."""
        self._client.stream(self._prefix + key, offset, write)

    def list(self, prefix: str) -> Iterator[ObjectStat]:
        """Yield the objects below a prefix, a thousand per request."""
        query = [("list-type", "2"), ("prefix", self._prefix + prefix), ("encoding-type", "url")]

        def request(after: Optional[sigv4.Query]) -> _Page:
            body = self._client.request("GET", "", [*query, *(after or ())]).body
            token = element_text(body, "NextContinuationToken")
            return body, [("continuation-token", token)] if token else None

        for body in _list_pages(request):
            for entry in elements(body, "Contents"):
                key = _key(entry, body)
                if key.startswith(self._prefix + prefix):
                    when = _unix_time(element_text(entry, "LastModified"))
                    size = int(element_text(entry, "Size") or 0)
                    yield ObjectStat(key[len(self._prefix) :], size, when)

    def delete(self, key: str) -> None:
        """Remove an object, if it exists."""
        self._client.request("DELETE", self._prefix + key, absent=True)

    def abandon(self, prefix: str) -> None:
        """Abort the multipart uploads under the prefix; their parts are billed."""
        for key, upload in _uploads(self._client, self._prefix + prefix):
            self._client.request("DELETE", key, [("uploadId", upload)], absent=True)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def url(self, key: str, seconds: int) -> str:
        """Return a presigned URL."""
        return self._client.presigned(self._prefix + key, seconds)


class _MultipartUpload:
    """Upload of one object in parts; ``abandon`` removes the parts of a killed one."""

    def __init__(self, client: S3Client, key: str, part_bytes: int) -> None:
        self._client = client
        self._key = key
        self._part_bytes = part_bytes
        body = client.request("POST", key, [("uploads", "")]).body
        self._upload = element_text(body, "UploadId")

    def send(self, stream: BinaryIO, size: int, rate_limiter: RateLimiter) -> None:
        """Upload the parts, several at a time, and complete the object."""
        try:
            self._complete(self._upload_parts(stream, size, rate_limiter))
        except BaseException:
            self._abort()
            raise

    def _upload_parts(
        self, stream: BinaryIO, size: int, rate_limiter: RateLimiter
    ) -> Mapping[int, str]:
        """Return the ETags of the parts; no request is in progress afterwards, or it would outlive an abort."""
        sizes = (min(self._part_bytes, size - at) for at in range(0, size, self._part_bytes))
        parts = enumerate((_read_exactly(stream, length) for length in sizes), 1)
        uploads = map_ordered(lambda part: self._upload_part(*part, rate_limiter), parts, _THREADS)
        return {number: tag for (number, _), tag in uploads}

    def _abort(self) -> None:
        """Remove the parts, which are billed, unless the store is unavailable."""
        with contextlib.suppress(Failure):
            self._client.request("DELETE", self._key, [("uploadId", self._upload)], absent=True)

    def _upload_part(self, number: int, data: bytes, rate_limiter: RateLimiter) -> str:
        query = [("partNumber", str(number)), ("uploadId", self._upload)]
        return self._client.request(
            "PUT", self._key, query, data, rate_limiter=rate_limiter
        ).headers["etag"]

    def _complete(self, tags: Mapping[int, str]) -> None:
        parts = "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>{html.escape(tags[number])}</ETag></Part>"
            for number in sorted(tags)
        )
        body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
        query = [("uploadId", self._upload)]
        response = self._client.request("POST", self._key, query, body)
        if (
            b"<Error>" in response.body
        ):  # with status 200, which is sent before the outcome is known
            code = element_text(response.body, "Code")
            raise Failure("store", f"cannot complete the multipart upload of {self._key!r}: {code}")


def _uploads(client: S3Client, prefix: str) -> Iterator[Tuple[str, str]]:
    """Yield key and id of unfinished uploads, for each key the oldest first."""
    query = [("uploads", ""), ("prefix", prefix), ("encoding-type", "url")]

    def request(after: Optional[sigv4.Query]) -> _Page:
        body = client.request("GET", "", [*query, *(after or ())], absent=True).body
        key, upload = element_text(body, "NextKeyMarker"), element_text(body, "NextUploadIdMarker")
        is_more = element_text(body, "IsTruncated") == "true" and key
        return body, [("key-marker", key), ("upload-id-marker", upload)] if is_more else None

    for body in _list_pages(request):
        for entry in elements(body, "Upload"):
            key = _key(entry, body)
            if key.startswith(prefix):
                yield key, element_text(entry, "UploadId")


def _list_pages(request: Callable[[Optional[sigv4.Query]], _Page]) -> Iterator[bytes]:
    """Yield the bodies of a list's pages; Failure if they repeat."""
    return pages(request, Failure("store", "the bucket's list has no end (repeated pages)"))


def _key(entry: bytes, body: bytes) -> str:
    key = element_text(entry, "Key")
    return unquote_plus(key) if element_text(body, "EncodingType") == "url" else key


def _read_exactly(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) != size:
        raise Failure("changed", "the file was truncated while it was read")
    return data


def _unix_time(text: str) -> float:
    try:
        return float(calendar.timegm(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S")))
    except ValueError:
        return 0.0
