"""HTTP server of objects by key, with a bearer token, and TLS at public addresses.

    GET  /KEY     Range: bytes=A-B; Prefer: wait=SECONDS   200, 206 | 404, 416, 503
    POST /pack    JSON list of up to 256 digests; Prefer    200: for each a length (8 bytes, big endian) and the bytes

A 206 may be shorter than its range: it holds the bytes of an incoming object that have arrived. ``wait`` delays the
response while the object is incoming; 503 with ``Retry-After: 0`` means that it still is. ``Prefer: evenly`` sends to
all such clients at the same rate. A pack holds objects below
1 MiB; the lengths ``ABSENT`` and ``INCOMING`` stand for others. Every request has ``Authorization: Bearer TOKEN``.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
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
    Optional,
    Sequence,
    Set,
    Tuple,
    Type,
    cast,
)

from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.base.listing import is_digest
from trainctl.base.network.addresses import address_family, is_private, listen
from trainctl.errors import NodeError

if TYPE_CHECKING:
    import ssl  # slow to import, and few servers use TLS

MAX_PACKED_BYTES = 2**20
"""Objects below this size may be requested in packs."""
MAX_PACK_ENTRIES = 256
LENGTH = struct.Struct(">Q")
ABSENT, INCOMING = 2**64 - 1, 2**64 - 2
EVENLY = "evenly"
_RANGE = compile_lazily(r"bytes=(\d{1,18})-(\d{1,18})")
_WAIT = compile_lazily(r"\bwait=(\d{1,3})\b")
_LONGEST_WAIT = 20
_POLL_SECONDS = 0.02
_ACCEPT_SECONDS = 0.05
_MAX_REQUEST_BYTES = 2**20
_BUFFER_BYTES = _UNSENT_BYTES = 256 * 1024
_TCP_NOTSENT_LOWAT = 25  # tcp(7); Python names it since 3.12
_MAX_CONNECTIONS = 256
_BUSY = b"HTTP/1.1 503 Busy\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class OpenObject(NamedTuple):
    """An object in an open file; not ``is_complete`` while incoming."""

    stream: BinaryIO
    start: int
    end: int
    is_complete: bool = True

    @property
    def size(self) -> int:
        """Number of bytes present."""
        return self.end - self.start

    @classmethod
    def from_file(cls, stream: BinaryIO) -> OpenObject:
        """Return an object that fills a file."""
        return cls(stream, 0, os.fstat(stream.fileno()).st_size)


class ObjectSource:
    """Objects that a server provides; thread-safe."""

    def open(self, key: str, offset: int, length: Optional[int]) -> Optional[OpenObject]:
        """Return an object with the byte at ``offset``; complete without ``length``."""
        raise NotImplementedError

    def open_blob(self, sha256: str) -> Optional[OpenObject]:
        """Return a small blob for a pack."""
        return None

    def is_incoming(self, sha256: str) -> bool:
        """Return whether a live process is fetching the object (last part of its key)."""
        return False


class ListeningServer(ThreadingMixIn, BaseServer):
    """HTTP server on several listeners, one thread per connection."""

    daemon_threads = True

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        handler: Type[BaseHTTPRequestHandler],
        most_connections: int,
        read_timeout: float,
    ) -> None:
        self.read_timeout = read_timeout
        self._most = most_connections
        self._lock = threading.Lock()
        self._open: Set[socket.socket] = set()
        self._listeners = {listener.fileno(): listener for listener in listeners}
        self._ready = select.epoll()
        for descriptor in self._listeners:
            self._ready.register(descriptor, select.EPOLLIN)
        self._bound = [listener.getsockname()[:2] for listener in listeners]
        super().__init__(self._bound[0], handler)

    def fileno(self) -> int:
        """Return a descriptor that is readable when a client has connected."""
        return self._ready.fileno()

    def get_request(self) -> Tuple[Any, Any]:
        """Accept a connection."""
        for listener, _ in self._ready.poll(0, 1):
            return self._listeners[listener].accept()
        raise BlockingIOError  # the client has disconnected

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for the connection, or refuse it if there are too many."""
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
        with contextlib.suppress(OSError):  # the client may have disconnected
            request.shutdown(socket.SHUT_WR)
        request.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect or time out."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    def stop(self) -> None:
        """Stop listening and close all connections."""
        self.shutdown()
        self._ready.close()
        for listener in self._listeners.values():
            listener.close()
        with self._lock:
            left = list(self._open)
        for connection in left:
            with contextlib.suppress(OSError):
                # the plain socket's: the state of TLS belongs to the connection's thread
                socket.socket.shutdown(connection, socket.SHUT_RDWR)


