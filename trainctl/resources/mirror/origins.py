"""How nodes read the objects of a mirror: its directory if they see it, else a server, or presigned URLs of a bucket."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from secrets import token_urlsafe
from typing import TYPE_CHECKING, Any, Protocol

from trainctl.base.listing import Listing
from trainctl.base.protocol.method import Method
from trainctl.base.protocol.weights import SERVE_MIRROR
from trainctl.base.protocol.wire import encode_rows
from trainctl.errors import SourceError
from trainctl.model.delivery import THROUGH_CLIENT
from trainctl.plugin_api.provider import Node
from trainctl.remote.agent import NodeAgent
from trainctl.remote.responses import OnEvent
from trainctl.resources.agents import Agents
from trainctl.resources.mirror.host_store import HostMirror
from trainctl.resources.mirror.node_server import NodeServer
from trainctl.resources.mirror.source_urls import NodeCall
from trainctl.store import keys
from trainctl.store.backends.directory import DirectoryObjects
from trainctl.store.reader import BlobLocator
from trainctl.weights.mirrors import Mirror

if TYPE_CHECKING:  # heavy, and few mirrors are in a bucket
    from trainctl.objects.bucket_store import BucketObjects

_URL_SECONDS = 3600
"""How long a presigned URL is valid: the last of a batch must still be when its turn comes."""
Register = Callable[[str], str]


MirrorAccess = Callable[[Method[Any, Any], Mapping[str, Any], OnEvent, Listing], Any]
"""Has a node do something with a listing for which it needs the mirror; see NodeAgent."""


class MirrorOrigins(Protocol):
    """Opens a mirror to nodes, each time with a token of its own, which ``register`` has masked everywhere."""

    register: Register
    far: str
    """The path of what comes from a server, as plans name it."""

    def is_near(self, provider: str, node: Node) -> bool:
        """Whether the node, which is the provider's, sees the mirror's directory."""
        ...

    def of(
        self, provider: str, node: Node, agent: NodeAgent
    ) -> AbstractContextManager[MirrorAccess]:
        """The mirror as that node sees it, as long as the block lasts."""
        ...


def origins_of(agents: Agents, mirror: Mirror, register: Register) -> MirrorOrigins:
    """How nodes read a mirror."""
    if isinstance(mirror, HostMirror):
        return HostOrigins(agents, mirror, register)
    objects = mirror.store.objects
    if isinstance(objects, DirectoryObjects):
        return DirectoryOrigins(agents, str(objects.root), register)
    from trainctl.objects.bucket_store import BucketObjects

    if isinstance(objects, BucketObjects):
        return BucketOrigins(objects, register)
    raise TypeError(mirror)


@contextmanager
def serving_objects(path: str, token: str) -> Iterator[int]:
    """Serve the objects of a mirror in a directory of this machine; the port."""
    from trainctl.base.network.object_server import ObjectServer, serve_in_thread  # slow to import
    from trainctl.store.mirror_objects import MirrorObjectSource

    with serve_in_thread(ObjectServer(MirrorObjectSource(Path(path)), token)) as server:
        yield server.port


class DirectoryOrigins:
    """See Origins. Of a mirror on this machine: a server in this process, which nodes reach through their connection."""

    far = THROUGH_CLIENT

    def __init__(self, agents: Agents, path: str, register: Register) -> None:
        self._agents = agents
        self._path = path
        self.register = register

    def is_near(self, provider: str, node: Node) -> bool:
        """See Origins."""
        return self._agents.shares_disk(provider)

    @contextmanager
    def of(self, provider: str, node: Node, agent: NodeAgent) -> Iterator[MirrorAccess]:
        """See Origins."""
        if self.is_near(provider, node):
            yield _opened(agent, {"path": self._path})
            return
        token = self.register(token_urlsafe(32))
        with serving_objects(self._path, token) as server, agent.expose(server) as port:
            yield _opened(agent, {"urls": [f"http://127.0.0.1:{port}"], "token": token})


class HostOrigins:
    """See Origins. Of a mirror on a host: one server there for all nodes that fetch at the same time."""

    far = "mirror-to-node"

    def __init__(self, agents: Agents, mirror: HostMirror, register: Register) -> None:
        self._agents = agents
        self._mirror = mirror
        self.register = register
        self._lock = threading.Lock()
        self._server: NodeServer | None = None
        self._users = 0

    def is_near(self, provider: str, node: Node) -> bool:
        """See Origins."""
        return self._agents.sees(provider, node, self._mirror.place)

    @contextmanager
    def of(self, provider: str, node: Node, agent: NodeAgent) -> Iterator[MirrorAccess]:
        """See Origins. NodeError if the host may not serve."""
        if self.is_near(provider, node):
            yield _opened(agent, {"path": self._mirror.path})
            return
        server = self._enter()
        try:
            yield _opened(agent, server.where())
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
            ending = self._server if not self._users else None
            if ending is not None:
                self._server = None
        if ending is not None:
            ending.close()


class BucketOrigins:
    """See Origins. Every node reaches the bucket itself, and none is nearer than another."""

    far = "mirror-to-node"

    def __init__(self, objects: BucketObjects, register: Register) -> None:
        self._objects = objects
        self.register = register

    def is_near(self, provider: str, node: Node) -> bool:
        """See Origins."""
        return False

    @contextmanager
    def of(self, provider: str, node: Node, agent: NodeAgent) -> Iterator[MirrorAccess]:
        """See Origins."""
        yield _opened(agent, {}, self._objects)


def _opened(
    agent: NodeAgent, where: Mapping[str, Any], objects: BucketObjects | None = None
) -> MirrorAccess:
    """Tells a node where the mirror is; URLs of objects of a bucket are signed during a call, for those of its listing and no others."""

    def call(
        method: Method[Any, Any], request: Mapping[str, Any], on_event: OnEvent, listing: Listing
    ) -> Any:
        full_request = {**request, "origin": {"type": "objects", **where}, "listing": listing.id}
        following = encode_rows([listing.rows()])
        if objects is None:
            return agent.call(method, full_request, following=following, on_event=on_event)
        signer = ObjectUrlSigner(objects, listing)
        with NodeCall(agent, signer.answer, on_event) as conversation:
            return conversation.call(method, full_request, following)

    return call


class ObjectUrlSigner:
    """Signs URLs of the objects that a listing is made of."""

    def __init__(self, objects: BucketObjects, listing: Listing | None) -> None:
        self._objects = objects
        self._listing = listing
        self._lock = threading.Lock()
        self._readable: frozenset[str] = frozenset()

    def answer(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """The URL of each of an event's ``keys``; empty for the packs of a listing that has none."""
        wanted = event.get("keys")
        if self._listing is None or event.get("method") != "links" or not isinstance(wanted, list):
            raise SourceError("unexpected request from a node: only presigned URLs are served")
        readable = self._keys(self._listing)
        optional = keys.packs(self._listing.id)
        if not readable.union([optional]).issuperset(wanted):
            raise SourceError(
                "unexpected request from a node: objects that its listing doesn't contain"
            )
        there = [key for key in wanted if key in readable]
        urls = dict(zip(there, self._objects.sign(there, _URL_SECONDS), strict=True))
        return {"links": [urls.get(key, "") for key in wanted]}

    def _keys(self, listing: Listing) -> frozenset[str]:
        """The objects that may be read. They are looked up when the first is wanted."""
        with self._lock:
            if not self._readable:
                readable = BlobLocator(self._objects, listing).readable_keys()
                packs = keys.packs(listing.id)
                has_packs = self._objects.stat(packs) is not None
                self._readable = readable if has_packs else readable - {packs}
            return self._readable
