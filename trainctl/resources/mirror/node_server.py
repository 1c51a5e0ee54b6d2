"""Servers on nodes for as long as a delivery lasts: their certificates, and what all nodes are told of them."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from secrets import token_urlsafe
from types import TracebackType
from typing import Any

from trainctl.base.listing import Listing
from trainctl.base.protocol.method import Method
from trainctl.base.protocol.weights import SERVE, ServeResponse
from trainctl.base.protocol.wire import encode_rows
from trainctl.errors import NodeError, NodeUnreachable, TrainctlError
from trainctl.model.delivery import ServingCapability, isolated_hosts
from trainctl.plugin_api.provider import Node
from trainctl.remote.agent import NodeAgent
from trainctl.resources.mirror.source_urls import NodeCall

_VALIDITY = dt.timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Certificate:
    """``certificate`` and ``key`` are PEM; ``fingerprint`` is the sha256 of the certificate's DER, in hex."""

    certificate: str
    key: str = field(repr=False)
    fingerprint: str


def new_certificate() -> Certificate:
    """A self-signed certificate with a P-256 key, valid a week before and after today; clients pin it, whatever their clocks say."""
    # Heavy, and needed only for hosts without private addresses.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "trainctl")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _VALIDITY)
        .not_valid_after(now + _VALIDITY)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Certificate(
        made.public_bytes(pem).decode(), secret.decode(), made.fingerprint(hashes.SHA256()).hex()
    )


_START_SECONDS = 60.0
Announcement = Mapping[str, Any]


class NodeServer:
    """Runs the verb ``serve``, or ``serve_mirror``, with a token of its own, which ``register`` has masked everywhere, as it has the key of its certificate, if it needs one."""

    def __init__(
        self,
        agent: NodeAgent,
        request: Mapping[str, Any],
        register: Callable[[str], str],
        following: Iterable[bytes] = (),
        method: Method[Any, ServeResponse] = SERVE,
    ) -> None:
        self._method = method
        self._agent = agent
        self._register = register
        self._token = register(token_urlsafe(32))
        self._request = {**request, "token": self._token}
        self._following = following
        self._fingerprint: str | None = None
        self._announced: Future[Announcement] = Future()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True, name="serve")
        self._thread.start()

    def announced(self) -> Announcement:
        """Its first event, once it listens. TrainctlError for why it doesn't."""
        try:
            return self._announced.result(_START_SECONDS)
        except TimeoutError:
            raise NodeUnreachable(
                f"the weights server did not start within {_START_SECONDS:g} s"
            ) from None

    def serving(self) -> ServingCapability:
        """Who reaches it. TrainctlError as of ``announced``."""
        announced = self.announced()
        return ServingCapability(why=announced["why"], loopback=announced["loopback"])

    def where(self) -> Mapping[str, Any]:
        """How it is reached: ``urls``, ``token`` and ``loopback``, and the ``fingerprint`` of its certificate for those that speak TLS. TrainctlError as of ``announced``."""
        announced = self.announced()
        found = {"urls": announced["urls"], "loopback": announced["loopback"], "token": self._token}
        if self._fingerprint is not None:
            found["fingerprint"] = self._fingerprint
        return found

    def end(self) -> None:
        """Have it end; ``close`` waits until it has."""
        self._done.set()

    def close(self) -> None:
        """Have it end, and wait."""
        self.end()
        self._thread.join()

    def _serve(self) -> None:
        try:
            with NodeCall(self._agent, self._answer, self._on_event, self._done) as one:
                one.call(self._method, self._request, self._following)
        except TrainctlError as error:
            if not self._announced.done():
                self._announced.set_exception(error)
        finally:
            if not self._announced.done():
                self._announced.set_exception(
                    NodeError("the weights server on a node exited at once")
                )

    def _answer(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """A certificate: the node has an address that isn't private."""

        made = new_certificate()
        self._register("\n".join(made.key.splitlines()[1:-1]))
        self._fingerprint = made.fingerprint
        return {"certificate": made.certificate, "key": made.key}

    def _on_event(self, event: Mapping[str, Any]) -> None:
        if "urls" in event:
            self._announced.set_result(event)


PeerNode = tuple[Node, NodeAgent, Mapping[str, Any]]
Peer = Mapping[str, Any]


class PeerServers:
    """``with Peers(…) as peers``: they serve until the block ends."""

    def __init__(
        self,
        nodes: Sequence[PeerNode],
        listings: Sequence[Listing],
        register: Callable[[str], str],
    ) -> None:
        self._nodes = nodes
        self._listings = listings
        self._register = register
        self._servers: dict[str, NodeServer] = {}
        self.excluded: list[TrainctlError] = []

    def __enter__(self) -> PeerServers:
        return self

    def announced(self) -> dict[str, Peer]:
        """By node id what the ``peers`` of a request say. A node that can't serve any other is ``excluded``; one alone has no peers."""
        asked = {node.id: self._start(node, agent, where) for node, agent, where in self._nodes}
        found: dict[str, Peer] = {}
        serving: dict[str, ServingCapability] = {}
        for node_id, server in asked.items():
            try:
                found[node_id] = _peer_info(node_id, server)
                serving[node_id] = server.serving()
            except TrainctlError as error:
                self.excluded.append(error)
        for node_id, why in isolated_hosts(serving).items():
            self.excluded.append(NodeError(f"node {node_id}: {why}"))
            del found[node_id]
        return found if len(found) > 1 else {}

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for server in self._servers.values():
            server.end()
        for server in self._servers.values():
            server.close()

    def leave(self, node_id: str) -> None:
        """End its server, as its delivery failed: the others would wait for what it doesn't get any more."""
        if node_id in self._servers:
            self._servers[node_id].end()

    def _start(self, node: Node, agent: NodeAgent, where: Mapping[str, Any]) -> NodeServer:
        ids = [listing.id for listing in self._listings]
        request = {**where, "ports": node.ports, "listings": ids}
        following = encode_rows(listing.rows() for listing in self._listings)
        server = NodeServer(agent, request, self._register, following)
        self._servers[node.id] = server
        return server


def _peer_info(node_id: str, server: NodeServer) -> Peer:
    """What the others are told of it."""
    return {"node": node_id, **server.where(), "holds": server.announced()["holds"]}
