"""Answering requests for blobs. Nothing but what a digest names is ever opened. See DESIGN.md, "Blobs over HTTP"."""

from __future__ import annotations

import hmac
import json
import re
import socket
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, BinaryIO, Dict, List, Optional, Protocol, Tuple, Union, cast

from trainctl.base.failure import Failure
from trainctl.node.content.pack import ABSENT, COMING, EVENLY, LENGTH
from trainctl.node.content.parts import PACKED_BYTES
from trainctl.node.content.runs import Place, read_runs
from trainctl.node.system.layout import sha256
from trainctl.node.transfer.evenness import Evenness, Stream
from trainctl.node.transfer.proof import answer
from trainctl.node.transfer.shelf import Opened, Shelf, opened_together

if TYPE_CHECKING:
    import threading

_PATH = re.compile(r"/blobs/sha256/([0-9a-f]{64})")
_RANGE = re.compile(r"bytes=(\d{1,18})-(\d{1,18})")
_WAIT = re.compile(r"\bwait=(\d{1,3})\b")
_LONGEST_WAIT = 20
_LOOK_SECONDS = 0.02
_BUFFER_BYTES = 2**20
_MOST_REQUEST_BYTES = 2**20
_STEP_BYTES = _UNSENT_BYTES = 256 * 1024
_TCP_NOTSENT_LOWAT = 25  # tcp(7); Python names it since 3.12
MOST_IN_PACK = 256


def is_encrypted(connection: Any) -> bool:
    """Whether it is one of TLS, whose module takes time to load."""
    return hasattr(connection, "do_handshake")


class Served(Protocol):
    """What a connection knows of its server."""

    shelf: Shelf
    token: str
    silence_seconds: float
    ending: threading.Event
    evenness: Evenness

    def count(self, length: int) -> None:
        """So many bytes of contents were sent."""
        ...


