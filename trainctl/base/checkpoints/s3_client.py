"""Requests to an S3-compatible server: signed, timed out, repeated where that may help. Path style addresses."""

from __future__ import annotations

import contextlib
import hashlib
import html
import http.client
import random
import re
import ssl
import threading
import time
from email.utils import parsedate_to_datetime
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, TypeVar
from urllib.parse import urlsplit

from trainctl.base import sigv4
from trainctl.base.failure import Failure
from trainctl.base.pace import Pace

_CONNECT_SECONDS = 10.0
_SILENCE_SECONDS = 60.0
_ATTEMPTS = 5
_FIRST_PAUSE_SECONDS = 0.2
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
    """One bucket. Safe to use from many threads: each request has a connection to itself, which the next one takes over."""

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
        self._lock = threading.Lock()
        self._idle: List[http.client.HTTPConnection] = []
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
            with self._connection() as connection:
                response = self._send(connection, target, digest, _NONE, body, pace)
                answer = Answer(response.status, _lower(response), response.read(_LARGEST))
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
            with self._connection() as connection:
                response = self._send(connection, target, _EMPTY_SHA256, wanted, b"", _NO_PACE)
                headers = _lower(response)
                if response.status >= 300:
                    answer = Answer(response.status, headers, response.read(_LARGEST))
                    if response.status != 416:
                        self._judge(answer, target)
                    return
                if version not in (None, headers.get("etag")):
                    raise Failure("changed", f"{key!r} was replaced while it was read")
                version = headers.get("etag")
                begun = headers.get("content-range", "").startswith(f"bytes {done}-")
                for data in _blocks(response, skipped=0 if begun else done):  # rclone's are 200
                    write(data)
                    done += len(data)

        self._patiently(once)

    def presigned(self, key: str, seconds: int) -> str:
        """A URL that works for anybody who has it, for so many seconds."""
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
        pause = _FIRST_PAUSE_SECONDS
        for _ in range(_ATTEMPTS - 1):
            try:
                return once()
            except _PASSES:
                pass
            time.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - so that many don't come at once
            pause *= 3
        try:
            return once()
        except _PASSES as error:
            place = f"{self._scheme()}://{self._host()}/{self._bucket}"
            raise Failure("store", f"{place} does not answer: {_words(error)}") from None

    def _send(
        self,
        connection: http.client.HTTPConnection,
        target: sigv4.Target,
        digest: str,
        extra: Mapping[str, str],
        body: bytes,
        pace: Pace,
    ) -> http.client.HTTPResponse:
        target = target._replace(host=self._host())
        headers: Dict[str, str] = {"content-length": str(len(body)), **extra}
        if self._credential is not None:
            now = time.time() + self._skew
            headers.update(sigv4.headers(target, self._credential, self._region, digest, now))
        query = sigv4.quoted_query(target.query)
        url = sigv4.quoted_path(target.path) + (f"?{query}" if query else "")
        # a server that refuses may say so before it has read everything
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.request(target.method, url, _paced(body, pace) if body else None, headers)
        return connection.getresponse()

    @contextlib.contextmanager
    def _connection(self) -> Iterator[http.client.HTTPConnection]:
        """One that nobody uses; kept for the next if its answer was read, closed otherwise."""
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        if connection is None or connection.host != urlsplit(f"//{self._host()}").hostname:
            if connection is not None:
                connection.close()
            connection = self._connect(self._host())
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._idle.append(connection)

    def close(self) -> None:
        """Close the connections that nobody uses."""
        with self._lock:
            for connection in self._idle:
                connection.close()
            self._idle.clear()

    def _connect(self, host: str) -> http.client.HTTPConnection:
        if self._scheme() == "https":
            context = ssl.create_default_context()
            made: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, timeout=_CONNECT_SECONDS, context=context
            )
        else:
            made = http.client.HTTPConnection(host, timeout=_CONNECT_SECONDS)
        made.connect()
        made.sock.settimeout(_SILENCE_SECONDS)
        return made

    def _judge(self, answer: Answer, target: sigv4.Target, absent: bool = False) -> None:
        """Raise what an error means: again at once, later, or a matter for a person."""
        if answer.status < 300 or (absent and answer.status == 404):
            return
        code = text_of(answer.body, "Code") or str(answer.status)
        region = answer.headers.get("x-amz-bucket-region") or text_of(answer.body, "Region")
        if answer.status in (301, 307, 400) and region and region != self._region:
            self._region = region
            raise _Again(f"the bucket is in {region}")
        if code == _SKEWED and answer.headers.get("date"):
            self._skew = parsedate_to_datetime(answer.headers["date"]).timestamp() - time.time()
            raise _Again(code)
        if answer.status in _PASSING:
            raise _Again(code)
        said = text_of(answer.body, "Message")
        if answer.status == 404 and code != "NoSuchBucket":
            raise Failure("missing", f"{target.path!r} is not in the bucket", said)
        summary = f"{target.method} in bucket {self._bucket} was refused: {code}"
        raise Failure("denied", summary, said)


class _Again(Exception):
    """Not this time."""


_PASSES = (_Again, OSError, http.client.HTTPException)


def text_of(body: bytes, tag: str) -> str:
    """The text of the first element of that name in an answer; empty if there is none."""
    match = re.search(f"<{tag}>([^<]*)</{tag}>".encode(), body)
    return html.unescape(match[1].decode(errors="replace")) if match else ""


def _words(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _lower(response: http.client.HTTPResponse) -> Dict[str, str]:
    return {name.lower(): value for name, value in response.getheaders()}


def _paced(body: bytes, pace: Pace) -> Iterator[bytes]:
    view = memoryview(body)
    for at in range(0, len(body), _BLOCK):
        block = view[at : at + _BLOCK]
        pace.spend(len(block))
        yield bytes(block)


def _blocks(response: http.client.HTTPResponse, skipped: int) -> Iterator[bytes]:
    """The body after so many bytes; an error if it ends before its length."""
    left = response.length
    for data in iter(lambda: response.read(_BLOCK * 4), b""):
        if left is not None:
            left -= len(data)
        if skipped < len(data):
            yield data[skipped:]
        skipped = max(0, skipped - len(data))
    if left:
        raise ConnectionResetError(104, "the connection was cut")
