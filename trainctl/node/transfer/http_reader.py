"""Read objects over HTTP: from a server by token, or a bucket by presigned URL."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import threading
from contextlib import ExitStack
from typing import (  # fmt: skip
    Any,
    ContextManager,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    Union,
)
from urllib.parse import urlsplit

from trainctl.base.http import HttpClient, HttpError, HttpInterrupted, HttpUnreachable, Response
from trainctl.base.http.refusals import ERROR_BYTES, server_message
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.base.listing import ListedFile
from trainctl.base.network.addresses import (
    address_family,
    has_tls,
    is_loopback,
    is_private,
    network_id,
)
from trainctl.base.network.http_errors import NoReachableAddress, PeerAuthError
from trainctl.base.network.object_server import EVENLY, INCOMING, LENGTH, MAX_PACKED_BYTES
from trainctl.base.protocol.wire import CallbackClient, CallerGone
from trainctl.base.throughput import RateLimiter
from trainctl.errors import NodeError, TrainctlError, UnknownOnNode
from trainctl.node.transfer.fetch_pool import Data, units_of
from trainctl.node.transfer.object_readers import ObjectReader, RetryAfter
from trainctl.store import keys

SILENCE_SECONDS = 30.0
_CONNECT_SECONDS = 10.0
_CONNECT_SECONDS_PER_ADDRESS = 3.0
_BUFFER_BYTES = 2**20
_BUSY_STATUSES = (408, 425, 429, 500, 502, 503, 504)
_BATCH_URLS = 64
"""URLs per request: few enough that the last is used before it expires."""
_POSITION = compile_lazily(r"bytes (\d{1,18})-")


class HttpReader(ObjectReader):
    """Base of readers over HTTP; subclasses make the requests."""

    broken = (HttpError,)
    _client: HttpClient

    def __init__(self, rate_limiter: Optional[RateLimiter] = None) -> None:
        self._rate_limiter = rate_limiter or RateLimiter()

    def read(self, key: str, offset: int, view: memoryview, wait: float = 0) -> Iterator[int]:
        """``wait``: seconds for which the server may delay its response."""
        headers = {"Range": f"bytes={offset}-{offset + len(view) - 1}"}
        with self._request(key, headers, wait) as response:
            self._check_status(response, key)
            length = min(len(view), self._seek(response, offset))
            for start in range(0, length, _BUFFER_BYTES):
                buffer = view[start : min(start + _BUFFER_BYTES, length)]
                self._rate_limiter.acquire(len(buffer))
                response.fill(buffer)
                yield len(buffer)

    def load(self, key: str) -> bytes:
        with self._request(key, {}, 0) as response:
            self._check_status(response, key)
            return b"".join(response.iter_bytes())

    def abort(self) -> None:
        self._client.abort()

    def close(self) -> None:
        self._client.close()

    def _request(
        self, key: str, headers: Mapping[str, str], wait: float
    ) -> ContextManager[Response]:
        raise NotImplementedError

    def _check_status(self, response: Response, key: str) -> None:
        if response.status in (200, 206):
            return
        if response.status in (404, 416):
            raise UnknownOnNode(f"{key} not found at {self.where}")
        if response.status in _BUSY_STATUSES:
            text = response.headers.get("Retry-After") or ""
            seconds = float(text) if text.isdigit() and len(text) < 5 else 0.0
            raise RetryAfter(seconds, is_incoming=response.status == 503 and text == "0")
        said = server_message(response.headers, response.read(ERROR_BYTES))
        summary = f"access to weights denied by {self.where} (status {response.status})"
        raise NodeError(f"{summary}: {said}" if said else summary)

    def _seek(self, response: Response, offset: int) -> int:
        """Skip bytes before the offset, as some servers ignore ranges; bytes left."""
        position = _POSITION.match(response.headers.get("Content-Range") or "")
        before = offset - (int(position[1]) if position else 0)
        length = int(response.headers.get("Content-Length") or 0) - before
        if before < 0 or length <= 0:
            raise HttpInterrupted(f"unexpected range from {self.where}")
        while before:
            skipped = len(response.read(min(before, _BUFFER_BYTES)))
            self._rate_limiter.acquire(skipped)
            before -= skipped
        return length


class ServerReader(HttpReader):
    """Objects of an ObjectServer; prefers the first address that responds.

    ``server``: ``urls``, ``token``, ``fingerprint`` of the TLS certificate, and ``loopback``, the id of the network in
    which loopback addresses are valid; anywhere if absent. ``evenly``: not faster than the server's other clients that
    ask for it. TrainctlError if invalid.
    """

    streams = 2

    def __init__(
        self,
        server: Mapping[str, Any],
        rate_limiter: Optional[RateLimiter] = None,
        read_timeout: float = SILENCE_SECONDS,
        *,
        evenly: bool = False,
    ) -> None:
        super().__init__(rate_limiter)
        self._preferences = [EVENLY] if evenly else []
        urls, token, pin = server.get("urls"), server.get("token"), server.get("fingerprint")
        pin = pin if isinstance(pin, str) else None
        if not isinstance(token, str) or not token:
            raise NodeError("token of the HTTP server is missing")
        if not isinstance(urls, list) or not urls:
            raise NodeError(f"invalid server URLs {urls!r}: expected http://ADDRESS:PORT")
        for url in urls:
            parts = urlsplit(url) if isinstance(url, str) else urlsplit("")
            if parts.scheme not in ("http", "https") or not (parts.hostname and parts.port):
                raise NodeError(f"invalid server URL {url!r}: expected http://ADDRESS:PORT")
            address_family(parts.hostname)
            if parts.scheme == "https" and pin is None:
                raise NodeError(f"certificate fingerprint for {parts.netloc} is missing")
            if parts.scheme == "http" and not is_private(parts.hostname):
                raise NodeError(f"TLS is required for {parts.netloc}: not a private address")
        self.where = " or ".join(urlsplit(url).netloc for url in urls)
        self._urls = _usable_urls(urls, server.get("loopback"), self.where)
        self._secrets = {"Authorization": f"Bearer {token}"}
        self._read_timeout = read_timeout
        self._has_responded = False
        seconds = _CONNECT_SECONDS if len(urls) == 1 else _CONNECT_SECONDS_PER_ADDRESS
        self._client = HttpClient(
            read_timeout=read_timeout, connect_seconds=seconds, proxies=False, pin=pin
        )

    def pack(self, digests: Sequence[str], wait: float) -> Tuple[Dict[str, Data], bool]:
        """Read small blobs in one response; whether the server is still fetching others.

        Errors as in ``read``.
        """
        blobs: Dict[str, Data] = {}
        is_incoming = False
        body = json.dumps(list(digests)).encode()
        with self._exchange("POST", "/pack", {}, body, wait) as response:
            self._check_status(response, digests[0])
            for digest in digests:
                length = LENGTH.unpack(_read_exactly(response, LENGTH.size))[0]
                if length < MAX_PACKED_BYTES:
                    self._rate_limiter.acquire(length)
                    blobs[digest] = _read_exactly(response, length)
                is_incoming = is_incoming or length == INCOMING
        return blobs, is_incoming

    def _request(
        self, key: str, headers: Mapping[str, str], wait: float
    ) -> ContextManager[Response]:
        return self._exchange("GET", f"/{key}", headers, None, wait)

    @contextlib.contextmanager
    def _exchange(
        self, method: str, path: str, headers: Mapping[str, str], body: Optional[bytes], wait: float
    ) -> Iterator[Response]:
        if isinstance(self._urls, TrainctlError):
            raise self._urls
        preferences = [*self._preferences, *([f"wait={math.ceil(wait)}"] if wait else [])]
        more = {"Prefer": ", ".join(preferences)} if preferences else {}
        errors: List[Exception] = []
        with ExitStack() as stack:
            for url in list(self._urls):
                try:
                    response = stack.enter_context(
                        self._client.request(
                            method, f"{url}{path}", {**headers, **more}, secret_headers=self._secrets,
                            body=body, follow=False, read_timeout=self._read_timeout + wait,
                        )
                    )  # fmt: skip
                except (HttpError, PeerAuthError) as error:
                    is_interrupted = isinstance(error, HttpInterrupted)
                    self.is_reached = self.is_reached or is_interrupted
                    if is_interrupted and self._has_responded:
                        raise
                    errors.append(error)
                    continue
                self._urls = [url, *(other for other in self._urls if other != url)]
                self.where = urlsplit(url).netloc
                self._has_responded = self.is_reached = True
                yield response
                return
        if len(errors) == 1 or all(isinstance(error, PeerAuthError) for error in errors):
            raise errors[0]
        raise HttpUnreachable("; ".join(map(str, errors)))


class SignedUrls:
    """Presigned URLs of a delivery's objects, requested in batches. Thread-safe."""

    def __init__(self, callbacks: CallbackClient) -> None:
        self._callbacks = callbacks
        self._lock = threading.Lock()
        self._order: List[str] = []
        self._numbers: Dict[str, int] = {}
        self._urls: Dict[str, str] = {}

    def begin(self, files: Iterable[ListedFile]) -> None:
        """Set the files that are read next, in order, except small ones."""
        units = (unit for file in files for unit in units_of(file) if not unit.is_small)
        with self._lock:
            self._order = list(dict.fromkeys(keys.blob(unit.chunk.sha256) for unit in units))
            self._numbers = {key: number for number, key in enumerate(self._order)}
            self._urls.clear()

    def find(self, key: str) -> str:
        """Return an object's URL; UnknownOnNode or NodeError."""
        with self._lock:
            if key not in self._urls:
                start = self._numbers.get(key, len(self._order)) + 1
                following = self._order[start : start + _BATCH_URLS]
                self._request([key, *(other for other in following if other not in self._urls)])
            if not self._urls[key]:
                raise UnknownOnNode(f"{key} not found in the bucket")
            return self._urls[key]

    def forget(self, key: str, url: str) -> None:
        """Drop a URL that was denied, so that a new one is requested."""
        with self._lock:
            if self._urls.get(key) == url:
                del self._urls[key]

    def _request(self, batch: Sequence[str]) -> None:
        try:
            response = self._callbacks.request({"method": "links", "keys": batch})
        except CallerGone:
            raise NodeError(
                "client disconnected", "Data fetched so far is kept. Apply again."
            ) from None
        if "error" in response:
            error = response["error"]
            raise NodeError(str(error["summary"]), str(error["detail"]))
        self._urls.update(zip(batch, response["links"]))


