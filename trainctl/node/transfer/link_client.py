"""Reading objects by links to them: plain HTTP or HTTPS, one connection that stays open, one attempt at a time."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
from typing import Dict, Iterator, List, Mapping, Optional
from urllib.parse import urlsplit

from trainctl.node.calls.asking import Asking, Gone
from trainctl.node.content.listing import Listing
from trainctl.node.content.parts import parts_of
from trainctl.node.system.failure import Failure
from trainctl.node.system.pace import Pace
from trainctl.node.transfer.blob_client import CONNECT_SECONDS, SILENCE_SECONDS, Later

_AT_ONCE = 64
"""Links that are asked for together: few enough that the last is used before it expires."""
_READ_BYTES = 2**20
_LATER = (408, 425, 429, 500, 502, 503, 504)
_BROKEN = (OSError, http.client.HTTPException)


class Links:
    """The links to a listing's contents, which the caller makes when their turn comes; used by many threads."""

    def __init__(self, asking: Asking, listing: Listing) -> None:
        self._asking = asking
        self._lock = threading.Lock()
        self._order: List[str] = []
        for file in listing.contents.values():
            self._order += [part.piece.sha256 for part in parts_of(file)]
        self._order = list(dict.fromkeys(self._order))
        self._places = {sha256: at for at, sha256 in enumerate(self._order)}
        self._known: Dict[str, str] = {}

    def of(self, sha256: str) -> str:
        """The link to a content. Failure where the caller can't make one, or is gone."""
        with self._lock:
            if sha256 not in self._known:
                self._ask(sha256)
            return self._known[sha256]

    def forget(self, sha256: str, link: str) -> None:
        """That one is refused, or used: another is to be made if it is wanted again."""
        with self._lock:
            if self._known.get(sha256) == link:
                del self._known[sha256]

    def _ask(self, sha256: str) -> None:
        at = self._places.get(sha256)
        if at is None:
            raise Failure("request", f"content {sha256} is in no listing that is fetched")
        after = [one for one in self._order[at + 1 : at + _AT_ONCE] if one not in self._known]
        wanted = [sha256, *after]
        try:
            answer = self._asking.ask({"want": "links", "contents": wanted})
        except Gone:
            raise Failure(
                "origin",
                "the command that this node was called by has ended",
                "What arrived is kept. Apply again.",
            ) from None
        if "error" in answer:
            error = answer["error"]
            raise Failure("origin", str(error["summary"]), str(error["detail"]))
        self._known.update(zip(wanted, answer["links"]))


class LinkClient:
    """One connection to where links lead; used by one thread at a time. Whatever fails closes it."""

    def __init__(self, links: Links, pace: Optional[Pace] = None) -> None:
        self.where = "the bucket"
        self._links = links
        self._pace = pace or Pace()
        self._connection: Optional[http.client.HTTPConnection] = None
        self._to = ("", "")

    def read(self, sha256: str, offset: int, view: memoryview) -> Iterator[int]:
        """Fill the view with the content's bytes from ``offset`` on, which is to its end; yields how many more have arrived.

        Failure ``missing`` where there is no such object, ``denied`` where a fresh link is refused; Later; and any of BROKEN.
        """
        try:
            response = self._begin(sha256, offset, len(view))
            yield from self._receive(response, view)
        except _BROKEN:
            self.close()
            raise

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

    def _begin(self, sha256: str, offset: int, length: int) -> http.client.HTTPResponse:
        """The answer, at the offset. A link that is refused may have expired: one more is asked for."""
        for attempt in range(2):
            link = self._links.of(sha256)
            response = self._ask(link, {"Range": f"bytes={offset}-"} if offset else {})
            self._links.forget(sha256, link)
            if response.status == 206 and offset:
                return response
            if response.status == 200:
                return self._skip(response, offset, length)
            self.close()
            if response.status in _LATER:
                raise Later(_seconds(response.headers.get("Retry-After", "")), coming=False)
            if response.status == 404:
                raise Failure("missing", f"{self.where} does not have content {sha256}")
            if attempt or response.status not in (400, 401, 403):
                break
        raise Failure(
            "denied", f"{self.where} refuses a link that was made for this node ({response.status})"
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

    def _skip(
        self, response: http.client.HTTPResponse, offset: int, length: int
    ) -> http.client.HTTPResponse:
        """There are servers that ignore ranges; some of them send what was asked for all the same."""
        left = (response.length or 0) - length
        if left not in (0, offset):
            self.close()
            raise http.client.HTTPException(f"{self.where} sends {response.length} bytes")
        while left > 0:
            dropped = len(response.read(min(left, _READ_BYTES)))
            if not dropped:
                raise ConnectionResetError(104, f"{self.where} cut the connection")
            left -= dropped
        return response

    def _receive(self, response: http.client.HTTPResponse, view: memoryview) -> Iterator[int]:
        if response.length != len(view):
            raise http.client.HTTPException(f"{self.where} sends {response.length} bytes")
        done = 0
        while done < len(view):
            self._pace.spend(min(_READ_BYTES, len(view) - done))
            count = response.readinto(view[done : done + _READ_BYTES])
            if not count:
                raise ConnectionResetError(104, f"{self.where} cut the connection")
            done += count
            yield count
        response.read()


def _connection(scheme: str, netloc: str) -> http.client.HTTPConnection:
    """HTTPS trusts what OpenSSL finds: SSL_CERT_FILE, SSL_CERT_DIR, else the system's certificates."""
    if scheme == "https":
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(netloc, timeout=CONNECT_SECONDS, context=context)
    if scheme == "http":
        return http.client.HTTPConnection(netloc, timeout=CONNECT_SECONDS)
    raise Failure("request", f"{scheme!a} is no way to fetch weights")


def _seconds(text: str) -> float:
    return float(text) if text.isdigit() and len(text) < 5 else 0.0