class ObjectServer(ListeningServer):
    """Serves on those of the addresses that exist, at one of ``ports`` or any.

    Addresses that aren't ``private`` use ``tls``; TrainctlError without it.
    """

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
        read_timeout: float = 30.0,
    ) -> None:
        for address in addresses:
            address_family(address)
            if tls is None and not private(address):
                raise NodeError(f"cannot serve weights on {address} without TLS")
        self.content = content
        self.token = token
        self.ending = threading.Event()
        self.even_streams = EvenStreams()
        self.sent = 0
        """Bytes of objects sent."""
        self._tls = tls
        self._private = private
        super().__init__(
            listen(addresses, ports), _ObjectRequestHandler, most_connections, read_timeout
        )

    @property
    def urls(self) -> List[str]:
        """The URLs it listens on, in the order of the addresses."""
        return [
            f"{'http' if self._private(host) else 'https'}://{f'[{host}]' if ':' in host else host}:{port}"
            for host, port in self._bound
        ]

    @property
    def port(self) -> int:
        """The port, the same on all addresses."""
        return int(self._bound[0][1])

    def get_request(self) -> Tuple[Any, Any]:
        """Accept a connection; its own thread does the TLS handshake."""
        connection, client = super().get_request()
        if self._tls is not None and not self._private(connection.getsockname()[0]):
            connection = self._tls.wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
        return connection, client

    def count(self, length: int) -> None:
        """Count bytes that were sent."""
        with self._lock:
            self.sent += length

    def stop(self) -> None:
        """Stop listening and close all connections."""
        self.ending.set()
        super().stop()


