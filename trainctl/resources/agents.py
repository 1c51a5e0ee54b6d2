"""Connections to nodes: one agent per node, open while the command runs."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from trainctl.base.lazy_dataclass import dataclass, field
from trainctl.base.protocol.method import Method
from trainctl.base.protocol.wire import error_to_json
from trainctl.errors import TrainctlError
from trainctl.ledger.state import RecordedResource
from trainctl.plugin_api.provider import Node, Provider, Transport
from trainctl.remote.agent import NodeAgent
from trainctl.remote.archive import load_bytecode, node_archive
from trainctl.remote.processes import InputFeed
from trainctl.remote.session import NodeSessions

if TYPE_CHECKING:  # what most commands don't need isn't loaded
    from concurrent.futures import Future

    from trainctl.inputs.checkpoints import CheckpointAccess
    from trainctl.model.address import Address
    from trainctl.plan.placement import PlannedRun
    from trainctl.plugin_api.scheduler import SchedulesJobs
    from trainctl.secrets.resolver import SecretResolver
    from trainctl.weights.lock import LockEntry
    from trainctl.weights.mirrors import HostMirrorLocation, Mirror

_CLOSE_SECONDS = 2.0
"""How long to wait for calls to end on the nodes before closing their connections."""

Providers = Callable[[str], Provider]
"""Return the provider of a name; the same object every time."""


@dataclass(frozen=True, slots=True)
class ProjectContext:
    """Manifest directory, state lineage, and the user and project to display.

    ``excluded_paths`` are files and directories of this machine that are never code.
    """

    directory: Path
    lineage: str
    owner: str
    project: str
    excluded_paths: tuple[Path, ...] = ()


class Agents:
    """Opens each node's transport once and closes all of them at the end; thread-safe.

    ``cache`` is the directory of the node program's digest, and of its bytecode for nodes with this Python version.
    """

    def __init__(self, providers: Providers, cache: Path | None = None) -> None:
        self.providers = providers
        self._cache = cache
        self._archive = node_archive(cache)
        self._lock = threading.RLock()
        self._agents: dict[tuple[str, bool], NodeAgent] = {}
        self._transports: dict[str, tuple[Transport, NodeSessions]] = {}

    def __enter__(self) -> Agents:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End running calls on every node and close the transports."""
        with self._lock:
            connections = [*self._transports.values()]
            self._transports.clear()
            self._agents.clear()
        for _, sessions in connections:
            sessions.end()
        deadline = time.monotonic() + _CLOSE_SECONDS
        for transport, sessions in connections:
            sessions.wait(deadline)
            transport.close()

    def of(self, provider: str, node: Node, *, ephemeral: bool = False) -> NodeAgent:
        """Return the agent of a node; an ephemeral one installs nothing, for nodes that may not exist."""
        with self._lock:
            # All fields: a name may come to mean another machine.
            key = (json.dumps(node.to_json(), sort_keys=True), ephemeral)
            if key not in self._agents:
                transport, sessions = self._transport(provider, node)
                runs_this_python = node.python == sys.executable and self.shares_disk(provider)
                self._agents[key] = NodeAgent(
                    node,
                    transport,
                    ephemeral=ephemeral,
                    archive=self._archive,
                    bytecode=self._bytecode if self._cache else None,
                    sessions=sessions,
                    remote=not runs_this_python,
                )
            return self._agents[key]

    def shares_disk(self, provider: str) -> bool:
        """Whether the provider's nodes see the files of the client."""
        return self.providers(provider).capabilities.shares_disk_with_client

    def scheduler(self, provider: str) -> SchedulesJobs | None:
        """Return the provider's batch system; None if trainctl places the runs."""
        from trainctl.plugin_api.scheduler import SchedulesJobs

        instance = self.providers(provider)
        return instance if isinstance(instance, SchedulesJobs) else None

    def sees(self, provider: str, node: Node, mirror: HostMirrorLocation | None) -> bool:
        """Whether a node sees the directory of a mirror; None for a mirror on the client."""
        if mirror is None or self.shares_disk(mirror.provider):
            return self.shares_disk(provider)
        addresses = [(at.address, at.details.get("port")) for at in (mirror.node, node)]
        return addresses[0] == addresses[1]

    def _bytecode(self) -> bytes:
        assert self._cache is not None  # noqa: S101 (only called with a cache)
        return load_bytecode(self._archive, self._cache)

    def _transport(self, provider: str, node: Node) -> tuple[Transport, NodeSessions]:
        with self._lock:
            key = json.dumps([node.id, node.address, node.details], sort_keys=True)
            if key not in self._transports:
                transport = self.providers(provider).transport(node)
                self._transports[key] = (transport, NodeSessions(transport))
            return self._transports[key]


def nodes_of(cluster: RecordedResource | None) -> tuple[Node, ...]:
    """Return the nodes of a recorded cluster, in rank order; none if it isn't recorded."""
    outputs = cluster.outputs if cluster else {}
    return tuple(Node.from_json(node) for node in outputs.get("nodes", ()))