class BlobRequests(BaseHTTPRequestHandler):
    """One connection to a server that is ``Served``."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        """A client that is silent is not waited for."""
        super().setup()
        self.connection.settimeout(self._served.silence_seconds)
        if is_encrypted(self.connection):
            self.connection.do_handshake()
        self._stream = Stream()

    @property
    def _served(self) -> Served:
        return cast(Served, self.server)

    def do_GET(self) -> None:
        """One blob, or a range of it; or the proof that this is who the client looks for."""
        proof = answer(self.path, self._served.token, self.connection.getsockname()[0])
        if proof is not None:
            head = self._head(HTTPStatus.OK, {"Content-Length": str(len(proof))})
            self.connection.sendall(head + proof)
            return
        if not self._admitted():
            return
        wanted = self._range()
        if wanted is None:
            self._answer(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
            return
        offset, length = wanted
        named = _PATH.fullmatch(self.path)
        if named is None:
            found = self._served.shelf.open_object(self.path[1:])
        else:
            found = self._open(named[1], self._patience(), offset, length)
        if found is None:
            self._answer_absent(named[1] if named else "")
            return
        with found.stream:
            self._send_blob(found, offset, length)

    def do_POST(self) -> None:
        """Many small blobs in one answer."""
        if not self._admitted():
            return
        digests = self._digests()
        if digests is None:
            self.close_connection = True  # nobody knows where the next request begins
            self._answer(HTTPStatus.BAD_REQUEST)
            return
        until = self._patience()

        def open_near(digest: str, near: Optional[Opened]) -> Optional[Opened]:
            return self._open(digest, until, near=near)

        with opened_together(open_near, digests) as found:
            self._send_pack([self._packed(*one) for one in zip(digests, found)])

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
        """Say nothing: standard error is for what goes wrong."""

    def version_string(self) -> str:
        """Tell nobody what runs here."""
        return "trainctl"

    def _admitted(self) -> bool:
        given = self.headers.get("Authorization", "").encode()
        if hmac.compare_digest(given, f"Bearer {self._served.token}".encode()):
            return True
        self.close_connection = True
        self._answer(HTTPStatus.FORBIDDEN)
        return False

    def _range(self) -> Optional[Tuple[int, Optional[int]]]:
        """Offset and length, None for all of it; None for a range that is none."""
        text = self.headers.get("Range")
        if text is None:
            return 0, None
        match = _RANGE.fullmatch(text)
        if match is None or int(match[2]) < int(match[1]):
            return None
        return int(match[1]), int(match[2]) - int(match[1]) + 1

    def _patience(self) -> float:
        """Until when the client would wait, by the monotonic clock."""
        asked = _WAIT.search(self.headers.get("Prefer", ""))
        return time.monotonic() + (min(int(asked[1]), _LONGEST_WAIT) if asked else 0)

    def _open(
        self,
        digest: str,
        until: float,
        offset: int = 0,
        length: Optional[int] = None,
        near: Optional[Opened] = None,
    ) -> Optional[Opened]:
        """The blob, once it is here: waited for only while somebody brings it."""
        shelf = self._served.shelf
        while True:
            found = shelf.open(digest, offset, length, near)
            if found is not None or time.monotonic() >= until or self._served.ending.is_set():
                return found
            if not shelf.coming(digest):
                return shelf.open(digest, offset, length, near)  # it came between the two looks
            time.sleep(_LOOK_SECONDS)

    def _answer_absent(self, digest: str) -> None:
        if digest and self._served.shelf.coming(digest):
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, {"Retry-After": "0"})
        else:
            self._answer(HTTPStatus.NOT_FOUND)

    def _send_blob(self, found: Opened, offset: int, length: Optional[int]) -> None:
        size = found.size
        if length is None:
            self._answer(HTTPStatus.OK, {"Content-Length": str(size)})
            self._send(found.stream, found.start, size)
            return
        end = min(offset + length, size)
        if offset >= end:
            self._answer(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
            return
        headers = {
            "Content-Length": str(end - offset),
            "Content-Range": f"bytes {offset}-{end - 1}/{size if found.whole else '*'}",
        }
        self._answer(HTTPStatus.PARTIAL_CONTENT, headers)
        self._send(found.stream, found.start + offset, end - offset)

    def _digests(self) -> Optional[List[str]]:
        """What a pack is asked for; None if the request is none."""
        text = self.headers.get("Content-Length", "")
        length = int(text) if text.isdigit() and len(text) < 8 else -1
        if self.path != "/pack" or not 0 <= length <= _MOST_REQUEST_BYTES:
            return None
        try:
            value = json.loads(self.rfile.read(length))
            if isinstance(value, list) and len(value) <= MOST_IN_PACK:
                return [sha256(one, "blob") for one in value]
        except (Failure, ValueError):
            pass
        return None

    def _packed(self, digest: str, found: Optional[Opened]) -> Union[int, Place]:
        """Where a small content lies, or what is written in its place."""
        if found is None:
            return COMING if self._served.shelf.coming(digest) else ABSENT
        if found.size >= PACKED_BYTES:
            return ABSENT
        return Place(found.stream.fileno(), found.start, found.end)

    def _send_pack(self, parts: List[Union[int, Place]]) -> None:
        places = [one for one in parts if isinstance(one, Place)]
        sent = sum(one.end - one.start for one in places)
        total = LENGTH.size * len(parts) + sent
        data = bytearray(self._head(HTTPStatus.OK, {"Content-Length": str(total)}))
        contents = read_runs(places)
        for one in parts:
            if isinstance(one, Place):
                data += LENGTH.pack(one.end - one.start)
                data += next(contents)
            else:
                data += LENGTH.pack(one)
            if len(data) >= _BUFFER_BYTES:
                self.connection.sendall(data)
                data.clear()
        self.connection.sendall(data)
        self._served.count(sent)

    def _send(self, stream: BinaryIO, offset: int, count: int) -> None:
        """A file that became shorter ends the connection, so that the client notices."""
        if EVENLY in self.headers.get("Prefer", ""):
            self._send_evenly(stream, offset, count)
            return
        sent = self._transmit(stream, offset, count)
        self._served.count(sent)
        if sent != count:
            self.close_connection = True

    def _transmit(self, stream: BinaryIO, offset: int, count: int) -> int:
        """Send by the kernel alone, but for what has to be encrypted; how much was sent."""
        if not is_encrypted(self.connection):
            return self.connection.sendfile(stream, offset, count) if count else 0
        stream.seek(offset)
        left = count
        while left:
            data = stream.read(min(left, _STEP_BYTES))
            if not data:
                break
            self.connection.sendall(data)
            left -= len(data)
        return count - left

    def _send_evenly(self, stream: BinaryIO, offset: int, count: int) -> None:
        """Send step by step, not getting ahead of others who want it so; little waits in the kernel, where nobody could hold it back."""
        self.connection.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
        end = offset + count
        with self._served.evenness.under_way(self._stream):
            while offset < end and not self.close_connection:
                step = min(_STEP_BYTES, end - offset)
                sent = self._transmit(stream, offset, step)
                self._served.count(sent)
                self._served.evenness.advance(self._stream, sent)
                offset += sent
                self.close_connection = sent != step

    def _answer(self, status: HTTPStatus, headers: Optional[Dict[str, str]] = None) -> None:
        self.connection.sendall(self._head(status, headers or {}))

    def _head(self, status: HTTPStatus, headers: Dict[str, str]) -> bytes:
        found = {"Content-Length": "0", **headers}
        if self.close_connection:
            found["Connection"] = "close"
        lines = [f"HTTP/1.1 {status.value} {status.phrase}"]
        lines += [f"{name}: {value}" for name, value in found.items()]
        return "\r\n".join([*lines, "", ""]).encode()
