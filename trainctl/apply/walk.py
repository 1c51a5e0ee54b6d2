"""Walk through the graph of changes, and the result of an apply."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping

from trainctl.apply.step import DeferredStep
from trainctl.base.lazy_dataclass import dataclass, field
from trainctl.errors import (
    LockHeld,
    PartialApply,
    PermissionDenied,
    StalePlan,
    TrainctlError,
    UserInterrupt,
)
from trainctl.ledger.state import State
from trainctl.model.action import Action
from trainctl.model.address import STATE_ONLY_KINDS, Address
from trainctl.plan import changes as planned
from trainctl.plan.values import Change

_NOTHING = frozenset({Action.NOOP, Action.READ})


def effective_changes(changes: Iterable[Change]) -> dict[Address, Change]:
    """Return the changes that do something, by address, in plan order."""
    return {change.address: change for change in changes if change.action not in _NOTHING}


def change_dependencies(
    changes: Mapping[Address, Change], state: State
) -> dict[Address, set[Address]]:
    """Return the dependencies of each change that precede it in the plan, if any.

    The plan's order breaks cycles of recorded dependencies.
    """
    waits = planned.change_dependencies(changes, state.resources)
    positions = {address: index for index, address in enumerate(changes)}
    return {
        address: before
        for address, needed in waits.items()
        if (before := {other for other in needed if positions[other] < positions[address]})
    }


@dataclass(slots=True)
class ApplyResult:
    """Result of an apply; ``skipped`` has the unmet dependency of each address.

    ``left_alone``: changes that would stop a live run. ``interrupted``: stopped by the user. ``by_others``: who made
    a change of ``done`` meanwhile.
    """

    done: list[Change] = field(default_factory=list)
    failed: dict[Address, TrainctlError] = field(default_factory=dict)
    skipped: dict[Address, Address] = field(default_factory=dict)
    left_alone: list[Change] = field(default_factory=list)
    deferred: dict[Address, DeferredStep] = field(default_factory=dict)
    not_started: list[Address] = field(default_factory=list)
    by_others: dict[Address, str] = field(default_factory=dict)
    interrupted: bool = False

    def merge(self, later: ApplyResult) -> None:
        """Merge the result of a later apply of the deferred changes."""
        self.done += later.done
        self.left_alone += later.left_alone
        ended = {change.address for change in (*later.done, *later.left_alone)}
        for address in (*ended, *later.failed, *later.skipped, *later.deferred, *later.not_started):
            self.deferred.pop(address, None)
            self.skipped.pop(address, None)
        self.failed |= later.failed
        self.skipped |= later.skipped
        self.deferred |= later.deferred
        self.not_started += later.not_started
        self.by_others |= later.by_others
        self.interrupted = self.interrupted or later.interrupted

    @property
    def complete(self) -> bool:
        """Whether all changes were applied."""
        return not any(
            (self.failed, self.skipped, self.left_alone, self.deferred, self.not_started)
        )

    @property
    def exit_code(self) -> int:
        """0 if complete, 130 if interrupted, 12 if partial, else that of the failure."""
        if self.complete:
            return 0
        if self.interrupted:
            return UserInterrupt.exit_code
        if len(self.done) > len(self.by_others) or self.left_alone or self.deferred:
            return PartialApply.exit_code
        codes = {error.exit_code for error in self.failed.values()}
        if len(codes) == 1 and codes <= {
            LockHeld.exit_code,
            StalePlan.exit_code,
            PermissionDenied.exit_code,
        }:
            return codes.pop()
        return TrainctlError.exit_code


RECORD_BATCH_SIZE = 1000
"""State-only changes per append."""


class GraphWalk:
    """Tracks ready, running and finished changes; for one thread."""

    def __init__(
        self,
        changes: Mapping[Address, Change],
        waits: Mapping[Address, set[Address]],
        result: ApplyResult,
    ) -> None:
        self._waiting = dict(changes)
        self._waits = {address: set(needed) for address, needed in waits.items()}
        self._dependants = planned.reverse(self._waits)
        self._ready: deque[Address] = deque()
        self._ready_records: deque[Address] = deque()
        for address in changes:
            if address not in self._waits:
                self._make_ready(address)
        self._result = result
        self._running: set[Address] = set()
        self._recording: set[Address] = set()

    @property
    def is_under_way(self) -> bool:
        """Whether any change is running."""
        return bool(self._running or self._recording)

    def take_ready(self, limit: int) -> list[Change]:
        """Take ready changes in plan order, so that at most ``limit`` run."""
        changes = self._take(self._ready, limit - len(self._running))
        self._running |= {change.address for change in changes}
        return changes

    def take_records(self) -> list[Change]:
        """Take ready state-only changes for one append; none while others run."""
        if self._recording:
            return []
        changes = self._take(self._ready_records, RECORD_BATCH_SIZE)
        self._recording |= {change.address for change in changes}
        return changes

    def leave_alone(self, change: Change) -> None:
        """Don't apply a change, and skip its dependants."""
        if self._waiting.pop(change.address, None) is not None:
            self._result.left_alone.append(change)
            self._skip_dependants(change.address)

    def settle(self, change: Change, error: TrainctlError | None) -> None:
        """Record the end of a change: release its dependants, or skip them after an error."""
        self._running.discard(change.address)
        self._recording.discard(change.address)
        if error is not None:
            if isinstance(error, DeferredStep):
                self._result.deferred[change.address] = error
            else:
                self._result.failed[change.address] = error
            self._skip_dependants(change.address)
            return
        self._result.done.append(change)
        for address in self._dependants.get(change.address, ()):
            self._waits[address].discard(change.address)
            if not self._waits[address] and address in self._waiting:
                self._make_ready(address)

    def settle_records(self, changes: Iterable[Change], done: Collection[Address]) -> None:
        """Record the end of a batch of state-only changes; the others become single steps."""
        for change in changes:
            if change.address in done:
                self.settle(change, None)
            else:
                self._recording.discard(change.address)
                self._waiting[change.address] = change
                self._ready.append(change.address)

    def close(self) -> None:
        """Add changes that were never started to the result."""
        self._result.not_started += list(self._waiting)

    def _make_ready(self, address: Address) -> None:
        (self._ready_records if address.kind in STATE_ONLY_KINDS else self._ready).append(address)

    def _take(self, ready: deque[Address], limit: int) -> list[Change]:
        changes: list[Change] = []
        while ready and len(changes) < limit:
            change = self._waiting.pop(ready.popleft(), None)
            if change is not None:
                changes.append(change)
        return changes

    def _skip_dependants(self, cause: Address) -> None:
        pending = [cause]
        while pending:
            for dependant in self._dependants.get(pending.pop(), ()):
                if self._waiting.pop(dependant, None) is not None:
                    self._result.skipped[dependant] = cause
                    pending.append(dependant)
