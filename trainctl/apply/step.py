"""One step of a plan while it is carried out, and what a kind of resource must be able to do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from trainctl.apply.interrupt import Interrupt
from trainctl.base.listing import ResolvedSource
from trainctl.errors import AlreadyApplied, LockHeld, StalePlan, TrainctlError, UserInterrupt
from trainctl.ledger.state import Intent, RecordedResource
from trainctl.model.action import Action, ActionReason
from trainctl.model.address import Address
from trainctl.model.delivery import TransferForecast
from trainctl.model.specs.resource import ResourceAttributes
from trainctl.plan.graph import REMOVES
from trainctl.plan.values import Change

Lookup = Callable[[Address], RecordedResource | None]
"""The present record of another resource: what steps before this one made."""

MayStop = Callable[[str], bool]
"""Whether a live run of that id may be stopped."""


@dataclass(frozen=True)
class ApplyStep(ResourceAttributes):
    """What a handler is given. ``key`` is the effect's idempotency key: the same key twice must have one effect.

    ``attributes`` are the values to make so (of a deletion: those recorded); ``progress`` takes a phase in words,
    bytes done and bytes in all; ``seconds_of`` says how long another step of this apply took (0 if there was none);
    ``cancelled`` is set when the user will not wait any longer.
    """

    address: Address
    action: Action
    key: str
    attributes: Mapping[str, Any]
    recorded: RecordedResource | None
    depends_on: tuple[Address, ...]
    resolved: ResolvedSource | None
    lookup: Lookup
    progress: Callable[[str, int, int], None]
    seconds_of: Callable[[Address], float]
    cancelled: threading.Event = field(default_factory=threading.Event)
    resumed: bool = False
    """Whether an earlier attempt had this key, and may have had its effect."""
    forecasts: Mapping[tuple[int, str], TransferForecast] = field(default_factory=dict)
    """What the plan says of each delivery, by rank and weights."""
    notify: Callable[[str], None] = lambda _: None
    """Prints a note on the work."""

    def needed(self, address: Address) -> RecordedResource:
        """The record of a resource that this one depends on; TrainctlError if there is none."""
        recorded = self.lookup(address)
        if recorded is None:
            raise TrainctlError(
                f"{address} does not exist yet",
                f"Apply it first, with --target {address}.",
                code="not-applied-yet",
            )
        return recorded

    def stop_if_cancelled(self) -> None:
        """Interrupted if the user will not wait any longer; nothing is lost, as the next apply carries on."""
        if self.cancelled.is_set():
            raise UserInterrupt("interrupted", address=str(self.address))


class StepFailed(TrainctlError):
    """A step that failed but left something worth recording: ``outputs`` replace the recorded ones."""

    def __init__(self, cause: TrainctlError, outputs: Mapping[str, Any]) -> None:
        super().__init__(cause.summary, cause.detail, address=cause.address, code=cause.code)
        self.outputs = outputs


class DeferredStep(TrainctlError):
    """A step that was not made, as it has to wait for something that only a later apply can see; it has left nothing.

    It ``lapses`` where no later apply would make it by itself: a run that was asked for.
    """

    default_code = "waiting-for-run"
    lapses = False


class LiveRunConflict(TrainctlError):
    """An attempt can't be undone, as its run is live and may not be stopped."""

    default_code = "live-run"


class StepHandler(Protocol):
    """What create, update and delete mean for one kind of resource. Every method may be repeated with the same key."""

    def apply(self, step: ApplyStep) -> Mapping[str, Any]:
        """Create, replace or update; the outputs to record. May raise StepFailed to record what there is."""
        ...

    def delete(self, step: ApplyStep) -> None:
        """Remove it; no error if it is gone."""
        ...

    def abandon(self, intent: Intent, lookup: Lookup, may_stop: MayStop) -> Mapping[str, Any]:
        """Undo what an interrupted attempt may have left that the new plan does not carry on; what of it is to be recorded,
        as an observation would be. LiveRunConflict where that is a live run that may not be stopped."""
        ...


POLL_SECONDS = 1.0
"""How often a lease that another holds is asked for again."""


def wait_for_lock(begin: Callable[[], Intent], seconds: float, interrupt: Interrupt) -> Intent:
    """Begin as soon as no other process holds the address. Busy after so many seconds; Interrupted if the user leaves."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return begin()
        except LockHeld:
            left = deadline - time.monotonic()
            if left <= 0:
                raise
            if interrupt.stopping.wait(min(POLL_SECONDS, left)):
                raise UserInterrupt("interrupted while waiting") from None


def is_already_recorded(change: Change, recorded: RecordedResource | None) -> bool:
    """Whether another apply has already made the record what this change was to make it.

    Not of a run that was asked for: another's run with the same values is not it.
    """
    if change.reason is ActionReason.BY_REQUEST:
        return False
    if change.action in REMOVES:
        return recorded is None
    return recorded is not None and change.before != change.after == recorded.attributes


def is_concurrent_apply(change: Change, error: StalePlan) -> bool:
    """Whether it is stale because another apply of the very same plan made this change. Not a run that was asked for: the
    other's is not this one, and must not be stopped for it."""
    return isinstance(error, AlreadyApplied) and change.reason is not ActionReason.BY_REQUEST