class BucketReader(HttpReader):
    """Objects of a bucket, in several streams because of its latency."""

    streams = 8
    where = "the bucket"
    is_reached = True  # URLs lead to many servers: retry all in the same way

    def __init__(self, urls: SignedUrls, rate_limiter: Optional[RateLimiter] = None) -> None:
        super().__init__(rate_limiter)
        self._urls = urls
        self._client = HttpClient(read_timeout=SILENCE_SECONDS, connect_seconds=_CONNECT_SECONDS)

    @contextlib.contextmanager
    def _request(self, key: str, headers: Mapping[str, str], wait: float) -> Iterator[Response]:
        for is_last in (False, True):
            url = self._urls.find(key)
            with self._client.request("GET", url, headers) as response:
                if response.status in (400, 401, 403):  # it may have expired
                    self._urls.forget(key, url)
                    if not is_last:
                        continue
                yield response
                return


def _usable_urls(urls: Sequence[str], loopback: Any, where: str) -> Any:
    """URLs that this host can use, or the error."""
    is_same_network = loopback is None or loopback == network_id() != ""
    reachable = [url for url in urls if is_same_network or not is_loopback(urlsplit(url).hostname)]
    usable = [url for url in reachable if url.startswith("http:") or has_tls()]
    if usable:
        return usable
    if reachable:
        return NoReachableAddress(f"{where} requires TLS, which {sys.executable} does not support")
    return NoReachableAddress(f"{where} is a loopback address of another host")


def _read_exactly(response: Response, count: int) -> Union[bytes, bytearray]:
    data = bytearray(count)
    if count:
        response.fill(memoryview(data))
    return data
