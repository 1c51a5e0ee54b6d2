"""Asking a server for blobs: one connection that stays open, one attempt at a time. The protocol is in DESIGN.md, "Blobs over HTTP"."""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import socket
from typing import Any, Dict, Iterator, NamedTuple, Optional, Sequence, Set
from urllib.parse import SplitResult, urlsplit

from trainctl.node.content.pack import COMING, EVENLY, LENGTH
from trainctl.node.content.parts import PACKED_BYTES
from trainctl.node.system.failure import Failure
from trainctl.node.system.pace import Pace

CONNECT_SECONDS = 10.0
SILENCE_SECONDS = 30.0
_READ_BYTES = 2**20
_LATER = (429, 500, 502, 503, 504)
BROKEN = (OSError, http.client.HTTPException)
"""What a connection that fails raises."""


class Later(Exception):
    """The server has it not now; ``seconds``: when to ask again. With ``coming`` it is alive and being brought the content."""

    def __init__(self, seconds: float, *, coming: bool) -> None:
        super().__init__(f"in {seconds:g} s")
        self.seconds = seconds
        self.coming = coming


class Pack(NamedTuple):
    """What came of a pack, and which of the rest is being brought to the server."""

    contents: Dict[str, bytearray]
    coming: Set[str]


class BlobClient:
    """One connection; used by one thread at a time. Whatever fails closes it, and the next request opens it anew."""

    def __init__(
        self,
        url: Any,
        token: Any,
        pace: Optional[Pace] = None,
        *,
        fingerprint: Any = None,
        silence: float = SILENCE_SECONDS,
        evenly: bool = False,
    ) -> None:
        """``fingerprint``: the certificate of a server at an ``https`` address; see PinnedConnection."""
        parts = urlsplit(url) if isinstance(url, str) else None
        if parts is None or not parts.hostname or not parts.port:
            raise Failure("request", f"{url!a} is no http://ADDRESS:PORT to fetch weights from")
        if not isinstance(token, str) or not token:
            raise Failure("request", "the request to fetch over HTTP lacks its token")
        self.where = parts.netloc
        self._connection = _connection(parts, fingerprint)
        self._authorization = f"Bearer {token}"
        self._pace = pace or Pace()
        self._silence = silence
        self._evenly = evenly

    def read(self, sha256: str, offset: int, view: memoryview, wait: float = 0) -> Iterator[int]:
        """Fill the view with the blob's bytes from ``offset`` on; yields how many more have arrived.

        It ends early where the server has no more of them yet. ``wait``: seconds for which it may hold the answer back until it has any. Failure ``missing`` if it
        won't, ``denied`` if it refuses the token; Later; and any of BROKEN, which may come after some bytes.
        """
        wanted = f"bytes={offset}-{offset + len(view) - 1}"
        try:
            response = self._ask("GET", f"/blobs/sha256/{sha256}", None, {"Range": wanted}, wait)
            self._judge(response, sha256)
            yield from self._receive(response, view)
        except BROKEN:
            self.close()
            raise

    def pack(self, digests: Sequence[str], wait: float = 0) -> Pack:
        """Small blobs in one answer; errors as of ``read``, but for those that are not there."""
        found = Pack({}, set())
        try:
            body = json.dumps(list(digests)).encode()
            response = self._ask("POST", "/pack", body, {}, wait)
            self._judge(response, digests[0])
            for digest in digests:
                length = LENGTH.unpack(_exactly(response, LENGTH.size))[0]
                if length < PACKED_BYTES:
                    self._pace.spend(length)
                    found.contents[digest] = _exactly(response, length)
                elif length == COMING:
                    found.coming.add(digest)
            response.read()
        except BROKEN:
            self.close()
            raise
        return found

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def abort(self) -> None:
        """Wake whoever waits for an answer, from another thread."""
        sock = self._connection.sock
        if sock is not None:
            # The socket alone: what TLS keeps of it is in that thread's hands.
            with contextlib.suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def _ask(
        self, method: str, path: str, body: Optional[bytes], headers: Dict[str, str], wait: float
    ) -> http.client.HTTPResponse:
        found = {"Authorization": self._authorization, **headers}
        wishes = [f"wait={math.ceil(wait)}"] if wait else []
        wishes += [EVENLY] if self._evenly else []
        if wishes:
            found["Prefer"] = ", ".join(wishes)
        if self._connection.sock is None:
            self._connection.connect()
        self._connection.sock.settimeout(self._silence + wait)
        self._connection.request(method, path, body, found)
        return self._connection.getresponse()

    def _judge(self, response: http.client.HTTPResponse, sha256: str) -> None:
        if response.status in (200, 206):
            return
        if response.length:
            self.close()  # what an error's body holds is of no interest
        else:
            response.read()
        if response.status in (404, 416):
            raise Failure("missing", f"{self.where} does not have blob {sha256}")
        if response.status in _LATER:
            text = response.headers.get("Retry-After", "")
            coming = response.status == 503 and text == "0"
            raise Later(float(text) if text.isdigit() and len(text) < 5 else 0.0, coming=coming)
        raise Failure(
            "denied", f"{self.where} refuses to hand out weights (status {response.status})"
        )

    def _receive(self, response: http.client.HTTPResponse, view: memoryview) -> Iterator[int]:
        length = response.length or 0
        if not 0 < length <= len(view):
            raise http.client.HTTPException(f"{self.where} sends {length} bytes")
        done = 0
        while done < length:
            self._pace.spend(min(_READ_BYTES, length - done))
            count = response.readinto(view[done : min(done + _READ_BYTES, length)])
            if not count:
                raise ConnectionResetError(104, f"{self.where} cut the connection")
            done += count
            yield count


def _connection(parts: SplitResult, fingerprint: Any) -> http.client.HTTPConnection:
    host, port = str(parts.hostname), int(parts.port or 0)
    if parts.scheme == "http" and fingerprint is None:
        return http.client.HTTPConnection(host, port, CONNECT_SECONDS)
    if parts.scheme != "https" or not isinstance(fingerprint, str):
        raise Failure("request", f"{parts.netloc} is asked over http, or over https by fingerprint")
    from trainctl.node.calls.tls import PinnedConnection  # heavy

    return PinnedConnection(host, port, CONNECT_SECONDS, fingerprint)


def _exactly(response: http.client.HTTPResponse, count: int) -> bytearray:
    data = bytearray(count)
    view = memoryview(data)
    done = 0
    while done < count:
        read = response.readinto(view[done:])
        if not read:
            raise ConnectionResetError(104, "the connection was cut within a pack")
        done += read
    return data