@contextlib.contextmanager
def serve_in_thread(server: ObjectServer) -> Iterator[ObjectServer]:
    """Serve while the block runs."""
    thread = threading.Thread(target=server.serve_forever, args=(_ACCEPT_SECONDS,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join()


def _is_encrypted(connection: Any) -> bool:
    return hasattr(connection, "do_handshake")


class _ObjectRequestHandler(BaseHTTPRequestHandler):
    """One connection to an ObjectServer."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        """Do the TLS handshake, with a timeout."""
        super().setup()
        self._served = cast(ObjectServer, self.server)
        self._stream = EvenStream()
        self.connection.settimeout(self._served.read_timeout)
        if _is_encrypted(self.connection):
            self.connection.do_handshake()

    def do_GET(self) -> None:
        """Send an object, or a range of it."""
        if not self._is_authorized():
            return
        offset, length, key = 0, None, self.path[1:]
        text = self.headers.get("Range")
        if text is not None:
            match = _RANGE.fullmatch(text)
            if match is None or int(match[2]) < int(match[1]):
                self._respond(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
                return
            offset, length = int(match[1]), int(match[2]) - int(match[1]) + 1
        content = self._served.content
        opened = self._await(key.rpartition("/")[2], lambda: content.open(key, offset, length))
        if opened is not None:
            with opened.stream:
                self._send_object(opened, offset, length)
        elif content.is_incoming(key.rpartition("/")[2]):
            self._respond(HTTPStatus.SERVICE_UNAVAILABLE, {"Retry-After": "0"})
        else:
            self._respond(HTTPStatus.NOT_FOUND)

    def do_POST(self) -> None:
        """Send many small blobs in one response."""
        if not self._is_authorized():
            return
        digests = self._digests()
        if digests is None:
            self.close_connection = True  # the start of the next request is unknown
            self._respond(HTTPStatus.BAD_REQUEST)
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
        """Hide the version of Python."""
        return "trainctl"

    def _is_authorized(self) -> bool:
        authorization = self.headers.get("Authorization", "").encode()
        if hmac.compare_digest(authorization, f"Bearer {self._served.token}".encode()):
            return True
        self.close_connection = True
        self._respond(HTTPStatus.FORBIDDEN)
        return False

    def _digests(self) -> Optional[List[str]]:
        """Return the requested digests; None if the request is invalid."""
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

    def _await(
        self, sha256: str, open_: Callable[[], Optional[OpenObject]]
    ) -> Optional[OpenObject]:
        """Open an object, waiting while it is incoming as long as the client allows."""
        wait = _WAIT.search(self.headers.get("Prefer", ""))
        until = time.monotonic() + (min(int(wait[1]), _LONGEST_WAIT) if wait else 0)
        while True:
            opened = open_()
            if opened is not None or time.monotonic() >= until or self._served.ending.is_set():
                return opened
            if not self._served.content.is_incoming(sha256):
                return open_()  # it may have been completed between the two checks
            time.sleep(_POLL_SECONDS)

    def _packed(self, digest: str) -> List[bytes]:
        content = self._served.content
        opened = self._await(digest, lambda: content.open_blob(digest))
        if opened is None:
            return [LENGTH.pack(INCOMING if content.is_incoming(digest) else ABSENT)]
        with opened.stream:
            if opened.size >= MAX_PACKED_BYTES:
                return [LENGTH.pack(ABSENT)]
            data = os.pread(opened.stream.fileno(), opened.size, opened.start)
            return [LENGTH.pack(len(data)), data]

    def _send_object(self, opened: OpenObject, offset: int, length: Optional[int]) -> None:
        size = opened.size
        if length is None:
            self._respond(HTTPStatus.OK, {"Content-Length": str(size)})
            self._send(opened.stream, opened.start, size)
            return
        end = min(offset + length, size)
        if offset >= end:
            self._respond(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
            return
        headers = {
            "Content-Length": str(end - offset),
            "Content-Range": f"bytes {offset}-{end - 1}/{size if opened.is_complete else '*'}",
        }
        self._respond(HTTPStatus.PARTIAL_CONTENT, headers)
        self._send(opened.stream, opened.start + offset, end - offset)

    def _send(self, stream: BinaryIO, offset: int, count: int) -> None:
        """Send bytes; close the connection if the file was truncated."""
        if EVENLY not in self.headers.get("Prefer", ""):
            done = self._transmit(stream, offset, count)
            self._served.count(done)
        else:
            # keep the kernel's buffer short: its content cannot be held back
            self.connection.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
            done, streams = 0, self._served.even_streams
            with streams.sending(self._stream):
                while done < count:
                    sent = self._transmit(stream, offset + done, min(_BUFFER_BYTES, count - done))
                    if not sent:
                        break
                    done += sent
                    self._served.count(sent)
                    streams.advance(self._stream, sent)
        if done != count:
            self.close_connection = True

    def _transmit(self, stream: BinaryIO, offset: int, count: int) -> int:
        """Send by sendfile, unless encrypted; return the number of bytes sent."""
        if not _is_encrypted(self.connection):
            return self.connection.sendfile(stream, offset, count) if count else 0
        stream.seek(offset)
        left = count
        while left:
            data = stream.read(min(left, _BUFFER_BYTES))
            if not data:
                break
            self.connection.sendall(data)
            left -= len(data)
        return count - left

    def _respond(self, status: HTTPStatus, headers: Optional[Dict[str, str]] = None) -> None:
        self.connection.sendall(self._head(status, headers or {}))

    def _head(self, status: HTTPStatus, headers: Dict[str, str]) -> bytes:
        headers = {"Content-Length": "0", **headers}
        if self.close_connection:
            headers["Connection"] = "close"
        lines = [f"HTTP/1.1 {status.value} {status.phrase}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join([*lines, "", ""]).encode()


AHEAD_BYTES = 2**20
_STALLED_SECONDS = 3.0


class EvenStream:
    """What one client has been sent: ``sent`` bytes, the last of them at the monotonic time ``at``."""

    def __init__(self) -> None:
        self.sent = 0
        self.at = 0.0


class EvenStreams:
    """No stream gets more than AHEAD_BYTES ahead of the slowest that has not stalled."""

    def __init__(self, stalled_seconds: float = _STALLED_SECONDS) -> None:
        self._stalled_seconds = stalled_seconds
        self._changed = threading.Condition()
        self._active: Set[EvenStream] = set()

    @contextlib.contextmanager
    def sending(self, stream: EvenStream) -> Iterator[None]:
        """Include the stream, which continues at its position or at that of the slowest."""
        with self._changed:
            stream.sent, stream.at = max(stream.sent, self._slowest(stream)), time.monotonic()
            self._active.add(stream)
        try:
            yield
        finally:
            with self._changed:
                self._active.discard(stream)
                self._changed.notify_all()

    def advance(self, stream: EvenStream, count: int) -> None:
        """Count bytes that were sent; return when the stream may continue."""
        with self._changed:
            if stream.at < time.monotonic() - self._stalled_seconds:
                stream.sent = max(stream.sent, self._slowest(stream))
            stream.sent += count
            stream.at = time.monotonic()
            self._changed.notify_all()
            while stream.sent - self._slowest(stream) > AHEAD_BYTES:
                self._changed.wait(self._stalled_seconds)
            stream.at = time.monotonic()

    def _slowest(self, stream: EvenStream) -> int:
        """Position of the slowest other stream; this stream's without any."""
        since = time.monotonic() - self._stalled_seconds
        others = (other.sent for other in self._active if other is not stream and other.at >= since)
        return min(others, default=stream.sent)
