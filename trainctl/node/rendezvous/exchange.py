"""Exchange of a rank's state for its order: rank 0's server, and the client of the other ranks.

A message is JSON in the body of a POST, after its MAC, which is keyed by the gang's token. The MAC of an answer also
covers the request's, so that an answer is not accepted for another request. Messages have increasing numbers: a
repeated or late one changes nothing, and its answer is the current order.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import socket
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any, Dict, Iterator, List, Optional, Sequence, Set, cast

from trainctl.base.http import HttpClient
from trainctl.base.network.object_server import ListeningServer
from trainctl.node.rendezvous.coordinator import Coordinator, GangTimeouts, Value

_MAX_BYTES = 2**16
"""Longest message; a peer that sends more is not a rank of the gang."""

_IDLE_SECONDS = 10.0
"""How long a connection may wait for its next request; ranks send one every two seconds."""

_LOGIN_SECONDS = 10.0
"""How long a connection may last without an authentic message, however slowly bytes arrive."""

_SPARE_CONNECTIONS = 64
"""Open connections in addition to two of each rank: probes, and ranks that connect again."""

_TICK_SECONDS = 0.25  # resolution of the coordinator's times, which are seconds


class _Presence:
    """What the server knows of a rank's connections."""

    def __init__(self, now: float) -> None:
        self.number = self.known = 0
        self.open = 0
        self.seen_at = self.closed_at = now
        self.lost = False


class GangServer(ListeningServer):
    """Rank 0's server: hands states to the coordinator, and orders to the ranks."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        token: str,
        generation: int,
        coordinator: Coordinator,
        timeouts: GangTimeouts,
    ) -> None:
        super().__init__(
            listeners, _Handler, 2 * len(coordinator.orders) + _SPARE_CONNECTIONS, _IDLE_SECONDS
        )
        self.token = token.encode()
        self._generation = generation
        self._coordinator = coordinator
        self._timeouts = timeouts
        self._ranks: Dict[int, _Presence] = {}
        self.strangers: Set[_Handler] = set()
        """Connections without an authentic message so far."""
        self._changed = threading.Condition()

    def start(self) -> None:
        """Serve in a thread until the process exits."""
        threading.Thread(target=self.serve_forever, args=(_TICK_SECONDS,), daemon=True).start()

    def exchange(self, message: Value, connection: Optional[_Handler] = None) -> Value:
        """Take note of a rank's state; its order, once it is another than the ``known`` one or ``wait`` is over."""
        if message.get("probe"):
            return {}
        state: Value = message["state"]
        if state["generation"] != self._generation:
            return {"refused": f"the gang is of generation {self._generation}"}
        rank, known = int(state["rank"]), message["known"]
        with self._changed:
            now = time.monotonic()
            peer = self._ranks.setdefault(rank, _Presence(now))
            if message["number"] > peer.number:
                peer.number, peer.known, peer.seen_at = message["number"], known, now
                if connection is not None and connection.rank is None:
                    connection.rank = rank
                    peer.open += 1
                with self._notifying():
                    self._coordinator.update(rank, state, now)
            self._changed.wait_for(lambda: self._order(rank)["version"] != known, message["wait"])
            return {"order": self._order(rank)}

    def disconnect(self, rank: int) -> None:
        """Take note that a connection of a rank is closed."""
        with self._changed:
            self._ranks[rank].open -= 1
            self._ranks[rank].closed_at = time.monotonic()

    def service_actions(self) -> None:
        """Detect lost ranks: live ones connect again at once, and a slow network only delays."""
        super().service_actions()
        for handler in tuple(self.strangers):
            if time.monotonic() - handler.since > _LOGIN_SECONDS:
                with contextlib.suppress(OSError):
                    handler.connection.shutdown(socket.SHUT_RDWR)
        with self._changed, self._notifying():
            now, unreachable = time.monotonic(), set()
            for rank, peer in self._ranks.items():
                silent, closed, reason = now - peer.seen_at, rank and not peer.open, ""
                if closed or silent > 3 * self._timeouts.heartbeat:
                    unreachable.add(rank)
                if closed and now - peer.closed_at > self._timeouts.closed:
                    limit = f"{self._timeouts.closed:.0f} s"
                    reason = f"it disconnected and did not reconnect within {limit}"
                elif silent > self._timeouts.silent:
                    reason = f"no message for {self._timeouts.silent:.0f} s"
                if reason and not peer.lost:
                    peer.lost = True
                    self._coordinator.lose(rank, reason, now)
            self._coordinator.unreachable = unreachable
            self._coordinator.tick(now)

    @property
    def is_over(self) -> bool:
        """Whether all ranks that are not lost know the gang's end."""
        with self._changed:
            peers = [(rank, peer) for rank, peer in self._ranks.items() if not peer.lost]
            is_known = all(self._order(rank)["version"] == peer.known for rank, peer in peers)
            return self._coordinator.over and is_known

    @contextlib.contextmanager
    def _notifying(self) -> Iterator[None]:
        version = self._coordinator.version
        yield
        if self._coordinator.version != version:
            self._changed.notify_all()

    def _order(self, rank: int) -> Value:
        return self._coordinator.orders[rank]


