"""State: the fold of the log, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainctl.model.address import Address
from trainctl.model.resource import Lifecycle


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a lease: a process that can be told from every other, so that a dead one is known to be dead.

    ``machine`` and ``boot`` are the machine's and the boot's ids, ``started`` the process's start in clock ticks
    since boot (from ``/proc/PID/stat``). ``who`` is ``user@host`` for people.
    """

    machine: str
    boot: str
    pid: int
    started: int
    who: str


@dataclass(frozen=True, slots=True)
class Intent:
    """An outside effect that is about to be caused, or was and nobody said how it ended.

    ``id`` is the entry's UUID, ``key`` the effect's idempotency key, ``action`` create, update or delete.
    ``plan`` is the digest of the plan it belongs to. ``renewals`` counts the renewals seen, so that a watcher
    can tell a holder that moves from one that doesn't without comparing clocks.
    """

    id: str
    address: Address
    action: str
    provider: str
    key: str
    inputs: Mapping[str, Any]
    holder: Holder
    time: float
    lease_seconds: float = 30.0
    plan: str = ""
    renewals: int = 0
    released: bool = False


@dataclass(frozen=True, slots=True)
class Recorded:
    """A resource as the state knows it.

    ``attributes`` are the desired values as applied, ``outputs`` what came out of it; both in JSON.
    ``version`` counts this address's own outcomes: what a saved plan compares.
    """

    address: Address
    provider: str
    attributes: Mapping[str, Any]
    outputs: Mapping[str, Any]
    depends_on: tuple[Address, ...] = ()
    lifecycle: Lifecycle = Lifecycle()
    version: int = 1
    key: str = ""


@dataclass(frozen=True, slots=True)
class State:
    """Everything the log says. ``open_intents`` are those without an outcome, by address."""

    lineage: str = ""
    serial: int = 0
    position: int = 0
    resources: Mapping[Address, Recorded] = field(default_factory=dict)
    open_intents: Mapping[Address, Intent] = field(default_factory=dict)
    versions: Mapping[Address, int] = field(default_factory=dict)
    """How many outcomes and releases each address has had, removed ones included."""
