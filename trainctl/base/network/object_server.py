"""Serve objects by key over HTTP to clients that have a token, over TLS at addresses that aren't private.

    GET  /KEY     Range: bytes=A-B; Prefer: wait=SECONDS   200, 206 | 404, 416, 503
    POST /pack    JSON list of up to 256 digests; Prefer    200: for each a length (8 bytes, big endian) and the bytes

A 206 may be shorter than its range: it has those bytes of an arriving object that are there. ``wait`` holds an answer
back while the object is on its way; a 503 with ``Retry-After: 0`` means that it still is. A pack has objects below
1 MiB; ``ABSENT`` and ``INCOMING`` stand for the lengths of others. Every request has ``Authorization: Bearer TOKEN``.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import re
import select
import socket
import struct
import sys
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import BaseServer, ThreadingMixIn
from typing import (  # fmt: skip
    TYPE_CHECKING,
    Any,
    BinaryIO,
    Callable,
    Dict,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
    cast,
)

from trainctl.base.failure import Failure
from trainctl.base.listing import is_digest
from trainctl.base.network.addresses import address_family, is_private
from trainctl.base.network.listener import listen

if TYPE_CHECKING:
    import ssl  # slow to import, and few servers use TLS

MAX_PACKED_BYTES = 2**20
"""Objects below this size may be requested in packs."""
MAX_PACK_ENTRIES = 256
LENGTH = struct.Struct(">Q")
ABSENT, INCOMING = 2**64 - 1, 2**64 - 2
_RANGE = re.compile(r"bytes=(\d{1,18})-(\d{1,18})")
_WAIT = re.compile(r"\bwait=(\d{1,3})\b")
_LONGEST_WAIT = 20
_POLL_SECONDS = 0.02
_ACCEPT_SECONDS = 0.05
_MAX_REQUEST_BYTES = 2**20
_PIECE_BYTES = 256 * 1024
_MAX_CONNECTIONS = 256
_BUSY = b"HTTP/1.1 503 Busy\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class OpenObject(NamedTuple):
    """An object's bytes, from ``start`` to ``end`` of an open file; ``is_complete`` unless more of them will come."""

    stream: BinaryIO
    start: int
    end: int
    is_complete: bool = True

    @property
    def size(self) -> int:
        """How many of its bytes are there."""
        return self.end - self.start

    @classmethod
    def whole(cls, stream: BinaryIO) -> OpenObject:
        """An object that is a file."""
        return cls(stream, 0, os.fstat(stream.fileno()).st_size)


class ObjectSource:
    """The objects that a server has. Called by many threads."""

    def open(self, key: str, offset: int, length: Optional[int]) -> Optional[OpenObject]:
        """The object if the byte at ``offset`` is there; without ``length`` only if all of it is."""
        raise NotImplementedError

    def open_blob(self, sha256: str) -> Optional[OpenObject]:
        """A small content that is requested in a pack."""
        return None

    def is_incoming(self, sha256: str) -> bool:
        """Whether a live process is fetching the object with that name, or last part of its name."""
        return False


