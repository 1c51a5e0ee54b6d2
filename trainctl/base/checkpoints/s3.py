"""Checkpoint store in an S3-compatible bucket: signed requests, retries, multipart uploads."""

from __future__ import annotations

import calendar
import contextlib
import hashlib
import html
import re
import threading
import time
from contextlib import AbstractContextManager
from email.utils import parsedate_to_datetime
from typing import (
    Any,
    BinaryIO,
    Callable,
    Dict,
    Iterator,
    Mapping,
    Optional,
    Tuple,
    TypeVar,
)
from urllib.parse import unquote_plus, urlsplit

from trainctl.base import sigv4
from trainctl.base.checkpoints.stores import StoreUnavailable, UnstorableFile
from trainctl.base.http import HttpClient, HttpError, Response
from trainctl.base.http.limits import retry_after
from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.base.objects import ObjectStat
from trainctl.base.pagination import pages
from trainctl.base.parallel import map_ordered
from trainctl.base.retry import RetryPolicy
from trainctl.base.throughput import RateLimiter
from trainctl.errors import (
    SourceError,
    SourceUnavailable,
    StorageError,
    TrainctlError,
    UnknownOnNode,
)

_CONNECT_SECONDS = 10.0
_SILENCE_SECONDS = 60.0
RETRY = RetryPolicy(attempts=5, base=0.4, unanswered=5, patience=120.0)
_BLOCK = 2**16
_TRANSIENT_STATUSES = frozenset({408, 429, 500, 502, 503, 504})
_MAX_BYTES = 64 * 2**20
_EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
_NO_RATE_LIMIT = RateLimiter()
_NO_HEADERS: Mapping[str, str] = {}
T = TypeVar("T")
_CLOCK_SKEW_CODE = "RequestTimeTooSkewed"
PATH_STYLE_REFUSED = compile_lazily(
    rb"<Code>(PathStyle|SecondLevelDomain|InvalidPathAccess)|virtual.host", re.IGNORECASE
)
"""Refusals of Nebius, CoreWeave, Tencent, Alibaba, Volcengine and others."""
is_address = compile_lazily(r"[0-9.]+(:\d+)?|\[.*").fullmatch
"""Return whether a host is an IP address, which can't have the bucket in front."""


