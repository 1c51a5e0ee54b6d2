"""What a step is told of how long its deliveries should take."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from tests.support.memory_log import MemoryLog
from tests.support.storage.ledgers import ledger_on
from trainctl.apply.engine import ApplyEngine, ApplyPermissions
from trainctl.apply.interrupt import Interrupt
from trainctl.apply.step import ApplyStep, MayStop, StepHandler
from trainctl.ledger.state import Intent, Lookup
from trainctl.model.action import Action
from trainctl.model.address import Address, Kind
from trainctl.model.delivery import TransferForecast
from trainctl.plan.values import Change, DeliveryRow, Plan, TierFacts

JOB, WEIGHTS = Address.parse("job.sft"), Address.parse("weights.a")


class Noting:
    """Notes what its steps are told."""

    def __init__(self) -> None:
        self.told: list[Mapping[tuple[int, str], TransferForecast]] = []

    def apply(self, step: ApplyStep) -> Mapping[str, Any]:
        self.told.append(step.forecasts)
        return {}

    def delete(self, step: ApplyStep) -> None: ...

    def undo(self, intent: Intent, lookup: Lookup, may_stop: MayStop) -> Mapping[str, Any]:
        return {}


_: type[StepHandler] = Noting


def test_a_delivery_is_forecast_without_what_goes_before_it() -> None:
    """What it took is compared with that: its weights were mirrored by another step. What the node has is none of what has to come."""
    tiers = TierFacts(node=5, mirror=3, upstream=4)
    line = DeliveryRow(
        JOB, 0, "lab/lab-0", WEIGHTS, tiers, "peers", "", "", 30.0, last_hop_seconds=10.0
    )
    plan = Plan("", 0, "", (Change(JOB, Action.CREATE, "local", after={}),), deliveries=(line,))
    noting, halt = Noting(), threading.Event()
    handlers = dict.fromkeys(Kind, noting)

    ApplyEngine(ledger_on(MemoryLog()), handlers, lambda event: None, Interrupt(), halt.set).run(
        plan, ApplyPermissions()
    )

    assert noting.told == [{(0, "weights.a"): TransferForecast(10.0, 7)}]