class ObjectServer(ThreadingMixIn, BaseServer):
    """Serves at those of the addresses that this host has, all at one port: one of ``ports``, or any.

    One thread per connection. Connections to an address that isn't ``private`` use ``tls``; Failure without it.
    """

    daemon_threads = True

    def __init__(
        self,
        content: ObjectSource,
        token: str,
        addresses: Sequence[str] = ("127.0.0.1",),
        *,
        ports: Optional[range] = None,
        tls: Optional[ssl.SSLContext] = None,
        private: Callable[[str], bool] = is_private,
        most_connections: int = _MAX_CONNECTIONS,
        silence_seconds: float = 30.0,
    ) -> None:
        for address in addresses:
            address_family(address)
            if tls is None and not private(address):
                raise Failure("request", f"weights are not served on {address} without TLS")
        self.content = content
        self.token = token
        self.silence_seconds = silence_seconds
        self.ending = threading.Event()
        self.sent = 0
        """Bytes of content that were sent."""
        self._tls = tls
        self._private = private
        self._most = most_connections
        self._lock = threading.Lock()
        self._open: Set[socket.socket] = set()
        self._listeners = {one.fileno(): one for one in listen(addresses, ports)}
        self._ready = select.epoll()
        for one in self._listeners:
            self._ready.register(one, select.EPOLLIN)
        self._places = [listener.getsockname()[:2] for listener in self._listeners.values()]
        super().__init__(self._places[0], _ObjectRequestHandler)

    @property
    def urls(self) -> List[str]:
        """Where it listens, in the order of the addresses."""
        return [
            f"{'http' if self._private(host) else 'https'}://{f'[{host}]' if ':' in host else host}:{port}"
            for host, port in self._places
        ]

    @property
    def port(self) -> int:
        """The port at all of its addresses."""
        return int(self._places[0][1])

    def fileno(self) -> int:
        """Readable when a client has connected. See BaseServer."""
        return self._ready.fileno()

    def get_request(self) -> Tuple[Any, Any]:
        """The next connection. Its thread does the handshake: a silent client holds up no other."""
        for listener, _ in self._ready.poll(0, 1):
            connection, client = self._listeners[listener].accept()
            if self._tls is not None and not self._private(connection.getsockname()[0]):
                connection = self._tls.wrap_socket(
                    connection, server_side=True, do_handshake_on_connect=False
                )
            return connection, client
        raise BlockingIOError  # the client has gone

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for the connection, or refuse it while there are too many."""
        with self._lock:
            is_admitted = len(self._open) < self._most
            if is_admitted:
                self._open.add(request)
        if is_admitted:
            super().process_request(request, client_address)
            return
        if not _is_encrypted(request):  # a response over TLS would take a handshake
            with contextlib.suppress(OSError):
                request.send(_BUSY)
        self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._lock:
            self._open.discard(request)
        with contextlib.suppress(OSError):  # the client may have gone first
            request.shutdown(socket.SHUT_WR)
        request.close()

    def count(self, length: int) -> None:
        """Count bytes that were sent."""
        with self._lock:
            self.sent += length

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away or are silent aren't errors."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    def end(self) -> None:
        """Stop listening and cut all connections."""
        self.ending.set()
        self.shutdown()
        self._ready.close()
        for listener in self._listeners.values():
            listener.close()
        with self._lock:
            left = list(self._open)
        for connection in left:
            with contextlib.suppress(OSError):
                # the socket itself: the state of TLS belongs to the connection's thread
                socket.socket.shutdown(connection, socket.SHUT_RDWR)


@contextlib.contextmanager
def serve_in_thread(server: ObjectServer) -> Iterator[ObjectServer]:
    """Serve as long as the block lasts."""
    thread = threading.Thread(target=server.serve_forever, args=(_ACCEPT_SECONDS,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.end()
        thread.join()


def _is_encrypted(connection: Any) -> bool:
    return hasattr(connection, "do_handshake")


class _ObjectRequestHandler(BaseHTTPRequestHandler):
    """One connection to an ObjectServer."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        """Shake hands, and don't wait for a silent client. See BaseHTTPRequestHandler."""
        super().setup()
        self._served = cast(ObjectServer, self.server)
        self.connection.settimeout(self._served.silence_seconds)
        if _is_encrypted(self.connection):
            self.connection.do_handshake()

    def do_GET(self) -> None:
        """Send an object, or a range of it."""
        if not self._is_admitted():
            return
        wanted = self._range()
        if wanted is None:
            self._answer(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
            return
        (offset, length), key = wanted, self.path[1:]
        content = self._served.content
        found = self._await(key.rpartition("/")[2], lambda: content.open(key, offset, length))
        if found is not None:
            with found.stream:
                self._send_object(found, offset, length)
        elif content.is_incoming(key.rpartition("/")[2]):
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, {"Retry-After": "0"})
        else:
            self._answer(HTTPStatus.NOT_FOUND)

    def do_POST(self) -> None:
        """Send many small contents in one response."""
        if not self._is_admitted():
            return
        digests = self._digests()
        if digests is None:
            self.close_connection = True  # the next request's beginning is unknown
            self._answer(HTTPStatus.BAD_REQUEST)
            return
        parts: List[bytes] = []
        for digest in digests:
            parts += self._packed(digest)
        sent = sum(map(len, parts)) - LENGTH.size * len(digests)
        head = self._head(HTTPStatus.OK, {"Content-Length": str(sum(map(len, parts)))})
        self.connection.sendall(b"".join([head, *parts]))
        self._served.count(sent)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
        """Log nothing."""

    def version_string(self) -> str:
        """Don't tell the version of Python."""
        return "trainctl"

    def _is_admitted(self) -> bool:
        given = self.headers.get("Authorization", "").encode()
        if hmac.compare_digest(given, f"Bearer {self._served.token}".encode()):
            return True
        self.close_connection = True
        self._answer(HTTPStatus.FORBIDDEN)
        return False

    def _range(self) -> Optional[Tuple[int, Optional[int]]]:
        """Offset and length, without a length all of it; None for an invalid range."""
        text = self.headers.get("Range")
        if text is None:
            return 0, None
        match = _RANGE.fullmatch(text)
        if match is None or int(match[2]) < int(match[1]):
            return None
        return int(match[1]), int(match[2]) - int(match[1]) + 1

    def _digests(self) -> Optional[List[str]]:
        """The digests of a pack; None if the request is invalid."""
        text = self.headers.get("Content-Length", "")
        length = int(text) if text.isdigit() and len(text) < 8 else -1
        if self.path != "/pack" or not 0 <= length <= _MAX_REQUEST_BYTES:
            return None
        with contextlib.suppress(ValueError):
            value = json.loads(self.rfile.read(length))
            if (
                isinstance(value, list)
                and len(value) <= MAX_PACK_ENTRIES
                and all(map(is_digest, value))
            ):
                return value
        return None

    def _await(self, sha256: str, look: Callable[[], Optional[OpenObject]]) -> Optional[OpenObject]:
        """The object when it is there: as long as it is coming and the client would wait."""
        asked = _WAIT.search(self.headers.get("Prefer", ""))
        until = time.monotonic() + (min(int(asked[1]), _LONGEST_WAIT) if asked else 0)
        while True:
            found = look()
            if found is not None or time.monotonic() >= until or self._served.ending.is_set():
                return found
            if not self._served.content.is_incoming(sha256):
                return look()  # it may have come between the two checks
            time.sleep(_POLL_SECONDS)

    def _packed(self, digest: str) -> List[bytes]:
        content = self._served.content
        found = self._await(digest, lambda: content.open_blob(digest))
        if found is None:
            return [LENGTH.pack(INCOMING if content.is_incoming(digest) else ABSENT)]
        with found.stream:
            if found.size >= MAX_PACKED_BYTES:
                return [LENGTH.pack(ABSENT)]
            data = os.pread(found.stream.fileno(), found.size, found.start)
            return [LENGTH.pack(len(data)), data]

    def _send_object(self, found: OpenObject, offset: int, length: Optional[int]) -> None:
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
            "Content-Range": f"bytes {offset}-{end - 1}/{size if found.is_complete else '*'}",
        }
        self._answer(HTTPStatus.PARTIAL_CONTENT, headers)
        self._send(found.stream, found.start + offset, end - offset)

    def _send(self, stream: BinaryIO, offset: int, count: int) -> None:
        """A file that became shorter ends the connection, so that the client notices."""
        sent = self._transmit(stream, offset, count)
        self._served.count(sent)
        if sent != count:
            self.close_connection = True

    def _transmit(self, stream: BinaryIO, offset: int, count: int) -> int:
        """Send from the kernel, unless it has to be encrypted; how much was sent."""
        if not _is_encrypted(self.connection):
            return self.connection.sendfile(stream, offset, count) if count else 0
        stream.seek(offset)
        left = count
        while left:
            data = stream.read(min(left, _PIECE_BYTES))
            if not data:
                break
            self.connection.sendall(data)
            left -= len(data)
        return count - left

    def _answer(self, status: HTTPStatus, headers: Optional[Dict[str, str]] = None) -> None:
        self.connection.sendall(self._head(status, headers or {}))

    def _head(self, status: HTTPStatus, headers: Dict[str, str]) -> bytes:
        found = {"Content-Length": "0", **headers}
        if self.close_connection:
            found["Connection"] = "close"
        lines = [f"HTTP/1.1 {status.value} {status.phrase}"]
        lines += [f"{name}: {value}" for name, value in found.items()]
        return "\r\n".join([*lines, "", ""]).encode()
