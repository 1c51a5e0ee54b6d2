"""A server on loopback that answers with whatever bytes a test likes, be they HTTP or not."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(frozen=True)
class RawRequest:
    """One request as it arrived. The names of headers are in lower case."""

    method: str
    target: str
    headers: dict[str, str]


Respond = Callable[[RawRequest], "bytes | Iterable[bytes]"]
"""What a request is answered with. The connection ends with what comes in pieces."""


@dataclass
class RawServer:
    """What it was asked, and where."""

    url: str
    heard: list[RawRequest] = field(default_factory=list)


def raw_response(body: bytes | str = b"", status: str = "200 OK", **headers: str) -> bytes:
    """A whole answer; ``_`` stands for ``-`` in the names of headers, and its length is the body's where none is given."""
    data = body.encode() if isinstance(body, str) else body
    values = {"Content-Length": str(len(data))}
    values |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in values.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + data


@contextmanager
def serve_responses(tell: Respond) -> Iterator[RawServer]:
    """A running liar."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while first := self.rfile.readline().decode("latin-1").split():
                headers = {}
                while line := self.rfile.readline().decode("latin-1").strip():
                    name, _, value = line.partition(":")
                    headers[name.lower()] = value.strip()
                self.rfile.read(int(headers.get("content-length", "0")))
                heard = RawRequest(first[0], first[1], headers)
                liar.heard.append(heard)
                answer = tell(heard)
                if not isinstance(answer, bytes):
                    self.wfile.writelines(answer)
                    return
                head, end, body = answer.partition(b"\r\n\r\n")
                self.wfile.write(head + end + (b"" if heard.method == "HEAD" else body))

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """A client that goes away is part of the tests."""

    with Server(("127.0.0.1", 0), Handler) as server:
        liar = RawServer(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield liar
        finally:
            server.shutdown()
