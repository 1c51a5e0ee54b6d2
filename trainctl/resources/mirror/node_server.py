"""Blob servers on nodes during a delivery, and their TLS certificates."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from secrets import token_urlsafe
from typing import Any

from trainctl.base.listing import Listing
from trainctl.base.protocol.method import Method
from trainctl.base.protocol.weights import SERVE, ServeResponse
from trainctl.base.protocol.wire import encode_rows
from trainctl.errors import NodeError, NodeUnreachable, TrainctlError
from trainctl.model.delivery import ServingCapability, isolated_hosts
from trainctl.plugin_api.provider import Node
from trainctl.remote.agent import NodeAgent
from trainctl.resources.agents import NodeCall

_VALIDITY = dt.timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Certificate:
    """Certificate and key as PEM, and the hex sha256 of the certificate's DER."""

    certificate: str
    key: str = field(repr=False)
    fingerprint: str


def new_certificate() -> Certificate:
    """Create a self-signed P-256 certificate for clients that pin its fingerprint.

    It is valid from a week ago, as clocks of hosts differ.
    """
    # Slow to import, and needed only for hosts without private addresses.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "trainctl")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
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
        certificate.public_bytes(pem).decode(),
        secret.decode(),
        certificate.fingerprint(hashes.SHA256()).hex(),
    )


_START_SECONDS = 60.0
Announcement = Mapping[str, Any]


class NodeServer:
    """Runs the method ``serve`` or ``serve_mirror`` on a node, in a thread.

    ``register`` redacts the server's token and the key of its certificate in all output.
    """

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
        """Wait until the server listens and return its first event."""
        try:
            return self._announced.result(_START_SECONDS)
        except TimeoutError:
            raise NodeUnreachable(
                f"the weights server did not start within {_START_SECONDS:g} s"
            ) from None

    def serving(self) -> ServingCapability:
        """Return which nodes can reach the server; TrainctlError if it fails to start."""
        announced = self.announced()
        return ServingCapability(why=announced["why"], loopback=announced["loopback"])

    def connection(self) -> Mapping[str, Any]:
        """Return ``urls``, ``loopback``, ``token`` and, with TLS, ``fingerprint``."""
        announced = self.announced()
        fields = {key: announced[key] for key in ("urls", "loopback")} | {"token": self._token}
        if self._fingerprint is not None:
            fields["fingerprint"] = self._fingerprint
        return fields

    def end(self) -> None:
        """Request the server's end; ``close`` also waits for it."""
        self._done.set()

    def close(self) -> None:
        """End the server and wait for its thread."""
        self.end()
        self._thread.join()

    def _serve(self) -> None:
        try:
            with NodeCall(self._agent, self._respond, self._on_event, self._done) as call:
                call.call(self._method, self._request, self._following)
        except TrainctlError as error:
            if not self._announced.done():
                self._announced.set_exception(error)
        finally:
            if not self._announced.done():
                self._announced.set_exception(
                    NodeError("the weights server on a node exited at once")
                )

    def _respond(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """Return a certificate: the node requests one for a public address."""
        new = new_certificate()
        self._register("\n".join(new.key.splitlines()[1:-1]))
        self._fingerprint = new.fingerprint
        return {"certificate": new.certificate, "key": new.key}

    def _on_event(self, event: Mapping[str, Any]) -> None:
        if "urls" in event:
            self._announced.set_result(event)


PeerNode = tuple[Node, NodeAgent, Mapping[str, Any]]
Peer = Mapping[str, Any]


class PeerServers:
    """Blob servers on several nodes, for the duration of a ``with`` block."""

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
        """Start the servers; return the ``peers`` of requests by node id.

        A node that fails to serve, or that no other node can reach, is added to ``excluded``.
        """
        servers = {node.id: self._start(node, agent, cache) for node, agent, cache in self._nodes}
        peers: dict[str, Peer] = {}
        serving: dict[str, ServingCapability] = {}
        for node_id, server in servers.items():
            try:
                holds = server.announced()["holds"]
                peers[node_id] = {"node": node_id, **server.connection(), "holds": holds}
                serving[node_id] = server.serving()
            except TrainctlError as error:
                self.excluded.append(error)
        for node_id, reason in isolated_hosts(serving).items():
            self.excluded.append(NodeError(f"node {node_id}: {reason}"))
            del peers[node_id]
        return peers if len(peers) > 1 else {}

    def __exit__(self, *_: object) -> None:
        for server in self._servers.values():
            server.end()
        for server in self._servers.values():
            server.close()

    def leave(self, node_id: str) -> None:
        """End a server whose delivery failed, so that no peer waits for its chunks."""
        if node_id in self._servers:
            self._servers[node_id].end()

    def _start(self, node: Node, agent: NodeAgent, cache: Mapping[str, Any]) -> NodeServer:
        ids = [listing.id for listing in self._listings]
        request = {**cache, "ports": node.ports, "listings": ids}
        following = encode_rows(listing.rows() for listing in self._listings)
        server = NodeServer(agent, request, self._register, following)
        self._servers[node.id] = server
        return server
