"""Reading objects by links to them: plain HTTP or HTTPS, one connection that stays open, one attempt at a time."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
from typing import Iterator, List, Mapping, NamedTuple, Optional, Protocol, Tuple, TypeVar
from urllib.parse import urlsplit

from trainctl.base.failure import Failure
from trainctl.base.pace import Pace
from trainctl.node.transfer.blob_client import SILENCE_SECONDS, Later
from trainctl.node.transfer.links import Place
from trainctl.node.transfer.reaching import CONNECT_SECONDS

_GAP_BYTES = 2**16
"""What lies between two contents is read too, if it isn't more: another request would take longer."""
_READ_BYTES = 2**20
_LATER = (408, 425, 429, 500, 502, 503, 504)
_BROKEN = (OSError, http.client.HTTPException)
T = TypeVar("T")


class Links(Protocol):
    """The links to contents, or to objects by key."""

    def of(self, sha256: str) -> Place:
        """Where a content is. Failure if there is no link to it."""
        ...

    def forget(self, sha256: str, link: str) -> None:
        """A link is refused, or used."""
        ...

    def lose(self) -> None:
        """There is nothing where a link leads."""
        ...


class Run(NamedTuple):
    """Contents that one request brings: digest, offset in the pack, and size of each; without an offset, an object of its own."""

    link: str
    contents: List[Tuple[str, Optional[int], int]]

    @property
    def end(self) -> int:
        """Where in the pack it ends."""
        _, offset, size = self.contents[-1]
        return (offset or 0) + size