class _Handler(BaseHTTPRequestHandler):
    """A connection of a rank."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    rank: Optional[int] = None
    """The rank whose messages came over this connection."""

    def setup(self) -> None:
        """Set the timeout, and begin as a stranger."""
        super().setup()
        self.connection.settimeout(_IDLE_SECONDS)
        self.since = time.monotonic()
        cast(GangServer, self.server).strangers.add(self)

    def do_POST(self) -> None:
        """Answer an authentic message; close the connection after any other."""
        server = cast(GangServer, self.server)
        length = self.headers.get("Content-Length", "")
        data = b""
        if length.isdigit() and len(length) < 6 and int(length) <= _MAX_BYTES:
            data = self.rfile.read(int(length))
        message = opened(server.token, REQUEST, data)
        if message is None:
            self.close_connection = True
            self._respond(HTTPStatus.FORBIDDEN, b"")
        else:
            server.strangers.discard(self)
            answer = server.exchange(message, self)
            self._respond(HTTPStatus.OK, sealed(server.token, data[:MAC_BYTES], answer))

    def finish(self) -> None:
        """Report the end of the connection."""
        cast(GangServer, self.server).strangers.discard(self)
        super().finish()
        if self.rank is not None:
            cast(GangServer, self.server).disconnect(self.rank)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
        """Log nothing."""

    def _respond(self, status: HTTPStatus, body: bytes) -> None:
        head = f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Length: {len(body)}\r\n\r\n"
        self.connection.sendall(head.encode() + body)


class GangClient:
    """A rank's requests to rank 0; OSError without an authentic answer."""

    def __init__(
        self, addresses: Sequence[str], port: int, token: str, timeouts: GangTimeouts
    ) -> None:
        self._addresses = addresses
        self._port = port
        self._token = token.encode()
        self._reached: List[str] = []
        self._http = HttpClient(
            read_timeout=timeouts.answer, connect_seconds=timeouts.connect, proxies=False
        )

    def exchange(self, message: Value) -> Value:
        """Send a message to the first address that answers; the first time, try all of them."""
        if not self._reached:
            probe = {"probe": True, "number": message["number"]}
            reached = []
            for address in self._addresses:
                with contextlib.suppress(OSError):  # another server, or none, listens there
                    self._post(address, probe)
                    reached.append(address)
            self._reached = reached
        message = {**message, "state": {**message["state"], "reached": self._reached}}
        reason: OSError = ConnectionError("no address is reachable")
        for address in self._reached:
            try:
                return self._post(address, message)
            except OSError as error:  # noqa: PERF203
                reason = error
        raise reason

    def _post(self, address: str, message: Value) -> Value:
        host = f"[{address}]" if ":" in address else address
        body = sealed(self._token, REQUEST, message)
        with self._http.request("POST", f"http://{host}:{self._port}/", body=body) as response:
            data = response.read_all(_MAX_BYTES)
        answer = opened(self._token, body[:MAC_BYTES], data)
        if answer is None:
            raise ConnectionError("not authentic")
        return answer


REQUEST = b"request "
MAC_BYTES = 2 * hashlib.sha256().digest_size


def sealed(token: bytes, context: bytes, message: Value) -> bytes:
    """Return the message after its MAC; ``context`` of an answer is the MAC of the request."""
    text = json.dumps(message).encode()
    return _mac(token, context, text) + text


def opened(token: bytes, context: bytes, data: bytes) -> Optional[Value]:
    """Return an authentic message, else None."""
    text = data[MAC_BYTES:]
    if not hmac.compare_digest(data[:MAC_BYTES], _mac(token, context, text)):
        return None
    message: Value = json.loads(text)
    return message


def _mac(token: bytes, context: bytes, text: bytes) -> bytes:
    return hmac.new(token, context + text, hashlib.sha256).hexdigest().encode()
