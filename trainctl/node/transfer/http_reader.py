"""Read objects by key over HTTP: from a server that has a token, or from a bucket by presigned URLs."""

from __future__ import annotations

import contextlib
import json
import math
import re
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
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Union,
)
from urllib.parse import urlsplit

from trainctl.base.failure import Failure, NoReachableAddress, PeerAuthError
from trainctl.base.http import HttpClient, HttpError, HttpInterrupted, HttpUnreachable, Response
from trainctl.base.listing import ListedFile
from trainctl.base.network.addresses import (
    address_family,
    has_tls,
    is_loopback,
    is_private,
    network_id,
)
from trainctl.base.network.object_server import INCOMING, LENGTH, MAX_PACKED_BYTES
from trainctl.base.protocol.callbacks import CallbackClient, CallerGone
from trainctl.base.throughput import RateLimiter
from trainctl.node.transfer.object_readers import ObjectReader, RetryAfter
from trainctl.node.transfer.transfer_units import units_of
from trainctl.store import keys

SILENCE_SECONDS = 30.0
_CONNECT_SECONDS = 10.0
_CONNECT_SECONDS_PER_ADDRESS = 3.0
_BUFFER_BYTES = 2**20
_BUSY_STATUSES = (408, 425, 429, 500, 502, 503, 504)
_SIGNED_AT_ONCE = 64
"""Few enough that the last URL is used before it expires."""
_POSITION = re.compile(r"bytes (\d{1,18})-")


class HttpReader(ObjectReader):
    """Reads objects by requests that a subclass makes."""

    broken = (HttpError,)

    def __init__(self, rate_limiter: Optional[RateLimiter] = None) -> None:
        self._rate_limiter = rate_limiter or RateLimiter()

    def read(self, key: str, offset: int, view: memoryview, wait: float = 0) -> Iterator[int]:
        """See ObjectReader. ``wait``: seconds for which the server may hold back its response."""
        wanted = {"Range": f"bytes={offset}-{offset + len(view) - 1}"}
        with self._request(key, wanted, wait) as response:
            self._judge(response, key)
            length = min(len(view), self._seek(response, offset))
            for start in range(0, length, _BUFFER_BYTES):
                piece = view[start : min(start + _BUFFER_BYTES, length)]
                self._rate_limiter.acquire(len(piece))
                response.fill(piece)
                yield len(piece)

    def load(self, key: str) -> bytes:
        """See ObjectReader."""
        with self._request(key, {}, 0) as response:
            self._judge(response, key)
            return b"".join(response.iter_bytes())

    def _request(
        self, key: str, headers: Mapping[str, str], wait: float
    ) -> ContextManager[Response]:
        raise NotImplementedError

    def _judge(self, response: Response, key: str) -> None:
        if response.status in (200, 206):
            return
        if response.status in (404, 416):
            raise Failure("missing", f"{self.where} does not have {key}")
        if response.status in _BUSY_STATUSES:
            text = response.headers.get("Retry-After") or ""
            seconds = float(text) if text.isdigit() and len(text) < 5 else 0.0
            raise RetryAfter(seconds, coming=response.status == 503 and text == "0")
        raise Failure(
            "denied", f"{self.where} refuses to hand out weights (status {response.status})"
        )

    def _seek(self, response: Response, offset: int) -> int:
        """Skip what precedes the offset, as some servers ignore ranges; how many bytes follow."""
        position = _POSITION.match(response.headers.get("Content-Range") or "")
        before = offset - (int(position[1]) if position else 0)
        length = int(response.headers.get("Content-Length") or 0) - before
        if before < 0 or length <= 0:
            raise HttpInterrupted(f"{self.where} sends other bytes than were requested")
        while before:
            skipped = len(response.read(min(before, _BUFFER_BYTES)))
            self._rate_limiter.acquire(skipped)
            before -= skipped
        return length


class PackResponse(NamedTuple):
    """Small contents that came together, and those that the server is being sent itself."""

    contents: Dict[str, Union[bytes, bytearray]]
    coming: Set[str]