def recorded_or_planned(planned: Node, cluster: RecordedResource | None) -> Node:
    """Return the recorded node, or the planned one if the machine differs."""
    recorded = {node.name: node for node in nodes_of(cluster)}
    node = recorded.get(planned.name)
    return node if node is not None and same_machine(node, planned) else planned


def same_machine(recorded: Node, planned: Node) -> bool:
    """Whether two nodes are on one machine, reached in the same way.

    A node planned without an address has no machine before it is created.
    """
    return not planned.address or (recorded.address, recorded.details) == (
        planned.address,
        planned.details,
    )


def unprovisioned_nodes(cluster: RecordedResource | None) -> tuple[Node, ...]:
    """Return the nodes that were unreachable when the cluster was created.

    A node with a key may have been created all the same.
    """
    outputs = cluster.outputs if cluster else {}
    return tuple(Node.from_json(node) for node in outputs.get("unreachable", ()))


def node_named(cluster: RecordedResource, node_id: str) -> Node | None:
    """Return the node of a cluster with an id, ``cluster/name``."""
    return next((node for node in nodes_of(cluster) if node.id == node_id), None)


@dataclass(frozen=True, slots=True)
class Services:
    """Shared dependencies of the handlers."""

    agents: Agents
    mirror: Mirror
    secrets: SecretResolver
    context: ProjectContext
    checkpoints: CheckpointAccess
    delete_checkpoints: bool = False
    planned: Mapping[Address, PlannedRun] = field(default_factory=dict)
    """The planned placement of new runs."""
    ending: Set[Address] = frozenset()
    """Clusters that the plan deletes or replaces."""
    lock: Callable[[LockEntry], None] = lambda _: None
    """Called with the resolved version of a source once it is mirrored."""
    quarantine: Callable[[Address, str, str], None] = lambda *_: None
    """Quarantine a node: address of its cluster, node id, reason."""


_HEARTBEAT_SECONDS = 0.2
_RESPONSES_AT_ONCE = 8
Result = TypeVar("Result")


class NodeCall:
    """A call whose node sends requests back; a context manager.

    ``respond`` answers them, on many threads; ``on_event`` gets all other events.
    Setting ``stop`` ends the call and the node's work.
    """

    def __init__(
        self,
        agent: NodeAgent,
        respond: Callable[[Mapping[str, Any]], dict[str, Any]],
        on_event: Callable[[Mapping[str, Any]], None],
        stop: threading.Event | None = None,
    ) -> None:
        from concurrent.futures import ThreadPoolExecutor  # slow to import

        self._agent = agent
        self._respond_to = respond
        self._on_other_event = on_event
        self._stop = stop or threading.Event()
        self._responses = InputFeed()
        self._pool = ThreadPoolExecutor(_RESPONSES_AT_ONCE, thread_name_prefix="response")
        self._failure: BaseException | None = None
        self._response_errors: dict[str, TrainctlError] = {}
        self.ended = threading.Event()
        """Set when the call has ended or failed: stop waiting and retrying."""

    def __enter__(self) -> NodeCall:
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self._pool.shutdown(cancel_futures=True)

    def call(
        self,
        method: Method[Any, Result],
        request: Mapping[str, Any],
        following: Iterable[bytes] = (),
    ) -> Result:
        """Call the method; an error of a response is raised as it was here."""

        def beat() -> None:
            while not (self._stop.is_set() or self.ended.wait(_HEARTBEAT_SECONDS)):
                self._responses.put(b"\n")
            self._responses.close()

        heartbeat = threading.Thread(target=beat, daemon=True, name="heartbeat")
        heartbeat.start()
        try:
            result = self._agent.call(
                method,
                request,
                following=following,
                payload=self._responses,
                on_event=self._on_event,
            )
        except TrainctlError as error:
            self._raise_failure()
            # The node may report an error that this side sent as a response.
            raise self._response_errors.get(error.summary.partition(": ")[2], error) from None
        finally:
            self.ended.set()
            heartbeat.join()
        self._raise_failure()
        return result

    def _raise_failure(self) -> None:
        """Raise the exception that left the node without a response, if there was one."""
        if self._failure is not None:
            raise self._failure

    def _on_event(self, event: Mapping[str, Any]) -> None:
        if "request" in event:
            self._pool.submit(self._respond, event).add_done_callback(self._check)
        else:
            self._on_other_event(event)

    def _check(self, future: Future[None]) -> None:
        """End the call after an unexpected exception, as the node would wait."""
        failure = None if future.cancelled() else future.exception()
        if failure is not None:
            self._failure = failure
            self.ended.set()

    def _respond(self, event: Mapping[str, Any]) -> None:
        try:
            response = self._respond_to(event)
        except TrainctlError as error:
            response = {"error": error_to_json(error)}
            self._response_errors[error.summary] = error
        self._responses.put(json.dumps({"response": event["request"], **response}).encode() + b"\n")