class S3Response(NamedTuple):
    """A response that is not an error."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class S3Client:
    """Client of one bucket; thread-safe."""

    def __init__(self, bucket: str, endpoint: Optional[str], credential: Mapping[str, Any]) -> None:
        self._bucket = bucket
        self._region = str(credential.get("aws_region") or "us-east-1")
        self._endpoint = endpoint
        self._credential: Optional[sigv4.S3Credential] = None
        if credential:
            self._credential = sigv4.S3Credential(
                str(credential["aws_access_key_id"]),
                str(credential["aws_secret_access_key"]),
                credential.get("aws_session_token") or None,
            )
        self._http = HttpClient(
            read_timeout=_SILENCE_SECONDS, connect_seconds=_CONNECT_SECONDS, proxies=False
        )
        self._ended = threading.Event()
        self._skew = 0.0
        self._virtual = False

    def request(
        self,
        method: str,
        key: str = "",
        query: sigv4.Query = (),
        body: bytes = b"",
        *,
        rate_limiter: RateLimiter = _NO_RATE_LIMIT,
        absent: bool = False,
    ) -> S3Response:
        """Send a request; with ``absent``, return a 404 instead of raising TrainctlError."""
        target = self._target(method, key, query)
        digest = hashlib.sha256(body).hexdigest() if body else _EMPTY_SHA256

        def once() -> S3Response:
            with self._send(target, digest, _NO_HEADERS, body, rate_limiter) as raw:
                response = S3Response(raw.status, raw.headers, raw.read_all(_MAX_BYTES))
            self._raise_for_status(response, target, absent)
            return response

        return self._with_retry(once)

    def stream(self, key: str, offset: int, write: Callable[[bytes], None]) -> None:
        """Pass an object's bytes to ``write``, resuming broken connections."""
        target = self._target("GET", key, ())
        done = offset
        version: Optional[str] = None

        def once() -> None:
            nonlocal done, version
            range_header = {"range": f"bytes={done}-"} if done else {}
            with self._send(target, _EMPTY_SHA256, range_header, b"", _NO_RATE_LIMIT) as response:
                headers = response.headers
                if response.status >= 300:
                    body = response.read_all(_MAX_BYTES)
                    if response.status != 416:
                        self._raise_for_status(S3Response(response.status, headers, body), target)
                    return
                if version not in (None, headers.get("etag")):
                    raise UnstorableFile(f"{key!r} was replaced while it was read")
                version = headers.get("etag")
                is_partial = (headers.get("content-range") or "").startswith(f"bytes {done}-")
                # rclone answers 200 with the complete object
                for data in _blocks(response, skipped=0 if is_partial else done):
                    write(data)
                    done += len(data)

        self._with_retry(once)

    def presigned(self, key: str, seconds: int) -> str:
        """Return a presigned URL that is valid for ``seconds``."""
        target = self._addressed(self._target("GET", key, ()))
        url = f"{self._scheme()}://{target.host}{sigv4.quote_path(target.path)}"
        if self._credential is None:
            return url
        query = sigv4.presigned_query(
            target, self._credential, self._region, seconds, time.time() + self._skew
        )
        return f"{url}?{query}"

    def _target(self, method: str, key: str, query: sigv4.Query) -> sigv4.RequestTarget:
        try:
            key.encode()
        except UnicodeEncodeError:
            raise UnstorableFile(
                f"{key!r} is not UTF-8, so it can't be the name of an object"
            ) from None
        path = f"/{self._bucket}/{key}" if key else f"/{self._bucket}"
        return sigv4.RequestTarget(method, self._host(), path, query)

    def _addressed(self, target: sigv4.RequestTarget) -> sigv4.RequestTarget:
        """Return the target at the current region, in the style of addresses that the server accepts."""
        host = self._host()
        if not self._virtual:
            return target._replace(host=host)
        path = target.path[len(self._bucket) + 1 :] or "/"
        return target._replace(host=f"{self._bucket}.{host}", path=path)

    def _host(self) -> str:
        if self._endpoint:
            return urlsplit(self._endpoint).netloc
        return f"s3.{self._region}.amazonaws.com"

    def _scheme(self) -> str:
        return urlsplit(self._endpoint).scheme if self._endpoint else "https"

    def _with_retry(self, once: Callable[[], T]) -> T:
        def act() -> T:
            try:
                return once()
            except HttpError as error:
                raise SourceUnavailable(error.reason) from None

        try:
            return RETRY.run(act, self._ended)
        except SourceError as error:
            place = f"{self._scheme()}://{self._host()}/{self._bucket}"
            raise StoreUnavailable(f"{place} is unreachable: {error.summary}") from None

    def _send(
        self,
        target: sigv4.RequestTarget,
        digest: str,
        extra: Mapping[str, str],
        body: bytes,
        rate_limiter: RateLimiter,
    ) -> AbstractContextManager[Response]:
        target = self._addressed(target)
        headers: Dict[str, str] = {"content-length": str(len(body)), **extra}
        if self._credential is not None:
            now = time.time() + self._skew
            headers.update(
                sigv4.signed_headers(target, self._credential, self._region, digest, now)
            )
        query = sigv4.quote_query(target.query)
        path = sigv4.quote_path(target.path) + (f"?{query}" if query else "")
        url = f"{self._scheme()}://{target.host}{path}"
        throttled = _ThrottledBody(body, rate_limiter) if body else None
        return self._http.request(target.method, url, headers, body=throttled, follow=False)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _raise_for_status(
        self, response: S3Response, target: sigv4.RequestTarget, absent: bool = False
    ) -> None:
        """Raise SourceUnavailable for an error that a retry may fix, else TrainctlError."""
        status, headers, body = response
        if status < 300 or (absent and status == 404):
            return
        code = element_text(body, "Code") or str(status)
        is_refused = PATH_STYLE_REFUSED.search(body) and not is_address(self._host())
        if is_refused and not self._virtual:
            self._virtual = True
            raise SourceUnavailable(code)
        region = headers.get("x-amz-bucket-region") or element_text(body, "Region")
        if status in (301, 307, 400) and region and region != self._region:
            self._region = region
            raise SourceUnavailable(f"the bucket is in {region}")
        if code == _CLOCK_SKEW_CODE and headers.get("date"):
            self._skew = parsedate_to_datetime(headers["date"]).timestamp() - time.time()
            raise SourceUnavailable(code)
        if status in _TRANSIENT_STATUSES:
            raise SourceUnavailable(code, retry_after=retry_after(headers))
        message = element_text(body, "Message")
        if status == 404 and code != "NoSuchBucket":
            raise UnknownOnNode(f"{target.path!r} not found in the bucket", message)
        summary = f"{target.method} in bucket {self._bucket} failed: {code}"
        raise StorageError(summary, message, code="checkpoint-store")


