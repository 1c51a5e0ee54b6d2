"""A provider: where nodes come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from trainctl.base.json import JsonObject
from trainctl.plugin_api.transport import Transport


class ResourceStatus(StrEnum):
    """The result of an inspection. Only GONE is known to be gone."""

    PRESENT = "present"
    MISSING = "missing"
    UNREACHABLE = "unreachable"
    FORBIDDEN = "forbidden"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a provider can do."""

    creates_machines: bool = False
    costs_money: bool = False
    shares_disk_with_client: bool = False


@dataclass(frozen=True, slots=True)
class Node:
    """One machine of a cluster.

    ``root`` is the absolute directory there in which trainctl keeps what it may delete; ``data`` the one for what
    outlives it (checkpoints); ``python`` an interpreter of 3.8 or newer; ``key`` the idempotency key it was made with.
    """

    cluster: str
    name: str
    address: str
    root: str
    data: str
    python: str
    key: str = ""
    gpus: int | None = 0
    """How many GPUs jobs may use; None leaves it to what the machine's own tools report."""
    details: Mapping[str, Any] = field(default_factory=dict)
    price_per_hour: float | None = None
    """What it costs, in the currency of the manifest; None leaves it to the cluster's price."""
    ports: str = ""
    """``FIRST-LAST``: the ports that others can connect to there, and at which alone anything listens; empty for any."""

    @property
    def id(self) -> str:
        """``cluster/name``, as plans and listings show it."""
        return f"{self.cluster}/{self.name}"

    def to_json(self) -> dict[str, Any]:
        """The form kept in the state."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Node:
        """Read what ``to_json`` wrote."""
        return cls(**{name: value[name] for name in cls.__dataclass_fields__ if name in value})


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """One cluster section of the manifest: its name and the provider's own settings, defaults filled in."""

    name: str
    settings: JsonObject


@dataclass(frozen=True, slots=True)
class SettingsProblem:
    """A problem of a cluster's settings that a schema can't express; ``path`` leads from the section to it."""

    path: tuple[str | int, ...]
    summary: str
    detail: str


Confirm = Callable[[str], bool]
"""Asks the user a question; False without a terminal."""


def never_confirm(question: str) -> bool:
    """A ``Confirm`` without a user."""
    return False


class Provider(Protocol):
    """Gives nodes. ``create`` with the same key twice gives the same node once; ``find`` answers for a crash between.

    Methods block, may be called from many threads, and raise NodeError or NodeUnreachable.
    """

    name: str
    capabilities: Capabilities

    def set_confirm(self, confirm: Confirm) -> None:
        """Ask the user through this from now on. May be called from many threads."""
        ...

    def close(self) -> None:
        """Give back what is held between calls, such as connections."""
        ...

    def schema(self) -> JsonObject:
        """The JSON Schema of the provider's settings in a cluster section, with ``default`` where there is one."""
        ...

    def check(self, cluster: ClusterSettings) -> Sequence[SettingsProblem]:
        """What is wrong with settings that fit the schema; looks at nothing."""
        ...

    def plan(self, cluster: ClusterSettings) -> Sequence[Node]:
        """The nodes the settings ask for, in rank order, as far as they are known beforehand; their ``key`` is empty.

        Makes nothing and looks at nothing: ``root``, ``data`` and ``python`` may be empty. Where a machine exists before it
        is made a node, ``transport`` reaches it.
        """
        ...

    def locate(self, cluster: ClusterSettings, node: Node) -> Node:
        """A planned node with everything that only a look at its machine can tell; makes nothing there."""
        ...

    def create(self, cluster: ClusterSettings, name: str, key: str) -> Node:
        """Make the named node, or hand back the one made with this key before."""
        ...

    def find(self, cluster: ClusterSettings, key: str) -> Node | None:
        """The node made with this key, if there is one."""
        ...

    def list(self, cluster: ClusterSettings) -> Sequence[Node]:
        """Every node of the cluster that exists."""
        ...

    def read(self, node: Node) -> ResourceStatus:
        """Whether the node is there."""
        ...

    def delete(self, node: Node) -> None:
        """Remove the node; no error if it is gone already."""
        ...

    def transport(self, node: Node) -> Transport:
        """A way to run programs on the node; the caller closes it."""
        ...
