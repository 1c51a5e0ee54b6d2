"""State: the fold of the log, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainctl.model.address import Address
from trainctl.model.specs.resource import LifecycleSpec, ResourceAttributes


@dataclass(frozen=True, slots=True)
class LeaseHolder:
    """The process that holds a lease, identified so that it is known when it is dead.

    ``machine`` and ``boot`` are the machine's and the boot's ids, ``started`` the process's start in clock ticks
    since boot (from ``/proc/PID/stat``). ``actor`` is ``user@host`` for people.
    """

    machine: str
    boot: str
    pid: int
    started: int
    actor: str


@dataclass(frozen=True, slots=True)
class Intent:
    """An outside effect that is about to be caused, or was and has no recorded end.

    ``id`` is the entry's UUID, ``key`` the effect's idempotency key, ``action`` create, update or delete.
    ``plan`` is the digest of the plan it belongs to, ``reason`` why it acts, for the history. ``renewals`` counts the
    renewals seen, so that a watcher recognises a stale holder without comparing clocks;
    ``renewed`` is when the last was, by the holder's clock, for people.
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
        """The attributes that it is to make so."""
        return self.inputs.get("attributes") or {}

    @property
    def depends_on(self) -> tuple[Address, ...]:
        """What its effect stands on."""
        return tuple(Address.parse(str(one)) for one in self.inputs.get("depends_on") or ())


@dataclass(frozen=True)
class RecordedResource(ResourceAttributes):
    """A resource as the state knows it.

    ``attributes`` are the desired values as applied, ``outputs`` what came out of it; both in JSON.
    ``version`` counts this address's own outcomes: what a saved plan compares.
    """

    address: Address
    provider: str
    attributes: Mapping[str, Any]
    outputs: Mapping[str, Any]
    depends_on: tuple[Address, ...] = ()
    lifecycle: LifecycleSpec = LifecycleSpec()
    version: int = 1
    key: str = ""


@dataclass(frozen=True, slots=True)
class State:
    """Everything the log says. ``open_intents`` are those without an outcome, by address."""

    lineage: str = ""
    serial: int = 0
    position: int = 0
    resources: Mapping[Address, RecordedResource] = field(default_factory=dict)
    open_intents: Mapping[Address, Intent] = field(default_factory=dict)
    versions: Mapping[Address, int] = field(default_factory=dict)
    """How many outcomes and releases each address has had, removed ones included."""
    plans: Mapping[Address, tuple[str, int]] = field(default_factory=dict)
    """Of each address, the plan of its newest outcome or release, and its version before the first of the
    consecutive ones under that plan: to distinguish a plan's own moves from those of others."""
    orphaned_intents: Mapping[Address, tuple[Intent, ...]] = field(default_factory=dict)
    """Attempts that failed, were released by hand or superseded: their keys may have left something behind.

    Carry on with the same key, or undo them by their keys first; the next outcome on the address forgets them.
    """
    approved: Mapping[Address, str] = field(default_factory=dict)
    """Of each address, the digest of the values that an apply was allowed to make so, for as long as nothing came of it."""
    forgotten: Mapping[Address, RecordedResource] = field(default_factory=dict)
    """What left the manifest and was forgotten, as it was recorded last: nothing is planned of it, but its runs can be looked
    at, and gone on from. What is recorded at the address again takes its place."""

    def find_record(self, address: Address) -> RecordedResource | None:
        """The record of an address, or of what was forgotten there."""
        return self.resources.get(address) or self.forgotten.get(address)

    def attempts(self, address: Address) -> tuple[Intent, ...]:
        """All that may have left something at an address: the open one, then those that ended badly, the newest first."""
        intent = self.open_intents.get(address)
        return (*([intent] if intent else ()), *reversed(self.orphaned_intents.get(address, ())))

    def moved(self, address: Address, seen: int, plan: str = "") -> bool:
        """Whether the address has moved since a plan saw that version; moves under the same plan don't count."""
        if self.versions.get(address, 0) == seen:
            return False
        return not plan or self.plans.get(address) != (plan, seen)
