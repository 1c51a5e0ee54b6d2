"""Serving blobs over HTTP: who may ask, how many at once, and where the server may be bound. See DESIGN.md, "Blobs over HTTP"."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any, Iterator, Optional, Set, Tuple

from trainctl.node.system.addresses import family, is_private
from trainctl.node.system.failure import Failure
from trainctl.node.system.ports import at_one_of
from trainctl.node.transfer.blob_requests import BlobRequests
from trainctl.node.transfer.evenness import Evenness
from trainctl.node.transfer.shelf import Shelf

if TYPE_CHECKING:
    import ssl  # heavy, and few servers speak TLS

_MOST_CONNECTIONS = 256
_POLL_SECONDS = 0.05
_FULL = b"HTTP/1.1 503 Busy\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class BlobServer(ThreadingMixIn, TCPServer):
    """Serves one shelf to whoever has the token, at one of the ``ports`` or at any; a thread for each connection, and a bound on how many there are.

    Failure for an address that the world can reach, unless ``tls`` is how connections are encrypted.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self,
        shelf: Shelf,
        token: str,
        address: str = "127.0.0.1",
        *,
        ports: Optional[range] = None,
        tls: Optional[ssl.SSLContext] = None,
        most_connections: int = _MOST_CONNECTIONS,
        silence_seconds: float = 30.0,
    ) -> None:
        self.address_family = family(address)
        if tls is None and not is_private(address):
            raise Failure("request", f"weights are not served on {address} without TLS")
        self.tls = tls
        self.shelf = shelf
        self.token = token
        self.silence_seconds = silence_seconds
        self.ending = threading.Event()
        self.sent = 0
        self.evenness = Evenness()
        self._most = most_connections
        self._lock = threading.Lock()
        self._open: Set[socket.socket] = set()
        if ports is None:
            self._listen(address, 0)
        else:
            self.allow_reuse_address = True  # connections of a server that has ended bar no port
            at_one_of(ports, lambda port: self._listen(address, port))

    def _listen(self, address: str, port: int) -> socket.socket:
        super().__init__((address, port), BlobRequests)
        return self.socket

    @property
    def address(self) -> str:
        """Where it listens, as a URL's host."""
        host = str(self.server_address[0])
        return f"[{host}]" if ":" in host else host

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.server_address[1])

    def get_request(self) -> Tuple[Any, Any]:
        """The next connection. Hands are shaken in its own thread: a client that is silent meanwhile holds up nobody else."""
        connection, client = super().get_request()
        if self.tls is not None:
            connection = self.tls.wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
        return connection, client

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give the connection a thread, or send it away while there are too many."""
        with self._lock:
            room = len(self._open) < self._most
            if room:
                self._open.add(request)
        if room:
            super().process_request(request, client_address)
            return
        if self.tls is None:  # who wants TLS would have to be waited for
            with contextlib.suppress(OSError):
                request.send(_FULL)
        self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        """The connection has ended."""
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def count(self, length: int) -> None:
        """So many bytes of contents were sent."""
        with self._lock:
            self.sent += length

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away or is silent is nothing to speak of."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    def end(self) -> None:
        """Stop listening and cut what is under way."""
        self.ending.set()
        self.shutdown()
        self.server_close()
        with self._lock:
            left = list(self._open)
        for connection in left:
            cut(connection)


def cut(connection: socket.socket) -> None:
    """Wake whoever waits for the connection, from another thread: only the socket itself is touched, not what TLS keeps of it."""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


@contextlib.contextmanager
def serving(server: BlobServer) -> Iterator[BlobServer]:
    """Serve for as long as the block lasts."""
    thread = threading.Thread(target=server.serve_forever, args=(_POLL_SECONDS,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.end()
        thread.join()
