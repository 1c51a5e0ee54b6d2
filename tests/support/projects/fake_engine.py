"""An engine on a state in memory, and a handler that does what a test says."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from tests.support.memory_log import MemoryLog
from tests.support.storage.ledgers import ledger_on
from trainctl.apply.engine import ApplyEngine, ApplyPermissions
from trainctl.apply.interrupt import Interrupt
from trainctl.apply.step import ApplyStep, LiveRunConflict, MayStop, StepHandler
from trainctl.apply.walk import ApplyResult
from trainctl.ledger.ledger import IntentRequest, Ledger
from trainctl.ledger.state import Intent, LeaseHolder, Lookup
from trainctl.model.action import Action
from trainctl.model.address import Address, Kind
from trainctl.model.events import Event, EventType
from trainctl.plan.values import Change, DeliveryRow, Plan

SFT, EVAL, LAB = map(Address.parse, ("job.sft", "job.eval", "cluster.lab"))
TEAM = Address.parse("project.team")
DIGEST = "sha256:plan"


class FakeHandler:
    """A handler that notes what it is asked, and does what a test says."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.live: set[str] = set()
        self.left: dict[str, Mapping[str, Any]] = {}
        self.steps: dict[Address, ApplyStep] = {}
        self.does: dict[Address, Callable[[ApplyStep], Mapping[str, Any] | None]] = {}

    def apply(self, step: ApplyStep) -> Mapping[str, Any]:
        self.calls.append(f"make {step.address} {step.key}")
        return self._do(step) or {"made": step.key}

    def delete(self, step: ApplyStep) -> None:
        self.calls.append(f"delete {step.address}")
        self._do(step)

    def undo(self, intent: Intent, lookup: Lookup, may_stop: MayStop) -> Mapping[str, Any]:
        """Undo it, where it is no live run; what a test says that it left."""
        if intent.key in self.live and not may_stop(intent.key):
            raise LiveRunConflict("it is live")
        self.calls.append(f"undo {intent.address} {intent.key}")
        return self.left.get(intent.key, {})

    def _do(self, step: ApplyStep) -> Mapping[str, Any] | None:
        self.steps[step.address] = step
        return self.does[step.address](step) if step.address in self.does else None


_: type[StepHandler] = FakeHandler


class FakeEngine:
    """An engine on a state in memory, and everything it said."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.ledger = ledger_on(self.log)
        self.fake = FakeHandler()
        self.interrupt = Interrupt()
        self.events: list[Event] = []
        self.given_up = threading.Event()

    def run(
        self,
        *changes: Change,
        permit: ApplyPermissions = ApplyPermissions(),
        parallelism: int = 4,
        digest: str = DIGEST,
        deliveries: tuple[DeliveryRow, ...] = (),
    ) -> ApplyResult:
        kinds = dict.fromkeys(Kind, self.fake)
        engine = ApplyEngine(
            self.ledger, kinds, self.events.append, self.interrupt, self.given_up.set, parallelism
        )
        plan = Plan("", 0, "", changes, digest=digest, deliveries=deliveries)
        return engine.run(plan, permit)

    def attempt(
        self, key: str, holder: LeaseHolder, attributes: Mapping[str, Any] | None = None
    ) -> Ledger:
        """An intent on the job that somebody else began and never ended."""
        other = ledger_on(self.log, holder=holder)
        other.begin(
            IntentRequest(SFT, "create", "local", key, {"attributes": attributes or {"v": 1}})
        )
        return other

    def fail(self, error: BaseException, address: Address = SFT) -> None:
        def raise_it(step: ApplyStep) -> None:
            raise error

        self.fake.does[address] = raise_it

    def lines(self, type_: EventType) -> list[str]:
        """What was told of a type, in turn."""
        return [f"{event.address}: {event.message}" for event in self.events if event.type is type_]


def change(address: Address = SFT, action: Action = Action.CREATE, **more: Any) -> Change:
    """A change to the value 1."""
    return Change(address, action, "local", **{"after": {"v": 1}, **more})
