"""Value types of the state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from trainctl.base.lazy_dataclass import dataclass, field
from trainctl.model.address import Address, external
from trainctl.model.json_codec import OMIT_EMPTY
from trainctl.model.specs.checks import JobLifecycle
from trainctl.model.specs.resource import ManagedResource

ORIGIN = "origin"
"""Output of a renamed resource: the address at which it was created."""


@dataclass(frozen=True, slots=True)
class LeaseHolder:
    """The process that holds a lease, identified so that its death can be detected.

    ``machine`` and ``boot`` are ids of the machine and its boot, ``started`` is the start in clock ticks since boot
    (``/proc/PID/stat``). ``actor``, ``commit`` and ``pipeline`` are those of ``leases.py``.
    """

    machine: str
    boot: str
    pid: int
    started: int
    actor: str
    commit: str | None = field(default=None, metadata=OMIT_EMPTY)
    pipeline: str | None = field(default=None, metadata=OMIT_EMPTY)


@dataclass(frozen=True, slots=True)
class Intent:
    """A change that was started and has no recorded outcome.

    ``id`` is the UUID of the entry, ``key`` the idempotency key of the change, ``action`` create, update or delete,
    ``plan`` the digest of the plan. ``renewals`` counts lease renewals, so that stale holders are detected without
    comparing clocks; ``renewed`` is the time of the last by the holder's clock.
    """

    id: str
    address: Address
    action: str
    provider: str
    key: str
    inputs: Mapping[str, Any]
    holder: LeaseHolder
    time: float
    lease_seconds: float = 30.0
    plan: str = ""
    renewals: int = 0
    released: bool = False
    reason: str = ""
    renewed: float = 0.0

    @property
    def attributes(self) -> Mapping[str, Any]:
        """Desired attributes."""
        return self.inputs.get("attributes") or {}

    @property
    def depends_on(self) -> tuple[Address, ...]:
        """Addresses that the resource depends on."""
        return tuple(Address.parse(str(text)) for text in self.inputs.get("depends_on") or ())


@dataclass(frozen=True)
class RecordedResource(ManagedResource):
    """A resource in the state.

    ``attributes`` are the applied ones, ``outputs`` the results, both as JSON. ``version`` counts the outcomes of the
    address, for comparison with saved plans.
    """

    outputs: Mapping[str, Any]
    depends_on: tuple[Address, ...] = ()
    lifecycle: JobLifecycle = JobLifecycle()
    version: int = 1
    key: str = ""


Lookup = Callable[[Address], RecordedResource | None]
"""Return the current record of a resource."""


def origin_of(lookup: Lookup, address: Address) -> Address:
    """Return the address at which a resource was created; its directories have that name."""
    recorded = lookup(address)
    return Address.parse(str(recorded.outputs.get(ORIGIN, address))) if recorded else address


@dataclass(frozen=True)
class State:
    """The replayed state; ``open_intents`` are those without an outcome, by address."""

    lineage: str = ""
    serial: int = 0
    position: int = 0
    resources: Mapping[Address, RecordedResource] = field(default_factory=dict)
    open_intents: Mapping[Address, Intent] = field(default_factory=dict)
    versions: Mapping[Address, int] = field(default_factory=dict)
    """Number of outcomes and unlocks of each address, including removed ones."""
    plans: Mapping[Address, tuple[str, int]] = field(default_factory=dict)
    """Plan of the newest outcome or unlock of each address, and the version before the first consecutive one of that
    plan: distinguishes a plan's own changes from others."""
    orphaned_intents: Mapping[Address, tuple[Intent, ...]] = field(default_factory=dict)
    """Attempts that failed, were unlocked or replaced, and may have left something behind.

    Resume them with the same key, or undo them first; the next outcome of the address removes them.
    """
    approved: Mapping[Address, tuple[str, str]] = field(default_factory=dict)
    """Digests of approved values that have no outcome yet, and of the approved plan."""
    forgotten: Mapping[Address, RecordedResource] = field(default_factory=dict)
    """Last records of forgotten resources. They are not planned, but their runs can be inspected and continued."""
    moved_to: str = ""
    """URL of the place that the state moved to; nothing can be appended here then."""

    @cached_property
    def external(self) -> Mapping[Address, RecordedResource]:
        """The resources that exist outside of the state."""
        return external(self.resources)

    def find_record(self, address: Address) -> RecordedResource | None:
        """Return the record of an address, also if it was forgotten."""
        return self.resources.get(address) or self.forgotten.get(address)

    def attempts(self, address: Address) -> tuple[Intent, ...]:
        """Return the open intent, then orphans, the newest first."""
        intent = self.open_intents.get(address)
        return (*([intent] if intent else ()), *reversed(self.orphaned_intents.get(address, ())))

    def moved(self, address: Address, seen: int, plan: str = "") -> bool:
        """Whether the address changed since version ``seen``, except by the same plan."""
        if self.versions.get(address, 0) == seen:
            return False
        return not plan or self.plans.get(address) != (plan, seen)