class LinkClient:
    """One connection to where links lead; used by one thread at a time. Whatever fails closes it."""

    def __init__(self, links: Links, pace: Optional[Pace] = None) -> None:
        self.where = "the bucket"
        self.reached = True  # links lead to many servers: each is waited for alike
        self._links = links
        self._pace = pace or Pace()
        self._connection: Optional[http.client.HTTPConnection] = None
        self._to = ("", "")

    def read(self, sha256: str, offset: int, view: memoryview) -> Iterator[int]:
        """Fill the view with the content's bytes from ``offset`` on, which is to its end; yields how many more have arrived.

        Failure ``missing`` where there is no such object, ``denied`` where a fresh link is refused; Later; and any of BROKEN.
        """
        for again in (False, True):
            place = self._links.of(sha256)
            run = Run(place.link, [(sha256, place.offset, offset + len(view))])
            response = self._begin(run, offset, len(view), last=again)
            if response is not None:
                yield from self._reading(response, self._receive(response, view))
                return

    def load(self, key: str) -> bytes:
        """A whole object of any size; errors as of ``read``."""
        for again in (False, True):
            run = Run(self._links.of(key).link, [(key, None, 0)])
            response = self._begin(run, 0, None, last=again)
            if response is not None:
                try:
                    return response.read()
                except _BROKEN:
                    self.close()
                    raise
        raise Failure("missing", f"{self.where} does not have {key}")

    def read_small(self, sizes: Mapping[str, int]) -> Iterator[Tuple[str, bytearray]]:
        """Whole contents of these sizes, as they arrive; those that lie close together in a pack by one request. Errors as of ``read``."""
        left = {sha256: size for sha256, size in sizes.items() if size}
        yield from ((sha256, bytearray()) for sha256, size in sizes.items() if not size)
        again = False
        while left:
            run = self._next_run(left)
            response = self._begin(run, 0, run.end - (run.contents[0][1] or 0), last=again)
            again = response is None
            if response is not None:
                for sha256, data in self._reading(response, self._received(response, run)):
                    del left[sha256]
                    yield sha256, data

    def abort(self) -> None:
        """Wake whoever waits for an answer, from another thread."""
        sock = self._connection.sock if self._connection else None
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()

    def _next_run(self, sizes: Mapping[str, int]) -> Run:
        """The first of the contents, and those that follow it closely in the same pack."""
        places = {sha256: self._links.of(sha256) for sha256 in sizes}
        first = next(iter(sizes))
        link, offset = places[first]
        run = Run(link, [(first, offset, sizes[first])])
        if offset is None:
            return run
        others = sorted(
            (place.offset, sha256)
            for sha256, place in places.items()
            if place.link == link and place.offset is not None and sha256 != first
        )
        for at, sha256 in others:
            if run.end <= at <= run.end + _GAP_BYTES:
                run.contents.append((sha256, at, sizes[sha256]))
        return run

    def _begin(
        self, run: Run, offset: int, length: Optional[int], *, last: bool
    ) -> Optional[http.client.HTTPResponse]:
        """The answer, so many bytes into what the run begins with. None where its link is refused, which may have expired: ask for another."""
        sha256, at, _ = run.contents[0]
        start = (at or 0) + offset
        last_byte = "" if at is None or length is None else start + length - 1
        wanted = {"Range": f"bytes={start}-{last_byte}"} if start or at is not None else {}
        try:
            response = self._ask(run.link, wanted)
            for one, _, _ in run.contents:
                self._links.forget(one, run.link)
            if response.status in (200, 206):
                if length is not None:
                    self._go_to(response, start, length, alone=at is None)
                return response
        except _BROKEN:
            self.close()
            raise
        response.close()
        self.close()
        if response.status in _LATER:
            raise Later(_seconds(response.headers.get("Retry-After", "")), coming=False)
        if response.status == 404:
            self._links.lose()
        if last or response.status not in (400, 401, 403, 404):
            raise self._refusal(response.status, sha256)
        return None

    def _refusal(self, status: int, sha256: str) -> Failure:
        if status == 404:
            return Failure("missing", f"{self.where} does not have content {sha256}")
        return Failure(
            "denied", f"{self.where} refuses a link that was made for this node ({status})"
        )

    def _ask(self, link: str, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        parts = urlsplit(link)
        connection = self._connection
        if connection is None or self._to != (parts.scheme, parts.netloc):
            self.close()
            connection = self._connection = _connection(parts.scheme, parts.netloc)
            self._to, self.where = (parts.scheme, parts.netloc), parts.netloc
        if connection.sock is None:
            connection.connect()
        if connection.sock is not None:
            connection.sock.settimeout(SILENCE_SECONDS)
        path = f"{parts.path}?{parts.query}" if parts.query else parts.path
        connection.request("GET", path, headers={"User-Agent": "trainctl", **headers})
        return connection.getresponse()

    def _go_to(
        self, response: http.client.HTTPResponse, start: int, length: int, *, alone: bool
    ) -> None:
        """There are servers that ignore ranges; some of them send what was asked for all the same."""
        if response.length == length:
            return
        more = (response.length or 0) - start - length
        if response.status == 206 or more < 0 or (alone and more):
            raise http.client.HTTPException(f"{self.where} sends {response.length} bytes")
        self._drop(response, start)

    def _drop(self, response: http.client.HTTPResponse, left: int) -> None:
        while left > 0:
            self._pace.spend(min(left, _READ_BYTES))
            dropped = len(response.read(min(left, _READ_BYTES)))
            if not dropped:
                raise ConnectionResetError(104, f"{self.where} cut the connection")
            left -= dropped

    def _received(
        self, response: http.client.HTTPResponse, run: Run
    ) -> Iterator[Tuple[str, bytearray]]:
        at = run.contents[0][1] or 0
        for sha256, offset, size in run.contents:
            data = bytearray(size)
            self._drop(response, (offset or at) - at)
            for _ in self._receive(response, memoryview(data)):
                pass
            at = (offset or 0) + size
            yield sha256, data

    def _receive(self, response: http.client.HTTPResponse, view: memoryview) -> Iterator[int]:
        done = 0
        while done < len(view):
            self._pace.spend(min(_READ_BYTES, len(view) - done))
            count = response.readinto(view[done : done + _READ_BYTES])
            if not count:
                raise ConnectionResetError(104, f"{self.where} cut the connection")
            done += count
            yield count

    def _reading(self, response: http.client.HTTPResponse, arriving: Iterator[T]) -> Iterator[T]:
        """The connection is of no use where something of the answer is left, whatever the reason."""
        try:
            yield from arriving
        finally:
            if response.length:
                self.close()
            else:
                response.read()


def _connection(scheme: str, netloc: str) -> http.client.HTTPConnection:
    """HTTPS trusts what OpenSSL finds: SSL_CERT_FILE, SSL_CERT_DIR, else the system's certificates."""
    if scheme == "https":
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(netloc, timeout=CONNECT_SECONDS, context=context)
    if scheme == "http":
        return http.client.HTTPConnection(netloc, timeout=CONNECT_SECONDS)
    raise Failure("request", f"{scheme!r} is no way to fetch weights")


def _seconds(text: str) -> float:
    return float(text) if text.isdigit() and len(text) < 5 else 0.0
