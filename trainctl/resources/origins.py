"""Where a node is told to fetch weights from: the mirror's directory if it sees it, else a server in this process."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainctl.remote.agent import NodeAgent
from trainctl.resources.agents import Agents


class Origins:
    """Opens the mirror to nodes, each time with a token of its own that ``register`` has masked everywhere."""

    def __init__(self, agents: Agents, mirror: Path, register: Callable[[str], str]) -> None:
        self._agents = agents
        self._mirror = mirror
        self.register = register

    def is_near(self, provider: str) -> bool:
        """Whether the provider's nodes see the mirror's directory."""
        return self._agents.shares_disk(provider)

    @contextmanager
    def of(self, provider: str, agent: NodeAgent) -> Iterator[dict[str, Any]]:
        """The ``origin`` of a request, good for as long as the block lasts."""
        if self.is_near(provider):
            yield {"type": "directory", "path": str(self._mirror)}
            return
        from trainctl.node.server import BlobServer, MirrorShelf, serving  # heavy

        token = self.register(new_token())
        with (
            serving(BlobServer(MirrorShelf(self._mirror), token)) as server,
            agent.expose(server.port) as port,
        ):
            yield {"type": "http", "url": f"http://127.0.0.1:{port}", "token": token}


def new_token() -> str:
    """What opens one server, for as long as it lives."""
    return secrets.token_urlsafe(32)
