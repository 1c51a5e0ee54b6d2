"""Signed requests to an S3-compatible server, retried where that may help. Path style addresses."""

from __future__ import annotations

import hashlib
import html
import re
import threading
import time
from contextlib import AbstractContextManager
from email.utils import parsedate_to_datetime
from typing import Any, Callable, Dict, Iterator, Mapping, NamedTuple, Optional, TypeVar
from urllib.parse import urlsplit

from trainctl.base import sigv4
from trainctl.base.failure import Failure
from trainctl.base.http import HttpClient, HttpError, Response
from trainctl.base.http.limits import retry_after
from trainctl.base.pace import Pace
from trainctl.base.retry import Retry
from trainctl.errors import SourceBusy, SourceError

_CONNECT_SECONDS = 10.0
_SILENCE_SECONDS = 60.0
RETRY = Retry(attempts=5, base=0.4, unanswered=5, patience=120.0)
_BLOCK = 2**16
_PASSING = frozenset({408, 429, 500, 502, 503, 504})
_LARGEST = 64 * 2**20
_EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
_NO_PACE = Pace()
_NONE: Mapping[str, str] = {}
T = TypeVar("T")
_SKEWED = "RequestTimeTooSkewed"


class Answer(NamedTuple):
    """What the server said, but for errors."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Client:
    """One bucket. Safe to use from many threads."""

    def __init__(self, bucket: str, endpoint: Optional[str], credential: Mapping[str, Any]) -> None:
        self._bucket = bucket
        self._region = str(credential.get("aws_region") or "us-east-1")
        self._endpoint = endpoint
        self._credential: Optional[sigv4.Credential] = None
        if credential:
            self._credential = sigv4.Credential(
                str(credential["aws_access_key_id"]),
                str(credential["aws_secret_access_key"]),
                credential.get("aws_session_token") or None,
            )
        self._http = HttpClient(
            silence=_SILENCE_SECONDS, connect_seconds=_CONNECT_SECONDS, proxies=False
        )
        self._ended = threading.Event()
        self._skew = 0.0

    def ask(
        self,
        method: str,
        key: str = "",
        query: sigv4.Query = (),
        body: bytes = b"",
        *,
        pace: Pace = _NO_PACE,
        absent: bool = False,
    ) -> Answer:
        """One request. With ``absent``, 404 is an answer and not a Failure."""
        target = self._target(method, key, query)
        digest = hashlib.sha256(body).hexdigest() if body else _EMPTY_SHA256

        def once() -> Answer:
            with self._send(target, digest, _NONE, body, pace) as response:
                answer = Answer(response.status, response.headers, response.all(_LARGEST))
            self._judge(answer, target, absent)
            return answer

        return self._patiently(once)

    def stream(self, key: str, offset: int, write: Callable[[bytes], None]) -> None:
        """Hand over an object from an offset on; a connection that is cut is taken up where it was."""
        target = self._target("GET", key, ())
        done = offset
        version: Optional[str] = None

        def once() -> None:
            nonlocal done, version
            wanted = {"range": f"bytes={done}-"} if done else {}
            with self._send(target, _EMPTY_SHA256, wanted, b"", _NO_PACE) as response:
                headers = response.headers
                if response.status >= 300:
                    answer = Answer(response.status, headers, response.all(_LARGEST))
                    if response.status != 416:
                        self._judge(answer, target)
                    return
                if version not in (None, headers.get("etag")):
                    raise Failure("changed", f"{key!r} was replaced while it was read")
                version = headers.get("etag")
                begun = (headers.get("content-range") or "").startswith(f"bytes {done}-")
                for data in _blocks(response, skipped=0 if begun else done):  # rclone's are 200
                    write(data)
                    done += len(data)

        self._patiently(once)

    def presigned(self, key: str, seconds: int) -> str:
        """A presigned URL, valid for so many seconds."""
        target = self._target("GET", key, ())
        url = f"{self._scheme()}://{target.host}{sigv4.quoted_path(target.path)}"
        if self._credential is None:
            return url
        query = sigv4.presigned_query(
            target, self._credential, self._region, seconds, time.time() + self._skew
        )
        return f"{url}?{query}"

    def _target(self, method: str, key: str, query: sigv4.Query) -> sigv4.Target:
        try:
            key.encode()
        except UnicodeEncodeError:
            raise Failure("name", f"{key!r} is not UTF-8: no bucket can hold that name") from None
        path = f"/{self._bucket}/{key}" if key else f"/{self._bucket}"
        return sigv4.Target(method, self._host(), path, query)

    def _host(self) -> str:
        if self._endpoint:
            return urlsplit(self._endpoint).netloc
        return f"s3.{self._region}.amazonaws.com"

    def _scheme(self) -> str:
        return urlsplit(self._endpoint).scheme if self._endpoint else "https"

    def _patiently(self, once: Callable[[], T]) -> T:
        def act() -> T:
            try:
                return once()
            except HttpError as error:
                raise SourceBusy(error.reason) from None

        try:
            return RETRY.run(act, self._ended)
        except SourceError as error:
            place = f"{self._scheme()}://{self._host()}/{self._bucket}"
            raise Failure("store", f"{place} does not answer: {error.summary}") from None

    def _send(
        self,
        target: sigv4.Target,
        digest: str,
        extra: Mapping[str, str],
        body: bytes,
        pace: Pace,
    ) -> AbstractContextManager[Response]:
        target = target._replace(host=self._host())
        headers: Dict[str, str] = {"content-length": str(len(body)), **extra}
        if self._credential is not None:
            now = time.time() + self._skew
            headers.update(sigv4.headers(target, self._credential, self._region, digest, now))
        query = sigv4.quoted_query(target.query)
        path = sigv4.quoted_path(target.path) + (f"?{query}" if query else "")
        url = f"{self._scheme()}://{target.host}{path}"
        sent = _PacedBody(body, pace) if body else None
        return self._http.request(target.method, url, headers, body=sent, follow=False)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _judge(self, answer: Answer, target: sigv4.Target, absent: bool = False) -> None:
        """Raise what an error means: again at once, later, or a matter for a person."""
        if answer.status < 300 or (absent and answer.status == 404):
            return
        code = text_of(answer.body, "Code") or str(answer.status)
        region = answer.headers.get("x-amz-bucket-region") or text_of(answer.body, "Region")
        if answer.status in (301, 307, 400) and region and region != self._region:
            self._region = region
            raise SourceBusy(f"the bucket is in {region}")
        if code == _SKEWED and answer.headers.get("date"):
            self._skew = parsedate_to_datetime(answer.headers["date"]).timestamp() - time.time()
            raise SourceBusy(code)
        if answer.status in _PASSING:
            raise SourceBusy(code, retry_after=retry_after(answer.headers))
        said = text_of(answer.body, "Message")
        if answer.status == 404 and code != "NoSuchBucket":
            raise Failure("missing", f"{target.path!r} is not in the bucket", said)
        summary = f"{target.method} in bucket {self._bucket} was refused: {code}"
        raise Failure("denied", summary, said)


class _PacedBody:
    """The body of a request in blocks, sent no faster than its pace."""

    def __init__(self, data: bytes, pace: Pace) -> None:
        self._data = data
        self._pace = pace

    def __iter__(self) -> Iterator[bytes]:
        view = memoryview(self._data)
        for at in range(0, len(view), _BLOCK):
            block = view[at : at + _BLOCK]
            self._pace.spend(len(block))
            yield bytes(block)


def text_of(body: bytes, tag: str) -> str:
    """The text of the first element of that name in an answer; empty if there is none."""
    match = re.search(f"<{tag}>([^<]*)</{tag}>".encode(), body)
    return html.unescape(match[1].decode(errors="replace")) if match else ""


def _blocks(response: Response, skipped: int) -> Iterator[bytes]:
    """The body without its first ``skipped`` bytes; an error if it ends before its length."""
    for data in iter(lambda: response.read(_BLOCK * 4), b""):
        if skipped < len(data):
            yield data[skipped:]
        skipped = max(0, skipped - len(data))
