"""Node access to a mirror: a directory, a server on its node, or presigned URLs."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from secrets import token_urlsafe
from typing import TYPE_CHECKING, Any, Protocol

from trainctl.base.lazy_dataclass import dataclass, field
from trainctl.base.listing import Listing
from trainctl.base.protocol.method import Method
from trainctl.base.protocol.weights import SERVE, SERVE_MIRROR, ServeResponse
from trainctl.base.protocol.wire import encode_rows
from trainctl.errors import NodeError, NodeUnreachable, SourceError, TrainctlError
from trainctl.model.delivery import PEERS, THROUGH_CLIENT, ServingCapability, isolated_hosts
from trainctl.plugin_api.provider import Node
from trainctl.remote.agent import NodeAgent
from trainctl.remote.responses import OnEvent
from trainctl.resources.agents import Agents, NodeCall
from trainctl.store import keys
from trainctl.store.objects import DirectoryObjects
from trainctl.store.reader import BlobLocator
from trainctl.weights.mirrors import Mirror

if TYPE_CHECKING:
    from trainctl.buckets.bucket import BucketObjects
    from trainctl.resources.host_mirror import HostMirror, Register


_URL_SECONDS = 3600
"""Validity of a presigned URL: long enough for the last URL of a batch."""


NodeMirrorCall = Callable[[Method[Any, Any], Mapping[str, Any], OnEvent, Listing], Any]
"""Call a method on a node that reads a listing from the mirror; see NodeAgent.call."""


class MirrorAccess(Protocol):
    """Gives nodes access to a mirror; ``register`` redacts the token of each access."""

    register: Register
    far: str
    """The route of transfers from a server; see `trainctl.model.delivery`."""

    def is_near(self, provider: str, node: Node) -> bool:
        """Whether the provider's node sees the mirror's directory."""
        ...

    def of(
        self, provider: str, node: Node, agent: NodeAgent
    ) -> AbstractContextManager[NodeMirrorCall]:
        """Give the node access for the duration of the block."""
        ...


def mirror_access(agents: Agents, mirror: Mirror, register: Register) -> MirrorAccess:
    """Return how nodes read a mirror."""
    if mirror.on_a_host:
        from trainctl.resources.host_mirror import HostMirror  # slow to import

        if isinstance(mirror, HostMirror):
            return HostMirrorAccess(agents, mirror, register)
    objects = mirror.store.objects
    if isinstance(objects, DirectoryObjects):
        return DirectoryMirrorAccess(agents, str(objects.root), register)
    from trainctl.buckets.bucket import BucketObjects

    if isinstance(objects, BucketObjects):
        return BucketMirrorAccess(objects, register)
    raise TypeError(mirror)


class DirectoryMirrorAccess:
    """A local mirror, served through the node's connection."""

    far = THROUGH_CLIENT

    def __init__(self, agents: Agents, path: str, register: Register) -> None:
        self._agents = agents
        self._path = path
        self.register = register

    def is_near(self, provider: str, node: Node) -> bool:
        return self._agents.shares_disk(provider)

    @contextmanager
    def of(self, provider: str, node: Node, agent: NodeAgent) -> Iterator[NodeMirrorCall]:
        if self.is_near(provider, node):
            yield _open_access(agent, {"path": self._path})
            return
        # Slow to import.
        from trainctl.base.network.object_server import ObjectServer, serve_in_thread
        from trainctl.store.mirror_objects import MirrorObjectSource

        token = self.register(token_urlsafe(32))
        objects = ObjectServer(MirrorObjectSource(Path(self._path)), token)
        with serve_in_thread(objects) as server, agent.expose(server.port) as port:
            yield _open_access(agent, {"urls": [f"http://127.0.0.1:{port}"], "token": token})


class HostMirrorAccess:
    """A mirror on a host: one server there, shared by all nodes."""

    far = "mirror-to-node"

    def __init__(self, agents: Agents, mirror: HostMirror, register: Register) -> None:
        self._agents = agents
        self._mirror = mirror
        self.register = register
        self._lock = threading.Lock()
        self._server: NodeServer | None = None
        self._users = 0

    def is_near(self, provider: str, node: Node) -> bool:
        return self._agents.sees(provider, node, self._mirror.place)

    @contextmanager
    def of(self, provider: str, node: Node, agent: NodeAgent) -> Iterator[NodeMirrorCall]:
        """NodeError if the host may not serve."""
        if self.is_near(provider, node):
            yield _open_access(agent, {"path": self._mirror.path})
            return
        with self._lock:
            if self._server is None:
                request = {"path": self._mirror.path, "ports": self._mirror.place.node.ports}
                host = self._mirror.agent(installs=True)
                self._server = NodeServer(host, request, self.register, method=SERVE_MIRROR)
            server = self._server
            self._users += 1
        try:
            yield _open_access(agent, server.connection())
        finally:
            with self._lock:
                self._users -= 1
                unused = not self._users
                if unused:
                    self._server = None
            if unused:
                server.close()


