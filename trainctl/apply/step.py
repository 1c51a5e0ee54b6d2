"""Steps of an apply, and the interface of their handlers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from trainctl.base.lazy_dataclass import dataclass, field
from trainctl.base.listing import ResolvedSource
from trainctl.errors import AlreadyApplied, LockHeld, StalePlan, TrainctlError, UserInterrupt
from trainctl.ledger.state import Intent, Lookup, RecordedResource
from trainctl.model.action import Action, ActionReason
from trainctl.model.address import Address
from trainctl.model.delivery import TransferForecast
from trainctl.model.run import RunRecord
from trainctl.model.specs.resource import ResourceAttributes
from trainctl.plan.changes import REMOVES
from trainctl.plan.values import Change

if TYPE_CHECKING:
    from trainctl.apply.interrupt import Interrupt
    from trainctl.plugin_api.machines import MachinePlan

MayStop = Callable[[str], bool]
"""Whether the live run with this id may be stopped."""


@dataclass(frozen=True)
class ApplyStep(ResourceAttributes):
    """Input of a handler. ``key`` is the idempotency key of the change.

    ``attributes`` are the desired ones, for a deletion the recorded ones. ``progress`` takes the name of the phase,
    done bytes and total bytes. ``seconds_of`` is the duration of another step, 0 if none. ``cancelled`` is set to stop.
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
    """Whether an earlier attempt used this key, and may have made the change."""
    machines: Mapping[str, MachinePlan] = field(default_factory=dict)
    """Reviewed plans of machines, by the key of the node."""
    forecasts: Mapping[tuple[int, str], TransferForecast] = field(default_factory=dict)
    """Forecasts of deliveries by rank and weights."""
    identity: str | None = None
    """Identity of the new run."""
    reuses: RunRecord | None = None
    """A completed run to record instead of starting one."""
    notify: Callable[[str], None] = lambda _: None
    """Print a note."""
    spend_on_mirror: Callable[[str], None] = lambda _: None
    """Count a second of waiting for the mirror, with the reason; raises LockHeld if no time is left."""

    def needed(self, address: Address) -> RecordedResource:
        """Return the record of a dependency; raise TrainctlError if there is none."""
        recorded = self.lookup(address)
        if recorded is None:
            raise TrainctlError(
                f"{address} does not exist yet",
                f"Apply it first, with --target {address}.",
                code="not-applied-yet",
            )
        return recorded

    def stop_if_cancelled(self) -> None:
        """Raise UserInterrupt if cancelled; the next apply resumes the step."""
        if self.cancelled.is_set():
            raise UserInterrupt("interrupted", address=str(self.address))


class StepFailed(TrainctlError):
    """A failure with something to record: ``outputs`` replace the recorded ones."""

    def __init__(self, cause: TrainctlError, outputs: Mapping[str, Any]) -> None:
        super().__init__(cause.summary, cause.detail, address=cause.address, code=cause.code)
        self.outputs = outputs


class DeferredStep(TrainctlError):
    """A step that must wait for a later apply and has left nothing behind.

    ``lapses``: later applies won't repeat it, because it is a requested run.
    """

    default_code = "waiting-for-run"
    lapses = False


class LiveRunConflict(TrainctlError):
    """An attempt can't be undone, because its live run may not be stopped."""

    default_code = "live-run"


class StepHandler(Protocol):
    """Changes resources of one kind. Methods are idempotent by key."""

    def apply(self, step: ApplyStep) -> Mapping[str, Any]:
        """Create, replace or update; return the outputs. May raise StepFailed."""
        ...

    def delete(self, step: ApplyStep) -> None:
        """Delete; no error if it doesn't exist."""
        ...

    def undo(self, intent: Intent, lookup: Lookup, may_stop: MayStop) -> Mapping[str, Any]:
        """Undo an interrupted attempt; return observed outputs to record.

        Raises LiveRunConflict for a live run that may not be stopped.
        """
        ...


POLL_SECONDS = 1.0
"""Interval between attempts to take a lock."""


class LockTimeout:
    """The time that a command may wait for locks of others; waits at the same time count once."""

    def __init__(self, seconds: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        """``seconds`` None: don't wait for the state, and without limit for the mirror."""
        self._left = seconds or 0.0
        self._limits_mirror = seconds is not None
        self._clock = clock
        self._counted_until = clock()
        self._lock = threading.Lock()

    def spend(self, seconds: float) -> float:
        """Count the last seconds, during which a step waited; return the time left."""
        with self._lock:
            now = self._clock()
            self._left -= max(0.0, min(seconds, now - self._counted_until))
            self._counted_until = now
            return self._left

    def spend_on_mirror(self, reason: str) -> None:
        """Count a report of the mirror, which has one a second; raise LockHeld if no time is left."""
        if self._limits_mirror and self.spend(POLL_SECONDS) <= 0:
            raise LockHeld(
                f"cannot mirror the source: {reason}",
                "Wait longer with --lock-timeout, or apply again later.",
            )


def wait_for_lock(
    begin: Callable[[], Intent], timeout: LockTimeout, interrupt: Interrupt
) -> Intent:
    """Begin when the lock is free; raise LockHeld when no time is left."""
    waited = 0.0
    while True:
        started = time.monotonic()
        try:
            return begin()
        except LockHeld:
            remaining = timeout.spend(waited)
            if remaining <= 0:
                raise
            if interrupt.stopping.wait(min(POLL_SECONDS, remaining)):
                raise UserInterrupt("interrupted while waiting") from None
            waited = time.monotonic() - started


def is_already_recorded(change: Change, recorded: RecordedResource | None) -> bool:
    """Whether another apply recorded these values; False for requested runs."""
    if change.reason is ActionReason.BY_REQUEST:
        return False
    if change.action in REMOVES:
        return recorded is None
    return recorded is not None and change.before != change.after == recorded.attributes


def is_concurrent_apply(change: Change, error: StalePlan) -> bool:
    """Whether another apply of this plan made the change; False for requested runs."""
    return isinstance(error, AlreadyApplied) and change.reason is not ActionReason.BY_REQUEST
