"""Node access to a mirror: directory, server, or presigned URLs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from secrets import token_urlsafe
from typing import TYPE_CHECKING, Any, Protocol

from trainctl.base.listing import Listing
from trainctl.base.protocol.method import Method
from trainctl.base.protocol.weights import SERVE_MIRROR
from trainctl.base.protocol.wire import encode_rows
from trainctl.errors import SourceError
from trainctl.model.delivery import PEERS, THROUGH_CLIENT
from trainctl.plugin_api.provider import Node
from trainctl.remote.agent import NodeAgent
from trainctl.remote.responses import OnEvent
from trainctl.resources.agents import Agents, NodeCall
from trainctl.resources.mirror.host_store import HostMirror
from trainctl.resources.mirror.node_server import NodeServer
from trainctl.resources.mirror.source_urls import Register
from trainctl.store import keys
from trainctl.store.backends.directory import DirectoryObjects
from trainctl.store.reader import BlobLocator
from trainctl.weights.mirrors import Mirror

if TYPE_CHECKING:  # slow to import
    from trainctl.buckets.bucket import BucketObjects

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
    if isinstance(mirror, HostMirror):
        return HostMirrorAccess(agents, mirror, register)
    objects = mirror.store.objects
    if isinstance(objects, DirectoryObjects):
        return DirectoryMirrorAccess(agents, str(objects.root), register)
    from trainctl.buckets.bucket import BucketObjects

    if isinstance(objects, BucketObjects):
        return BucketMirrorAccess(objects, register)
    raise TypeError(mirror)


@contextmanager
def serving_objects(path: str, token: str) -> Iterator[int]:
    """Serve the objects of a local mirror during the block; yield the port."""
    from trainctl.base.network.object_server import ObjectServer, serve_in_thread  # slow to import
    from trainctl.store.mirror_objects import MirrorObjectSource

    with serve_in_thread(ObjectServer(MirrorObjectSource(Path(path)), token)) as server:
        yield server.port


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
        token = self.register(token_urlsafe(32))
        with serving_objects(self._path, token) as server, agent.expose(server) as port:
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
        server = self._enter()
        try:
            yield _open_access(agent, server.connection())
        finally:
            self._leave()

    def _enter(self) -> NodeServer:
        with self._lock:
            if self._server is None:
                request = {"path": self._mirror.path, "ports": self._mirror.place.node.ports}
                agent = self._mirror.agent(installs=True)
                self._server = NodeServer(agent, request, self.register, method=SERVE_MIRROR)
            self._users += 1
            return self._server

    def _leave(self) -> None:
        with self._lock:
            self._users -= 1
            unused = self._server if not self._users else None
            if unused is not None:
                self._server = None
        if unused is not None:
            unused.close()


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
        full_request = {**request, "mirror": {"type": "objects", **location}, "listing": listing.id}
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