class ServerReader(HttpReader):
    """Objects behind an ObjectServer, which may have several addresses: the first that answers is kept.

    ``server`` is as requests describe it: ``urls``, ``token``, ``fingerprint`` for those of TLS, and ``loopback``, the
    network in which its loopback addresses are valid; anywhere if that is absent. Failure for an invalid one.
    """

    streams = 2

    def __init__(
        self,
        server: Mapping[str, Any],
        rate_limiter: Optional[RateLimiter] = None,
        read_timeout: float = SILENCE_SECONDS,
    ) -> None:
        super().__init__(rate_limiter)
        urls, token, pin = server.get("urls"), server.get("token"), server.get("fingerprint")
        if not isinstance(token, str) or not token:
            raise Failure("request", "the request to fetch over HTTP lacks its token")
        if not isinstance(urls, list) or not urls:
            raise Failure("request", f"{urls!r} are not http://ADDRESS:PORT to fetch weights from")
        for url in urls:
            _validate_url(url, has_pin=isinstance(pin, str))
        self.where = " or ".join(urlsplit(url).netloc for url in urls)
        self._urls = _usable_urls(urls, server.get("loopback"), self.where)
        self._secrets = {"Authorization": f"Bearer {token}"}
        self._read_timeout = read_timeout
        self._has_answered = False
        seconds = _CONNECT_SECONDS if len(urls) == 1 else _CONNECT_SECONDS_PER_ADDRESS
        self._client = HttpClient(
            read_timeout=read_timeout, connect_seconds=seconds, proxies=False, pin=pin if isinstance(pin, str) else None
        )  # fmt: skip

    def pack(self, digests: Sequence[str], wait: float = 0) -> PackResponse:
        """Small contents in one response; errors as ``read`` raises them."""
        found = PackResponse({}, set())
        body = json.dumps(list(digests)).encode()
        with self._exchange("POST", "/pack", {}, body, wait) as response:
            self._judge(response, digests[0])
            for digest in digests:
                length = LENGTH.unpack(_read_exactly(response, LENGTH.size))[0]
                if length < MAX_PACKED_BYTES:
                    self._rate_limiter.acquire(length)
                    found.contents[digest] = _read_exactly(response, length)
                elif length == INCOMING:
                    found.coming.add(digest)
        return found

    def abort(self) -> None:
        """See ObjectReader."""
        self._client.abort()

    def close(self) -> None:
        """See ObjectReader."""
        self._client.close()

    def _request(
        self, key: str, headers: Mapping[str, str], wait: float
    ) -> ContextManager[Response]:
        return self._exchange("GET", f"/{key}", headers, None, wait)

    @contextlib.contextmanager
    def _exchange(
        self, method: str, path: str, headers: Mapping[str, str], body: Optional[bytes], wait: float
    ) -> Iterator[Response]:
        if isinstance(self._urls, Failure):
            raise self._urls
        more = {"Prefer": f"wait={math.ceil(wait)}"} if wait else {}
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
                    is_cut = isinstance(error, HttpInterrupted)
                    self.is_reached = self.is_reached or is_cut
                    if is_cut and self._has_answered:
                        raise
                    errors.append(error)
                    continue
                self._urls = [url, *(other for other in self._urls if other != url)]
                self.where = urlsplit(url).netloc
                self._has_answered = self.is_reached = True
                yield response
                return
        if len(errors) == 1 or all(isinstance(error, PeerAuthError) for error in errors):
            raise errors[0]
        raise HttpUnreachable("; ".join(map(str, errors)))


