"""Asking a server for blobs: one connection that stays open, one attempt at a time. The protocol is in DESIGN.md, "Blobs over HTTP"."""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import socket
from typing import Any, Dict, Iterator, Mapping, NamedTuple, Optional, Sequence, Set

from trainctl.base.failure import Failure
from trainctl.base.pace import Pace
from trainctl.node.content.pack import COMING, EVENLY, LENGTH
from trainctl.node.content.parts import PACKED_BYTES
from trainctl.node.transfer.reaching import Server

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
        server: Mapping[str, Any],
        pace: Optional[Pace] = None,
        *,
        silence: float = SILENCE_SECONDS,
        evenly: bool = False,
    ) -> None:
        """``server``: as a request describes it; see Server."""
        self._server = Server(server)
        self._connection = http.client.HTTPConnection("server")  # which is connected here
        self._authorization = f"Bearer {self._server.token}"
        self._pace = pace or Pace()
        self._silence = silence
        self._evenly = evenly

    @property
    def where(self) -> str:
        """The server, in words."""
        return self._server.where

    @property
    def reached(self) -> bool:
        """Whether the server ever answered."""
        return self._server.reached

    def read(self, sha256: str, offset: int, view: memoryview, wait: float = 0) -> Iterator[int]:
        """Fill the view with the blob's bytes from ``offset`` on; yields how many more have arrived.

        It ends early where the server has no more of them yet. ``wait``: seconds for which it may hold the answer back until it has any. Failure ``missing`` if it
        won't, ``denied`` if it refuses the token; Later; and any of BROKEN, which may come after some bytes.
        """
        return self._read(f"blobs/sha256/{sha256}", offset, view, wait)

    def read_object(self, key: str, offset: int, view: memoryview) -> Iterator[int]:
        """The same of an object of a mirror; all the bytes must be there."""
        done = 0
        for count in self._read(key, offset, view, 0):
            done += count
            yield count
        if done < len(view):
            raise Failure("missing", f"{self.where}: {key} ends at {offset + done} bytes")

    def load(self, key: str) -> bytes:
        """A whole object of a mirror; errors as of ``read``."""
        try:
            response = self._ask("GET", f"/{key}", None, {}, 0)
            self._judge(response, key)
            return response.read()
        except BROKEN:
            self.close()
            raise

    def _read(self, key: str, offset: int, view: memoryview, wait: float) -> Iterator[int]:
        wanted = f"bytes={offset}-{offset + len(view) - 1}"
        try:
            response = self._ask("GET", f"/{key}", None, {"Range": wanted}, wait)
            self._judge(response, key)
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
            self._connection.sock = self._server.connect()
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
