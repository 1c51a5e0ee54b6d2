"""Talking to nodes: one agent a node, kept open for as long as the command runs."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from trainctl.ledger.state import RecordedResource
from trainctl.plugin_api.provider import Node, Provider
from trainctl.plugin_api.transport import Transport
from trainctl.remote.agent import NodeAgent
from trainctl.remote.archive import load_bytecode, node_archive
from trainctl.remote.session import NodeSessions

if TYPE_CHECKING:  # what most commands don't need isn't loaded
    from trainctl.weights.mirrors import HostMirrorLocation

_CLOSE_SECONDS = 2.0
"""How long what is ended on nodes may take, before it is left to them."""

Providers = Callable[[str], Provider]
"""A provider by name; the same object every time."""


@dataclass(frozen=True, slots=True)
class ProjectContext:
    """The manifest's directory, the state's lineage and, for people, who applies and for which project.

    ``withheld`` are files and directories of this machine that are never code.
    """

    directory: Path
    lineage: str
    owner: str
    project: str
    withheld: tuple[Path, ...] = ()


class Agents:
    """Opens each node's transport once and closes them all at the end; safe to use from many threads.

    ``cache``: where the node program's bytecode is kept, for nodes whose Python is as this one; None: nowhere.
    """

    def __init__(self, providers: Providers, cache: Path | None = None) -> None:
        self._providers = providers
        self._cache = cache
        self._lock = threading.RLock()
        self._agents: dict[str, NodeAgent] = {}
        self._ephemeral_agents: dict[str, NodeAgent] = {}
        self._transports: dict[str, tuple[Transport, NodeSessions]] = {}

    def __enter__(self) -> Agents:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End what is under way on every node, and give the transports back."""
        with self._lock:
            left = [*self._transports.values()]
            self._transports.clear()
            self._agents.clear()
            self._ephemeral_agents.clear()
        for _, sessions in left:
            sessions.end()
        deadline = time.monotonic() + _CLOSE_SECONDS
        for transport, sessions in left:
            sessions.wait(deadline)
            transport.close()

    def of(self, provider: str, node: Node) -> NodeAgent:
        """The agent of a node."""
        with self._lock:
            known = _identity(node)
            if known not in self._agents:
                transport, sessions = self._transport(provider, node)
                self._agents[known] = NodeAgent(
                    node,
                    transport,
                    bytecode=self._bytecode(),
                    sessions=sessions,
                    remote=not self._runs_this_python(provider, node),
                )
            return self._agents[known]

    def ephemeral_agent(self, provider: str, node: Node) -> NodeAgent:
        """An agent that leaves nothing behind: for nodes that nobody has made yet, and those that may be gone."""
        with self._lock:
            known = _identity(node)
            if known not in self._ephemeral_agents:
                transport, sessions = self._transport(provider, node)
                self._ephemeral_agents[known] = NodeAgent(
                    node,
                    transport,
                    ephemeral=True,
                    bytecode=self._bytecode(),
                    sessions=sessions,
                    remote=not self._runs_this_python(provider, node),
                )
            return self._ephemeral_agents[known]

    def shares_disk(self, provider: str) -> bool:
        """Whether the provider's nodes see the operator's files."""
        return self._providers(provider).capabilities.shares_disk_with_client

    def sees(self, provider: str, node: Node, mirror: HostMirrorLocation | None) -> bool:
        """Whether a node of the provider's sees the directory of a mirror, which is here or at that place."""
        if mirror is None or self.shares_disk(mirror.provider):
            return self.shares_disk(provider)
        return mirror.is_on(node)

    def _runs_this_python(self, provider: str, node: Node) -> bool:
        return node.python == sys.executable and self.shares_disk(provider)

    def _bytecode(self) -> Callable[[], bytes] | None:
        cache = self._cache
        if cache is None:
            return None
        return lambda: load_bytecode(node_archive(), cache)

    def _transport(self, provider: str, node: Node) -> tuple[Transport, NodeSessions]:
        with self._lock:
            known = _identity(replace(node, root="", data="", python="", key="", gpus=None))
            if known not in self._transports:
                transport = self._providers(provider).transport(node)
                self._transports[known] = (transport, NodeSessions(transport))
            return self._transports[known]


def _identity(node: Node) -> str:
    """What tells nodes apart: one name may come to mean another machine, or another way to it, within one command."""
    return json.dumps(node.to_json(), sort_keys=True)


def nodes_of(cluster: RecordedResource) -> tuple[Node, ...]:
    """The nodes that a recorded cluster has, in rank order."""
    return tuple(Node.from_json(node) for node in cluster.outputs.get("nodes", ()))


def recorded_or_planned(planned: Node, cluster: RecordedResource | None) -> Node:
    """The node as it was made, unless the manifest means another machine by its name now, or another way to it."""
    made = {node.name: node for node in nodes_of(cluster)}.get(planned.name) if cluster else None
    return made if made is not None and same_machine(made, planned) else planned


def same_machine(made: Node, planned: Node) -> bool:
    """Whether the manifest still means the machine that a node was made on, and the same way to it."""
    return (made.address, made.details) == (planned.address, planned.details)


def unprovisioned_nodes(cluster: RecordedResource) -> tuple[Node, ...]:
    """Those that a cluster asks for and that could not be reached when it was made; with a key if they may have been made all the same."""
    return tuple(Node.from_json(node) for node in cluster.outputs.get("unreachable", ()))


def node_named(cluster: RecordedResource, node_id: str) -> Node | None:
    """The node of a cluster by its id, ``cluster/name``."""
    return next((node for node in nodes_of(cluster) if node.id == node_id), None)