class SignedUrls:
    """The presigned URLs of a delivery's objects, which its caller signs when they are about to be read."""

    def __init__(self, callbacks: CallbackClient) -> None:
        self._callbacks = callbacks
        self._lock = threading.Lock()
        self._order: List[str] = []
        self._numbers: Dict[str, int] = {}
        self._known: Dict[str, str] = {}

    def begin(self, files: Iterable[ListedFile]) -> None:
        """Expect that these are read next, in this order. Small files are in packs, which are signed as they are read."""
        parts = (part for file in files for part in units_of(file) if not part.is_small)
        with self._lock:
            self._order = list(dict.fromkeys(keys.blob(part.chunk.sha256) for part in parts))
            self._numbers = {key: number for number, key in enumerate(self._order)}
            self._known.clear()

    def of(self, key: str) -> str:
        """An object's URL. Failure ``missing`` if there is no such object, ``origin`` if the caller can't sign it."""
        with self._lock:
            if key not in self._known:
                self._ask(key)
            if not self._known[key]:
                raise Failure("missing", f"the bucket does not have {key}")
            return self._known[key]

    def forget(self, key: str, url: str) -> None:
        """Have another URL signed, as this one was refused."""
        with self._lock:
            if self._known.get(key) == url:
                del self._known[key]

    def _ask(self, key: str) -> None:
        start = self._numbers.get(key, len(self._order)) + 1
        following = self._order[start : start + _SIGNED_AT_ONCE]
        wanted = [key, *(other for other in following if other not in self._known)]
        try:
            answer = self._callbacks.request({"method": "links", "keys": wanted})
        except CallerGone:
            raise Failure(
                "origin",
                "the command that called this node has ended",
                "What arrived is kept. Apply again.",
            ) from None
        if "error" in answer:
            error = answer["error"]
            raise Failure("origin", str(error["summary"]), str(error["detail"]))
        self._known.update(zip(wanted, answer["links"]))


class BucketReader(HttpReader):
    """Objects of a bucket. A stream is as slow as the round trip is long, so there are several."""

    streams = 8
    where = "the bucket"
    is_reached = True  # URLs lead to many servers, which are waited for alike

    def __init__(self, urls: SignedUrls, rate_limiter: Optional[RateLimiter] = None) -> None:
        super().__init__(rate_limiter)
        self._urls = urls
        self._client = HttpClient(read_timeout=SILENCE_SECONDS, connect_seconds=_CONNECT_SECONDS)

    def abort(self) -> None:
        """See ObjectReader."""
        self._client.abort()

    def close(self) -> None:
        """See ObjectReader."""
        self._client.close()

    @contextlib.contextmanager
    def _request(self, key: str, headers: Mapping[str, str], wait: float) -> Iterator[Response]:
        for is_last in (False, True):
            url = self._urls.of(key)
            with self._client.request("GET", url, headers) as response:
                if response.status in (400, 401, 403):  # it may have expired
                    self._urls.forget(key, url)
                    if not is_last:
                        continue
                yield response
                return


def _validate_url(url: Any, *, has_pin: bool) -> None:
    parts = urlsplit(url) if isinstance(url, str) else None
    if (
        parts is None
        or parts.scheme not in ("http", "https")
        or not (parts.hostname and parts.port)
    ):
        raise Failure("request", f"{url!r} is not http://ADDRESS:PORT to fetch weights from")
    address_family(parts.hostname)
    if parts.scheme == "https" and not has_pin:
        raise Failure("request", f"{parts.netloc} is asked over https without a fingerprint")
    if parts.scheme == "http" and not is_private(parts.hostname):
        raise Failure("request", f"{parts.netloc} is asked without TLS, and isn't private")


def _usable_urls(urls: Sequence[str], loopback: Any, where: str) -> Any:
    """The URLs that this host can use, or why there are none."""
    is_ours = loopback is None or loopback == network_id() != ""
    others = [url for url in urls if is_ours or not is_loopback(urlsplit(url).hostname)]
    usable = [url for url in others if url.startswith("http:") or has_tls()]
    if usable:
        return usable
    if others:
        return NoReachableAddress(f"{where} is asked over TLS, and {sys.executable} here has none")
    return NoReachableAddress(f"{where} is another host's loopback")


def _read_exactly(response: Response, count: int) -> Union[bytes, bytearray]:
    data = bytearray(count)
    if count:
        response.fill(memoryview(data))
    return data
