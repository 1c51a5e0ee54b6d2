"""Ledgers for tests: a clock that only moves when told, holders that are alive, dead or elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trainctl.base.clock import Clock
from trainctl.base.processes import process
from trainctl.ledger.leases import this_process
from trainctl.ledger.ledger import Ledger, Start
from trainctl.ledger.state import Holder, Intent, Recorded
from trainctl.model.address import Address
from trainctl.spi.state import StateLog

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


def elsewhere(name: str = "other") -> Holder:
    """A process on a machine of which nobody here can tell anything."""
    return Holder(f"machine-of-{name}", "boot", 1, 1, f"{name}@far")


def dead_here() -> Holder:
    """A process of this machine that has ended."""
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    return replace(this_process(), pid=child.pid, started=1, who="dead@here")


def alive_here() -> Holder:
    """A process of this machine that lives, and isn't this one: its parent."""
    return Holder(*process(os.getppid()), "alive@here")


def ledger_on(
    log: StateLog,
    clock: FakeClock | None = None,
    holder: Holder | None = None,
    redact: Any = str,
) -> Ledger:
    """A ledger with a clock that stands still."""
    return Ledger(log, redact, clock or FakeClock(), holder=holder)


def begin(ledger: Ledger, address: Address = SFT, key: str = "k1", **more: Any) -> Intent:
    """An intent to create something."""
    return ledger.begin(Start(address, "create", "local", key, {"attributes": {"x": 1}}, **more))


def record(
    address: Address = SFT, outputs: Mapping[str, Any] | None = None, **more: Any
) -> Recorded:
    """A resource as an outcome carries it."""
    return Recorded(address, "local", {"x": 1}, outputs or {}, **more)