class NodeFilesAccess:
    """Files in a directory of a node, served by it to other nodes."""

    far = PEERS

    def __init__(self, server: NodeServer, register: Register) -> None:
        self._server = server
        self.register = register
        self.trees: dict[str, str] = {}
        """Directories with the delivered files, by the id of the node."""

    def is_near(self, provider: str, node: Node) -> bool:
        return False

    @contextmanager
    def of(self, provider: str, node: Node, agent: NodeAgent) -> Iterator[NodeMirrorCall]:
        yield partial(self._call, node, _open_access(agent, self._server.connection()))

    def _call(self, node: Node, call: NodeMirrorCall, *arguments: Any) -> Any:
        response = call(*arguments)
        self.trees[node.id] = response["tree"]
        return response


class BucketMirrorAccess:
    """A bucket, which every node reads by presigned URLs."""

    far = "mirror-to-node"

    def __init__(self, objects: BucketObjects, register: Register) -> None:
        self._objects = objects
        self.register = register

    def is_near(self, provider: str, node: Node) -> bool:
        return False

    @contextmanager
    def of(self, provider: str, node: Node, agent: NodeAgent) -> Iterator[NodeMirrorCall]:
        yield _open_access(agent, {}, self._objects)


def _open_access(
    agent: NodeAgent, location: Mapping[str, Any], objects: BucketObjects | None = None
) -> NodeMirrorCall:
    """Return an access to the mirror at a location, or in a bucket."""

    def call(
        method: Method[Any, Any], request: Mapping[str, Any], on_event: OnEvent, listing: Listing
    ) -> Any:
        full_request = {**request, "mirror": location, "listing": listing.id}
        following = encode_rows([listing.rows()])
        if objects is None:
            return agent.call(method, full_request, following=following, on_event=on_event)
        signer = ObjectUrlSigner(objects, listing)
        with NodeCall(agent, signer.respond, on_event) as node_call:
            return node_call.call(method, full_request, following)

    return call


class ObjectUrlSigner:
    """Signs URLs of the objects of a listing."""

    def __init__(self, objects: BucketObjects, listing: Listing | None) -> None:
        self._objects = objects
        self._listing = listing
        self._lock = threading.Lock()
        self._readable: frozenset[str] = frozenset()

    def respond(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the URL of each of the request's ``keys``; '' for packs that don't exist."""
        names = request.get("keys")
        if self._listing is None or request.get("method") != "links" or not isinstance(names, list):
            raise SourceError("unexpected request from a node: only presigned URLs are served")
        readable = self._keys(self._listing)
        optional = keys.packs(self._listing.id)
        if not readable.union([optional]).issuperset(names):
            raise SourceError(
                "unexpected request from a node: objects that its listing doesn't contain"
            )
        existing = [key for key in names if key in readable]
        urls = dict(zip(existing, self._objects.presigned(existing, _URL_SECONDS), strict=True))
        return {"links": [urls.get(key, "") for key in names]}

    def _keys(self, listing: Listing) -> frozenset[str]:
        """Return the keys of the listing's objects; looked up once."""
        with self._lock:
            if not self._readable:
                readable = BlobLocator(self._objects, listing).readable_keys()
                packs = keys.packs(listing.id)
                has_packs = self._objects.stat(packs) is not None
                self._readable = readable if has_packs else readable - {packs}
            return self._readable


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
        ids = [listing.id for listing in self._listings]
        for node, agent, cache in self._nodes:
            request = {**cache, "ports": node.ports, "listings": ids}
            following = encode_rows(listing.rows() for listing in self._listings)
            self._servers[node.id] = NodeServer(agent, request, self._register, following)
        peers: dict[str, Peer] = {}
        serving: dict[str, ServingCapability] = {}
        for node_id, server in self._servers.items():
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
