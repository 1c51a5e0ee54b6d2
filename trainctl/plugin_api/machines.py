"""Optional interfaces of providers: list, plan and offer machines, and use the project."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from trainctl.base.lazy_dataclass import dataclass
from trainctl.base.objects import ObjectStat
from trainctl.plugin_api.provider import ClusterSettings, Node, Provider


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine that trainctl created, as its provider reports it.

    ``node`` has cluster, name and key, and ``lineage`` is that of the state, as recorded with the machine when it was created.
    """

    node: Node
    id: str
    lineage: str
    state: str
    """The provider's word for the state, such as ``running``."""
    type: str = ""
    zone: str = ""
    launched_at: float | None = None
    """Seconds since the epoch."""


@runtime_checkable
class ListsMachines(Provider, Protocol):
    """A provider that lists machines without a state; ``delete`` ends them."""

    def list_machines(self, cluster: ClusterSettings) -> Sequence[Machine]:
        """Return all existing machines of trainctl that the account has, of any cluster and lineage.

        The settings of ``cluster`` say where to look, such as in which region; a provider with ``set_project`` looks in its
        records, and gets no settings if no cluster has it. Raises NodeError or NodeUnreachable.
        """
        ...


@dataclass(frozen=True, slots=True)
class MachinePlan:
    """What ``create`` with the key of a node, or ``delete``, would do.

    ``node`` has what is known before it exists, such as its price. ``digest`` covers what is done and by what,
    and nothing that differs between computers. ``file``: the provider's own, that ``create`` gets.

    ``changes`` are of the platform's resources: ``address``, ``actions`` and ``reason`` as in the JSON of plans, ``values``
    that are known after the change and not sensitive, and ``replace_paths``, which force a replacement.
    """

    node: Node
    planner: str
    """The program that made it, with its version."""
    changes: tuple[Mapping[str, Any], ...]
    digest: str
    file: str


@runtime_checkable
class PlansMachines(Provider, Protocol):
    """A provider that creates machines and can say beforehand what it would do on its platform."""

    def plan_machines(
        self, cluster: ClusterSettings, keys: Mapping[str, str], ending: Sequence[Node]
    ) -> Sequence[MachinePlan]:
        """Plan to create or update nodes, by name with their keys, and to delete nodes; changes nothing.

        Raises NodeError with the platform's reason, PermissionDenied if the user doesn't allow it.
        """
        ...


@dataclass(frozen=True, slots=True)
class Offer:
    """A machine type in a zone that ``create`` tries, in the order of the offers."""

    type: str
    gpus: int
    gpu_kind: str
    zone: str
    price_per_hour: float | None
    """Price of one machine; None if it is unknown."""
    price_source: str
    """Where the price comes from, such as ``price list`` or ``built-in table``."""
    price_date: str
    """Date of the price, ``YYYY-MM-DD``."""
    availability: str
    """How the machine is had, such as ``on-demand`` or ``spot``."""
    quota_left: int | None = None
    """Number of machines that the account's quota still allows; None if unknown."""
    note: str = ""


@runtime_checkable
class OffersMachines(Protocol):
    """A provider that creates machines and can list its offers beforehand."""

    def offers(self, cluster: ClusterSettings, *, online: bool = True) -> Sequence[Offer]:
        """Return the offers in the order in which ``create`` tries them.

        Takes a few seconds at most. Without a connection, and if ``online`` is false, prices come from a table and quotas
        are unknown.
        """
        ...


class ProviderRecords(Protocol):
    """JSON documents of a provider next to the state, encrypted as it is; keys begin with ``nodes/``.

    Methods are those of ``ObjectStore``.
    """

    def get(self, key: str) -> bytes | None: ...
    def put(self, key: str, data: bytes) -> None: ...
    def put_if_absent(self, key: str, data: bytes) -> bool: ...
    def list(self, prefix: str) -> Iterable[ObjectStat]: ...
    def delete(self, keys: Sequence[str]) -> None: ...


@dataclass(frozen=True, slots=True)
class ProjectAccess:
    """A project, as a provider sees it that has ``set_project``, which is called before anything else."""

    directory: Path
    """Directory of the manifest."""
    records: Callable[[], ProviderRecords]
    """Open the records; StateError if the state is at a place that has none."""
    secret: Callable[[str], str]
    """Return the value of a declared secret, which is then hidden in all output."""
    require_module: Callable[[str], None]
    """Raise PermissionDenied unless the user's trust file allows to run a module from this source."""
