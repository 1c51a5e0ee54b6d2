"""Interfaces of providers of nodes and of transports to nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from threading import Event
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from trainctl.base.json import JsonObject
from trainctl.base.lazy_dataclass import asdict, dataclass, field, fields

if TYPE_CHECKING:
    from trainctl.plugin_api.machines import MachinePlan


class ResourceStatus(StrEnum):
    """Result of an inspection; only MISSING means that the resource doesn't exist."""

    PRESENT = "present"
    MISSING = "missing"
    UNREACHABLE = "unreachable"
    FORBIDDEN = "forbidden"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities of a provider."""

    creates_machines: bool = False
    """Whether machines don't exist before ``create``; unreachable ones may be deleted without cleanup."""
    costs_money: bool = False
    """Whether machines cost money from ``create`` to ``delete``."""
    shares_disk_with_client: bool = False
    schedules_jobs: bool = False
    """Whether a batch system places and starts runs; then it implements ``SchedulesJobs``."""
    replacement_settings: tuple[str, ...] = ()
    """Settings, such as the machine type, that can't be changed without new machines."""


@dataclass(frozen=True, slots=True)
class Node:
    """One machine of a cluster.

    ``root`` is the absolute directory for files that trainctl may delete, ``data`` the one for files that outlive the
    node (checkpoints), ``python`` an interpreter 3.8 or newer, ``key`` the idempotency key of its creation.
    """

    cluster: str
    name: str
    address: str = ""
    root: str = ""
    data: str = ""
    python: str = ""
    key: str = ""
    gpus: int | None = 0
    """Number of GPUs that jobs may use; None means those reported by the machine."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """The provider's own, but for ``notice``: where the platform announces that it takes a machine with ``shutdown`` back.

    ``{"kind": "imds"}``, with ``url`` if it is not that of the environment.
    """
    price_per_hour: float | None = None
    """Price in the currency of the manifest; None means that of the cluster."""
    ports: str = ""
    """``FIRST-LAST``: ports reachable from other machines; empty for any."""
    shutdown: tuple[str, ...] = ()
    """Command, run on the machine, that ends it for good when it is idle; empty: only ``delete`` ends it.

    The provider's machines run ``sh ROOT/at_boot`` as the node's user after a boot, if it exists.
    """
    stop: tuple[str, ...] = ()
    """Command that stops the machine but keeps its disk, for checkpoints not uploaded; empty: ``shutdown``."""
    idle_timeout: float = 1800.0
    """Seconds without a run or a request after which the machine is idle."""
    boot_timeout: float = 0.0
    """Seconds after a boot within which a client sets up the machine, else it runs ``shutdown``."""
    max_lifetime: float | None = None
    """Seconds after its creation when the platform ends the machine; None: only ``shutdown`` or ``delete`` does."""

    @property
    def id(self) -> str:
        """``cluster/name``."""
        return f"{self.cluster}/{self.name}"

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON for the state."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Node:
        """Convert the JSON form back."""
        known = {each.name: value[each.name] for each in fields(cls) if each.name in value}
        for name in known.keys() & {"shutdown", "stop"}:  # lists in JSON
            known[name] = tuple(known[name])
        return cls(**known)


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Name of a cluster and the provider's settings, with defaults filled in.

    ``create`` gets the ``lineage`` of the state, to label machines with; ``planned``, the reviewed plans of machines by key,
    which it applies as they are, or raises StalePlan; ``notify``, which shows a message to the user; and
    ``cancelled``, which is set when the user wants to stop: a ``create`` that waits then raises UserInterrupt.
    """

    name: str
    settings: JsonObject
    lineage: str = ""
    planned: Mapping[str, MachinePlan] = field(default_factory=dict, compare=False, repr=False)
    notify: Callable[[str], None] = field(default=lambda _: None, compare=False, repr=False)
    cancelled: Event = field(default_factory=Event, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class SettingsProblem:
    """A problem of a cluster's settings beyond the schema; ``path`` is relative to it."""

    path: tuple[str | int, ...]
    summary: str
    detail: str


def text_schema(pattern: str, description: str, **more: Any) -> JsonObject:
    """Return the JSON Schema of a text setting."""
    return {"type": "string", "pattern": pattern, "description": description, **more}


def integer_schema(description: str, minimum: int = 1, **more: Any) -> JsonObject:
    """Return the JSON Schema of an integer setting."""
    return {"type": "integer", "minimum": minimum, "description": description, **more}


def duration_schema(description: str, default: str) -> JsonObject:
    """Return the JSON Schema of a duration, as ``parse_duration`` reads it."""
    pattern = r"^([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?$(?!\n)"
    forms: list[JsonObject] = [
        {"type": "string", "pattern": pattern},
        {"type": "integer", "minimum": 0},
    ]
    return {"anyOf": forms, "description": description, "default": default}


Confirm = Callable[[str], bool]
"""Ask the user a yes-or-no question; return False without a terminal."""


def never_confirm(question: str) -> bool:
    """Answer no."""
    return False


class Provider(Protocol):
    """A provider of nodes; one object serves a whole command.

    Methods block, and many threads call them at once, also for the same node. They raise NodeUnreachable if the machine or
    the platform doesn't answer, NodeError for all other failures, and retry on their own what may pass within seconds:
    callers don't repeat a call that failed. A command may be killed at any time, and the next one knows the ``key`` of
    a creation, not its result. Nodes come from the state, so they may be of an earlier version of the settings.
    """

    name: str
    capabilities: Capabilities

    def set_confirm(self, confirm: Confirm) -> None:
        """Set the function for questions to the user, before any other call; any thread may then ask."""
        ...

    def close(self) -> None:
        """Release resources such as connections, at any time and repeatedly; calls in progress may fail.

        A later call opens them again.
        """
        ...

    def schema(self) -> JsonObject:
        """Return the JSON Schema of the settings in a cluster section, with defaults: always the same, without I/O."""
        ...

    def check(self, cluster: ClusterSettings) -> Sequence[SettingsProblem]:
        """Return problems of settings that the schema accepts, without I/O."""
        ...

    def plan(self, cluster: ClusterSettings) -> Sequence[Node]:
        """Return the desired nodes in rank order, without I/O: for equal settings the same nodes with distinct names.

        ``key`` is empty; ``root``, ``data`` and ``python`` may be. If the machine exists already, ``transport`` works.
        With ``creates_machines``, ``address`` is empty, and ``locate`` is not called before ``create``.
        """
        ...

    def locate(self, cluster: ClusterSettings, node: Node) -> Node:
        """Complete a planned node with facts read from its machine; change nothing there.

        NodeUnreachable if the machine doesn't answer, NodeError if it can't be a node.
        """
        ...

    def create(self, cluster: ClusterSettings, name: str, key: str) -> Node:
        """Create the node and return when it is usable, or return the one created with this key before.

        With one key there is one node, also after a kill in between or for calls at the same time. With
        ``creates_machines``, another key means another machine; otherwise keys share it. An error leaves nothing that
        costs money, or what ``find`` returns.
        """
        ...

    def find(self, cluster: ClusterSettings, key: str) -> Node | None:
        """Return the node created with this key, equal to the result of ``create``; None only if there is none.

        Paths may be empty if its machine doesn't answer. NodeUnreachable if that leaves the answer open.
        """
        ...

    def read(self, node: Node) -> ResourceStatus:
        """Return whether the node exists; failures are values, too.

        MISSING only if it is certain: its jobs and caches then count as gone.
        """
        ...

    def delete(self, node: Node) -> None:
        """Delete the node and return when it is gone; no error if it doesn't exist.

        May be repeated, also after an error or a kill. Other keys, their runs and the data directory stay. NodeError
        names what is left.
        """
        ...

    def transport(self, node: Node) -> Transport:
        """Return a transport to the node, without connecting. Each call returns another one, which the caller closes."""
        ...


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """Output of a command.

    For a signal, ``exit_code`` is negative as in ``subprocess``, or 128 + number as in shells.
    """

    exit_code: int
    stdout: bytes
    stderr: bytes


class Transport(Protocol):
    """Runs programs on one node, without a shell. Many threads may call it at once."""

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: Iterable[bytes] = (),
        on_stdout: Callable[[bytes], None] | None = None,
        timeout: float | None = None,
    ) -> CommandOutput:
        """Run a program to its end and return its output. The program gets the arguments as they are.

        Another thread iterates ``stdin``, which may block without delaying output, and isn't read on when the program has
        ended. The calling thread runs ``on_stdout`` with stdout as it arrives, and the result has none. ``timeout``:
        seconds without data in either direction.

        NodeUnreachable without a connection, if it is lost, and after the timeout. Then, and if ``stdin`` or ``on_stdout``
        raises, the program is killed with the processes in its group. It has run or not: calls are never repeated here.
        What a program leaves behind in another session lives on, and isn't waited for. A program that can't be started is
        NodeUnreachable, or has the exit code 126 or 127.
        """
        ...

    def expose(self, port: int) -> AbstractContextManager[int]:
        """Forward a port of the node's loopback to a local port; yields the former.

        Raises NodeError if the node forbids it, NodeUnreachable if there is no connection. Ends with the block or the
        connection. Blocks may overlap, also for one port.
        """
        ...

    def close(self) -> None:
        """Kill its running programs, from any thread; their calls end. May be repeated.

        Other transports of the provider to this node, and a connection that they share, stay.
        """
        ...


@runtime_checkable
class InteractiveTransport(Transport, Protocol):
    """A transport to a node that people can work on."""

    def terminal_command(self, argv: Sequence[str], *, tty: bool) -> Sequence[str]:
        """Return a command line of this machine that runs a program on the node, valid until ``close``.

        The program has the standard streams and, with ``tty``, the terminal of the command. Its exit code is the
        program's. Raises NodeUnreachable.
        """
        ...

    @property
    def ssh_options(self) -> Mapping[str, str]:
        """Options of ssh_config(5) that reach the node; empty if ssh doesn't."""
        ...

    def forward(self, local_port: int, port: int) -> AbstractContextManager[Callable[[], bool]]:
        """Forward a port of this machine's loopback to one of the node's; yields whether it still works.

        Raises NodeError if the port is taken or the node forbids it, NodeUnreachable without a connection.
        """
        ...
