"""Somebody in between: takes connections with a certificate of their own, and keeps what they are told."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class ImpostorServer:
    """``hands`` counts the connections on which hands were shaken, ``told`` is all that was said on them."""

    token = "nobody-told-them-a-token"

    def __init__(self, listener: socket.socket, pem: str) -> None:
        self._listener = listener
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(pem)
        self.port = int(listener.getsockname()[1])
        self.hands = 0
        self.received = b""

    def take(self) -> None:
        """Until nobody can come any more."""
        with contextlib.suppress(OSError):
            while True:
                self._hear(self._listener.accept()[0])

    def _hear(self, client: socket.socket) -> None:
        with (
            client,
            contextlib.suppress(OSError),
            self._tls.wrap_socket(client, server_side=True) as connection,
        ):
            self.hands += 1
            while data := connection.recv(4096):
                self.received += data


@contextmanager
def impostor(pem: str) -> Iterator[ImpostorServer]:
    """One on this machine's loopback; ``pem`` is a file that has its certificate and key."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = ImpostorServer(listener, pem)
        thread = threading.Thread(target=server.take, daemon=True)
        thread.start()
        yield server
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
