"""Where a node is told to fetch weights from: the mirror's directory if it sees it, else a server where the mirror is kept, or the bucket."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from trainctl.base.listing import Listing
from trainctl.base.protocol.verb import Answer, Verb
from trainctl.model.delivery import THROUGH_OPERATOR
from trainctl.remote.agent import NodeAgent
from trainctl.remote.answers import OnEvent
from trainctl.resources.agents import Agents
from trainctl.resources.host_mirror import HostMirror
from trainctl.resources.node_server import NodeServer
from trainctl.resources.sent_listings import following, with_listing
from trainctl.resources.tokens import new_token
from trainctl.spi.provider import Node
from trainctl.weights.mirror.directory import DirectoryMirror
from trainctl.weights.mirror.port import Mirror

Register = Callable[[str], str]


class Origins(Protocol):
    """Opens a mirror to nodes, each time with a token of its own that ``register`` has masked everywhere."""

    register: Register
    far: str
    """The path of what comes from a server, as plans name it."""

    def is_near(self, provider: str, node: Node) -> bool:
        """Whether the node, which is the provider's, sees the mirror's directory."""
        ...

    def of(self, provider: str, node: Node, agent: NodeAgent) -> AbstractContextManager[Opened]:
        """The mirror as that node sees it, for as long as the block lasts."""
        ...


class Opened(Protocol):
    """A mirror that a node may fetch from."""

    def call(
        self,
        verb: Verb[Any, Answer],
        request: Mapping[str, Any],
        on_event: OnEvent,
        listing: Listing | None = None,
    ) -> Answer:
        """Have the node do something for which it needs the mirror, to a listing if one is given; see NodeAgent."""
        ...


@dataclass(frozen=True, slots=True)
class _Told:
    """One that the node needs to be told of and no more."""

    agent: NodeAgent
    origin: Mapping[str, Any]

    def call(
        self,
        verb: Verb[Any, Answer],
        request: Mapping[str, Any],
        on_event: OnEvent,
        listing: Listing | None = None,
    ) -> Answer:
        """See Opened."""
        asked = with_listing({**request, "origin": self.origin}, listing)
        return self.agent.call(verb, asked, following=following(listing), on_event=on_event)


def origins_of(agents: Agents, mirror: Mirror, register: Register) -> Origins:
    """How the mirror is opened."""
    if isinstance(mirror, HostMirror):
        return HostOrigins(agents, mirror, register)
    if isinstance(mirror, DirectoryMirror):
        return HereOrigins(agents, mirror.root, register)
    if mirror.in_a_bucket:
        from trainctl.resources.bucket_origin import bucket_origins  # only who has one pays for it

        return bucket_origins(mirror, register)
    raise TypeError(mirror)


@contextmanager
def serving_objects(path: str, token: str) -> Iterator[int]:
    """Serve the objects of a mirror in a directory of this machine; the port."""
    from trainctl.node.transfer.server import BlobServer, serving  # heavy
    from trainctl.node.transfer.shelf import ObjectShelf  # heavy

    with serving(BlobServer(ObjectShelf(path), token)) as server:
        yield server.port


class HereOrigins:
    """Of a mirror on this machine: a server in this process, which nodes reach through their connection."""

    far = THROUGH_OPERATOR

    def __init__(self, agents: Agents, mirror: Path, register: Register) -> None:
        self._agents = agents
        self._mirror = mirror
        self.register = register

    def is_near(self, provider: str, node: Node) -> bool:
        """See Origins."""
        return self._agents.shares_disk(provider)

    @contextmanager
    def of(self, provider: str, node: Node, agent: NodeAgent) -> Iterator[Opened]:
        """See Origins."""
        if self.is_near(provider, node):
            yield _Told(agent, {"type": "directory", "path": str(self._mirror)})
            return
        from trainctl.node.transfer.server import BlobServer, serving  # heavy
        from trainctl.node.transfer.shelf import MirrorShelf  # heavy

        token = self.register(new_token())
        with (
            serving(BlobServer(MirrorShelf(self._mirror), token)) as server,
            agent.expose(server.port) as port,
        ):
            urls = [f"http://127.0.0.1:{port}"]
            yield _Told(agent, {"type": "http", "urls": urls, "token": token})


class HostOrigins:
    """Of a mirror on a host: a server there, one for all that fetch at the same time, which other nodes reach by themselves."""

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
    def of(self, provider: str, node: Node, agent: NodeAgent) -> Iterator[Opened]:
        """See Origins. NodeError where the host may not serve: it says why."""
        if self.is_near(provider, node):
            yield _Told(agent, {"type": "directory", "path": self._mirror.path})
            return
        server = self._enter()
        try:
            yield _Told(agent, {"type": "http", **server.where()})
        finally:
            self._leave()

    def _enter(self) -> NodeServer:
        with self._lock:
            if self._server is None:
                request = {"root": self._mirror.path, "ports": self._mirror.place.node.ports}
                self._server = NodeServer(self._mirror.agent, request, self.register)
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
