"""Serving blobs over HTTP: who may ask, how many at once, and where the server may be bound. See DESIGN.md, "Blobs over HTTP"."""

from __future__ import annotations

import contextlib
import select
import socket
import sys
import threading
from socketserver import BaseServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any, Callable, Iterator, List, Optional, Sequence, Set, Tuple

from trainctl.base.addresses import family, is_private
from trainctl.base.failure import Failure
from trainctl.base.listening import listen
from trainctl.node.transfer.blob_requests import BlobRequests, is_encrypted
from trainctl.node.transfer.evenness import Evenness
from trainctl.node.transfer.shelf import Shelf

if TYPE_CHECKING:
    import ssl  # heavy, and few servers speak TLS

_MOST_CONNECTIONS = 256
_POLL_SECONDS = 0.05
_FULL = b"HTTP/1.1 503 Busy\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class BlobServer(ThreadingMixIn, BaseServer):
    """Serves one shelf to whoever has the token, at those of the addresses that this host has; a thread for each connection, and a bound on how many there are.

    It listens at one of the ``ports`` or at any. Connections to what isn't ``private`` are encrypted by ``tls``; Failure without it.
    """

    daemon_threads = True

    def __init__(
        self,
        shelf: Shelf,
        token: str,
        addresses: Sequence[str] = ("127.0.0.1",),
        *,
        ports: Optional[range] = None,
        tls: Optional[ssl.SSLContext] = None,
        private: Callable[[str], bool] = is_private,
        most_connections: int = _MOST_CONNECTIONS,
        silence_seconds: float = 30.0,
    ) -> None:
        for address in addresses:
            family(address)
            if tls is None and not private(address):
                raise Failure("request", f"weights are not served on {address} without TLS")
        self.shelf = shelf
        self.token = token
        self.silence_seconds = silence_seconds
        self.ending = threading.Event()
        self.sent = 0
        self.evenness = Evenness()
        self._tls = tls
        self._private = private
        self._most = most_connections
        self._lock = threading.Lock()
        self._open: Set[socket.socket] = set()
        self._listeners = {one.fileno(): one for one in listen(addresses, ports)}
        self._ready = select.epoll()
        for one in self._listeners:
            self._ready.register(one, select.EPOLLIN)
        self._places = [one.getsockname()[:2] for one in self._listeners.values()]
        super().__init__(self._places[0], BlobRequests)

    @property
    def urls(self) -> List[str]:
        """Where it listens, in the order of the addresses."""
        return [
            f"{'http' if self._private(host) else 'https'}://{f'[{host}]' if ':' in host else host}:{port}"
            for host, port in self._places
        ]

    @property
    def port(self) -> int:
        """Where it listens, at all of its addresses."""
        return int(self._places[0][1])

    def fileno(self) -> int:
        """What can be read when somebody has come to one of the addresses."""
        return self._ready.fileno()

    def get_request(self) -> Tuple[Any, Any]:
        """The next connection. Hands are shaken in its own thread: a client that is silent meanwhile holds up nobody else."""
        for listener, _ in self._ready.poll(0, 1):
            connection, client = self._listeners[listener].accept()
            if self._tls is not None and not self._private(connection.getsockname()[0]):
                connection = self._tls.wrap_socket(
                    connection, server_side=True, do_handshake_on_connect=False
                )
            return connection, client
        raise BlockingIOError  # whoever had come has gone

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give the connection a thread, or send it away while there are too many."""
        with self._lock:
            room = len(self._open) < self._most
            if room:
                self._open.add(request)
        if room:
            super().process_request(request, client_address)
            return
        if not is_encrypted(request):  # who wants TLS would have to be waited for
            with contextlib.suppress(OSError):
                request.send(_FULL)
        self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        """The connection has ended."""
        with self._lock:
            self._open.discard(request)
        with contextlib.suppress(OSError):  # the client may have gone first
            request.shutdown(socket.SHUT_WR)
        request.close()

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
        self._ready.close()
        for listener in self._listeners.values():
            listener.close()
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