class _ThrottledBody:
    """A request body that is sent in blocks, as fast as the rate limiter allows."""

    def __init__(self, data: bytes, rate_limiter: RateLimiter) -> None:
        self._data = data
        self._rate_limiter = rate_limiter

    def __iter__(self) -> Iterator[bytes]:
        view = memoryview(self._data)
        for at in range(0, len(view), _BLOCK):
            block = view[at : at + _BLOCK]
            self._rate_limiter.acquire(len(block))
            yield bytes(block)


def elements(body: bytes, tag: str) -> Iterator[bytes]:
    """Yield the contents of XML elements of that name."""
    for match in re.finditer(f"<{tag}>(.*?)</{tag}>".encode(), body, re.DOTALL):
        yield match[1]


def element_text(body: bytes, tag: str) -> str:
    """Return the text of the first XML element of that name; empty if there is none."""
    match = re.search(f"<{tag}>([^<]*)</{tag}>".encode(), body)
    return html.unescape(match[1].decode(errors="replace")) if match else ""


def _blocks(response: Response, skipped: int) -> Iterator[bytes]:
    """Yield the body without its first ``skipped`` bytes."""
    for data in iter(lambda: response.read(_BLOCK * 4), b""):
        if skipped < len(data):
            yield data[skipped:]
        skipped = max(0, skipped - len(data))


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
            sizes = (min(part, size - at) for at in range(0, size, part))
            parts = (_read_exactly(stream, length) for length in sizes)
            self._put_parts(self._prefix + key, parts, rate_limiter)

    def _put_parts(self, key: str, parts: Iterator[bytes], rate_limiter: RateLimiter) -> None:
        """Upload an object in parts, several at a time; ``abandon`` removes the parts of a killed upload."""
        request = self._client.request
        upload = element_text(request("POST", key, [("uploads", "")]).body, "UploadId")
        own = [("uploadId", upload)]

        def send(part: Tuple[int, bytes]) -> str:
            query = [("partNumber", str(part[0])), *own]
            return request("PUT", key, query, part[1], rate_limiter=rate_limiter).headers["etag"]

        try:
            # no request is in progress after an error, or it would outlive the abort
            tags = "".join(
                f"<Part><PartNumber>{number}</PartNumber><ETag>{html.escape(tag)}</ETag></Part>"
                for (number, _), tag in map_ordered(send, enumerate(parts, 1), _THREADS)
            )
            body = f"<CompleteMultipartUpload>{tags}</CompleteMultipartUpload>".encode()
            answer = request("POST", key, own, body).body
            if b"<Error>" in answer:  # with status 200, sent before the outcome is known
                code = element_text(answer, "Code")
                failure = f"cannot complete the multipart upload of {key!r}: {code}"
                raise StoreUnavailable(failure)  # noqa: TRY301 - aborted as for any error
        except BaseException:
            with contextlib.suppress(TrainctlError):  # the parts are billed
                request("DELETE", key, own, absent=True)
            raise

    def get(self, key: str) -> Optional[bytes]:
        response = self._client.request("GET", self._prefix + key, absent=True)
        if response.status == 404 and element_text(response.body, "Code") == "NoSuchBucket":
            raise StorageError("bucket of the checkpoints not found", code="checkpoint-store")
        return None if response.status == 404 else response.body

    def read(self, key: str, offset: int, write: Callable[[bytes], None]) -> None:
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
        self._client.request("DELETE", self._prefix + key, absent=True)

    def abandon(self, prefix: str) -> None:
        """Abort the multipart uploads under the prefix; their parts are billed."""
        for key, upload in _uploads(self._client, self._prefix + prefix):
            self._client.request("DELETE", key, [("uploadId", upload)], absent=True)

    def close(self) -> None:
        self._client.close()

    def url(self, key: str, seconds: int) -> str:
        return self._client.presigned(self._prefix + key, seconds)


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
    """Yield the bodies of a list's pages; TrainctlError if they repeat."""
    return pages(request, StoreUnavailable("the bucket's list has no end (repeated pages)"))


def _key(entry: bytes, body: bytes) -> str:
    key = element_text(entry, "Key")
    return unquote_plus(key) if element_text(body, "EncodingType") == "url" else key


def _read_exactly(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) != size:
        raise UnstorableFile("the file was truncated while it was read")
    return data


def _unix_time(text: str) -> float:
    try:
        return float(calendar.timegm(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S")))
    except ValueError:
        return 0.0
