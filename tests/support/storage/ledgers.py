"""Ledgers for tests: a clock that only moves when told, holders that are alive, dead or elsewhere."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trainctl.base.clock import Clock
from trainctl.ledger.leases import current_holder
from trainctl.ledger.ledger import IntentRequest, Ledger
from trainctl.ledger.state import Intent, LeaseHolder, RecordedResource
from trainctl.model.address import Address
from trainctl.plugin_api.state import StateLog

SFT = Address.parse("job.sft")
PREP = Address.parse("job.prep")


class FakeClock(Clock):
    """Both clocks at once; sleeping moves them."""

    def __init__(self, at: float = 1000.0) -> None:
        self.at = at

    def now(self) -> float:
        return self.at

    def elapsed(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds


def elsewhere(name: str = "other") -> LeaseHolder:
    """A process on a machine of which nobody here can tell anything."""
    return LeaseHolder(f"machine-of-{name}", "boot", 1, 1, f"{name}@far")


def dead_here() -> LeaseHolder:
    """A process of this machine that has ended."""
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    return replace(current_holder(), pid=child.pid, started=1, actor="dead@here")


def ledger_on(
    log: StateLog,
    clock: FakeClock | None = None,
    holder: LeaseHolder | None = None,
    redact: Any = str,
) -> Ledger:
    """A ledger with a clock that stands still."""
    return Ledger(log, redact, clock or FakeClock(), holder=holder)


def begin(ledger: Ledger, address: Address = SFT, key: str = "k1", **more: Any) -> Intent:
    return ledger.begin(
        IntentRequest(address, "create", "local", key, {"attributes": {"x": 1}}, **more)
    )


def record(
    address: Address = SFT, outputs: Mapping[str, Any] | None = None, **more: Any
) -> RecordedResource:
    """A resource as an outcome carries it."""
    return RecordedResource(address, "local", {"x": 1}, outputs or {}, **more)
