"""An engine on a state in memory, and a handler that does what a test says."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from tests.support.ledgers import ledger_on
from tests.support.memory_log import MemoryLog
from trainctl.apply.engine import Engine, Permit
from trainctl.apply.interrupt import Interrupt
from trainctl.apply.step import Handler, Lookup, MayStop, Step, WouldStop
from trainctl.apply.walk import Result
from trainctl.ledger.ledger import Ledger, Start
from trainctl.ledger.state import Holder, Intent
from trainctl.model.action import Action
from trainctl.model.address import Address, Kind
from trainctl.model.events import Event, EventType
from trainctl.plan.values import Change, Plan

SFT, EVAL, LAB = map(Address.parse, ("job.sft", "job.eval", "cluster.lab"))
TEAM = Address.parse("project.team")
DIGEST = "sha256:plan"


class Fake:
    """A handler that notes what it is asked, and does what a test says."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.live: set[str] = set()
        self.left: dict[str, Mapping[str, Any]] = {}
        self.steps: dict[Address, Step] = {}
        self.does: dict[Address, Callable[[Step], Mapping[str, Any] | None]] = {}

    def carry_out(self, step: Step) -> Mapping[str, Any]:
        """Make it."""
        self.calls.append(f"make {step.address} {step.key}")
        return self._do(step) or {"made": step.key}

    def delete(self, step: Step) -> None:
        """Remove it."""
        self.calls.append(f"delete {step.address}")
        self._do(step)

    def abandon(self, intent: Intent, lookup: Lookup, may_stop: MayStop) -> Mapping[str, Any]:
        """Undo it, where it is no live run; what a test says that it left."""
        if intent.key in self.live and not may_stop(intent.key):
            raise WouldStop("it is live")
        self.calls.append(f"abandon {intent.address} {intent.key}")
        return self.left.get(intent.key, {})

    def _do(self, step: Step) -> Mapping[str, Any] | None:
        self.steps[step.address] = step
        return self.does[step.address](step) if step.address in self.does else None


_: type[Handler] = Fake


class Desk:
    """An engine on a state in memory, and everything it said."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.ledger = ledger_on(self.log)
        self.fake = Fake()
        self.interrupt = Interrupt()
        self.events: list[Event] = []
        self.given_up = threading.Event()

    def run(self, *changes: Change, permit: Permit = Permit(), parallelism: int = 4) -> Result:
        """Apply these changes."""
        kinds = dict.fromkeys(Kind, self.fake)
        engine = Engine(
            self.ledger, kinds, self.events.append, self.interrupt, self.given_up.set, parallelism
        )
        plan = Plan("", 0, "", changes, digest=DIGEST)
        return engine.run(plan, permit)

    def attempt(
        self, key: str, holder: Holder, attributes: Mapping[str, Any] | None = None
    ) -> Ledger:
        """An intent on the job that somebody else began and never ended."""
        other = ledger_on(self.log, holder=holder)
        other.begin(Start(SFT, "create", "local", key, {"attributes": attributes or {"v": 1}}))
        return other

    def fail(self, error: BaseException, address: Address = SFT) -> None:
        """Let the effect on an address fail."""

        def raise_it(step: Step) -> None:
            raise error

        self.fake.does[address] = raise_it

    def said(self, type_: EventType) -> list[str]:
        """What was told of a type, in turn."""
        return [f"{one.address}: {one.message}" for one in self.events if one.type is type_]


def change(address: Address = SFT, action: Action = Action.CREATE, **more: Any) -> Change:
    """A change to the value 1."""
    return Change(address, action, "local", **{"after": {"v": 1}, **more})
