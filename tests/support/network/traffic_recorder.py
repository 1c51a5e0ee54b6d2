"""Everybody's server: answers as whoever is called, and writes down all that it is told, each connection as a line of JSON.

``python -m tests.support.network.traffic_recorder FILE CERTIFICATE KEY`` prints a line once it listens, and ends with its standard input.
"""

from __future__ import annotations

import json
import socket
import socketserver
import ssl
import sys
import threading
from contextlib import suppress
from pathlib import Path

PORTS = (22, 53, 80, 443, 5000, 8443, 9000)
_HANDSHAKE = b"\x16"
_PATIENCE = 5.0
_ASK = (
    b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n"
    b'WWW-Authenticate: Basic realm="everything"\r\nWWW-Authenticate: Bearer realm="everything"\r\n\r\n'
)
_ANY = socket.inet_aton("203.0.113.7")


class TrafficRecorder:
    """What was heard, in a file."""

    def __init__(self, path: Path, tls: ssl.SSLContext) -> None:
        self._path = path
        self.tls = tls
        self._lock = threading.Lock()

    def note(self, port: int, name: str, data: bytes) -> None:
        """Write down what somebody said to a server of that name."""
        line = json.dumps({"port": port, "name": name, "said": data.decode("latin-1")})
        with self._lock, self._path.open("a") as file:
            file.write(line + "\n")


class _TcpHandler(socketserver.BaseRequestHandler):
    recorder: TrafficRecorder
    request: socket.socket

    def handle(self) -> None:
        connection, port = self.request, self.request.getsockname()[1]
        connection.settimeout(_PATIENCE)
        name, data = "", b""
        with suppress(OSError):
            if port == 22:
                connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
            elif connection.recv(1, socket.MSG_PEEK) == _HANDSHAKE:
                names: list[str] = []
                self.recorder.tls.sni_callback = lambda _, sni, __: names.append(sni or "")
                connection = self.recorder.tls.wrap_socket(connection, server_side=True)
                name = names[-1] if names else ""
            data = _read_request(connection)
            if port != 22:
                connection.sendall(_ASK)
        for line in data.decode("latin-1").split("\r\n"):
            if line.lower().startswith("host:"):
                name = line[5:].strip()
        self.recorder.note(int(port), name, data)
        with suppress(OSError):
            connection.close()


def _read_request(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data and len(data) < 2**16:
        piece = connection.recv(4096)
        if not piece or (data := data + piece).startswith(b"SSH-"):
            break
    return data


class _DnsHandler(socketserver.BaseRequestHandler):
    """Every name has the same address. RFC 1035, section 4."""

    recorder: TrafficRecorder
    request: tuple[bytes, socket.socket]

    def handle(self) -> None:
        query, answer_from = self.request
        labels, at = [], 12
        while query[at]:
            labels.append(query[at + 1 : at + 1 + query[at]])
            at += 1 + query[at]
        kind = query[at + 1 : at + 3]
        name = b".".join(labels)
        self.recorder.note(53, name.decode("latin-1"), name)
        result = kind == b"\x00\x01"
        head = query[:2] + b"\x81\x80\x00\x01" + (b"\x00\x01" if result else b"\x00\x00") + bytes(4)
        record = b"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x05\x00\x04" + _ANY
        answer_from.sendto(
            head + query[12 : at + 5] + (record if result else b""), self.client_address
        )


def main(path: str, certificate: str, key: str) -> None:
    """Listen until standard input ends."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    kept = {"recorder": TrafficRecorder(Path(path), tls)}
    socketserver.TCPServer.allow_reuse_address = True
    socketserver.TCPServer.request_queue_size = 64
    tcp, names = type("Tcp", (_TcpHandler,), kept), type("Names", (_DnsHandler,), kept)
    servers: list[socketserver.BaseServer] = [
        socketserver.ThreadingTCPServer(("0.0.0.0", port), tcp) for port in PORTS if port != 53
    ]
    servers.append(socketserver.ThreadingUDPServer(("0.0.0.0", 53), names))
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    print("listening", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
