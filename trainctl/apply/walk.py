"""A walk through the graph of changes: their order, which wait, run and are over, and the result."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from trainctl.apply.step import DeferredStep
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
from trainctl.plan import graph
from trainctl.plan.values import Change

_NOTHING = frozenset({Action.NOOP, Action.READ})


def effective_changes(changes: Iterable[Change]) -> dict[Address, Change]:
    """The changes that do something, by address, in plan order."""
    return {change.address: change for change in changes if change.action not in _NOTHING}


def change_dependencies(
    changes: Mapping[Address, Change], state: State
) -> dict[Address, set[Address]]:
    """For each change, the changes before it in the plan that come first.

    Only those before it: where records point in a circle, the plan has broken it, and a walk must not wait in it for ever.
    """
    waits = graph.change_dependencies(changes, state.resources)
    place = {address: index for index, address in enumerate(changes)}
    return {
        address: {one for one in needed if place[one] < place[address]}
        for address, needed in waits.items()
    }


@dataclass(slots=True)
class ApplyResult:
    """What was done, what failed and why, what was not tried because of which failure, what was left alone, and what waits.

    ``interrupted``: the user stopped it before its end.
    """

    done: list[Change] = field(default_factory=list)
    failed: dict[Address, TrainctlError] = field(default_factory=dict)
    skipped: dict[Address, Address] = field(default_factory=dict)
    left_alone: list[Change] = field(default_factory=list)
    deferred: dict[Address, DeferredStep] = field(default_factory=dict)
    not_started: list[Address] = field(default_factory=list)
    interrupted: bool = False

    def merge(self, later: ApplyResult) -> None:
        """Take in how what waited here went later."""
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
        self.interrupted = self.interrupted or later.interrupted

    @property
    def complete(self) -> bool:
        """Whether everything the plan said is so."""
        undone = (self.failed, self.skipped, self.left_alone, self.deferred, self.not_started)
        return not any(undone)

    @property
    def exit_code(self) -> int:
        """0; 130 if interrupted; 12 if some of it was done or left alone; else that of the only kind of failure, or 1."""
        if self.complete:
            return 0
        if self.interrupted:
            return UserInterrupt.exit_code
        if self.done or self.left_alone or self.deferred:
            return PartialApply.exit_code
        codes = {error.exit_code for error in self.failed.values()}
        if len(codes) == 1 and codes <= {
            LockHeld.exit_code,
            StalePlan.exit_code,
            PermissionDenied.exit_code,
        }:
            return codes.pop()
        return TrainctlError.exit_code


RECORD_BATCH_SIZE = 100
"""How many changes of records are handed out together: enough that an append costs little beside what it holds."""


class GraphWalk:
    """Hands out changes in their turn and takes back how they ended. Only the thread that walks touches it."""

    def __init__(
        self,
        changes: Mapping[Address, Change],
        waits: Mapping[Address, set[Address]],
        result: ApplyResult,
    ) -> None:
        self._waiting = dict(changes)
        self._waits = {address: set(needed) for address, needed in waits.items()}
        self._wanted_by: dict[Address, list[Address]] = {address: [] for address in changes}
        for address, needed in self._waits.items():
            for one in needed:
                self._wanted_by[one].append(address)
        self._ready: deque[Address] = deque()
        self._ready_records: deque[Address] = deque()
        for address in changes:
            if not self._waits[address]:
                self._make_ready(address)
        self._result = result
        self._running: set[Address] = set()
        self._recording: set[Address] = set()

    @property
    def is_under_way(self) -> bool:
        """Whether something that was handed out has not come back."""
        return bool(self._running or self._recording)

    def take_ready(self, most: int) -> list[Change]:
        """Changes whose turn has come, as many as may run beside those that do, in plan order."""
        taken = self._take(self._ready, most - len(self._running))
        self._running |= {change.address for change in taken}
        return taken

    def take_records(self) -> list[Change]:
        """Changes of records whose turn has come, in plan order: to be made in one append. Nothing while such ones are under way."""
        if self._recording:
            return []
        taken = self._take(self._ready_records, RECORD_BATCH_SIZE)
        self._recording |= {change.address for change in taken}
        return taken

    def leave_alone(self, change: Change) -> None:
        """Don't make a change; what stands on things as they are now, or needs what they would become, is skipped."""
        if self._waiting.pop(change.address, None) is not None:
            self._result.left_alone.append(change)
            self._skip_dependants(change.address, change.address)

    def settle(self, change: Change, error: TrainctlError | None) -> None:
        """Note how a change ended; what waited only for it may run, what needed it and can't have it is skipped."""
        self._running.discard(change.address)
        self._recording.discard(change.address)
        if error is not None:
            if isinstance(error, DeferredStep):
                self._result.deferred[change.address] = error
            else:
                self._result.failed[change.address] = error
            self._skip_dependants(change.address, change.address)
            return
        self._result.done.append(change)
        for address in self._wanted_by[change.address]:
            self._waits[address].discard(change.address)
            if not self._waits[address] and address in self._waiting:
                self._make_ready(address)

    def settle_records(self, changes: Iterable[Change], done: Collection[Address]) -> None:
        """Note which changes of records were made together; each of the others becomes a step of its own."""
        for change in changes:
            if change.address in done:
                self.settle(change, None)
            else:
                self._recording.discard(change.address)
                self._waiting[change.address] = change
                self._ready.append(change.address)

    def close(self) -> None:
        """Note what was never started."""
        self._result.not_started += list(self._waiting)

    def _make_ready(self, address: Address) -> None:
        (self._ready_records if address.kind in STATE_ONLY_KINDS else self._ready).append(address)

    def _take(self, ready: deque[Address], most: int) -> list[Change]:
        taken: list[Change] = []
        while ready and len(taken) < most:
            change = self._waiting.pop(ready.popleft(), None)
            if change is not None:
                taken.append(change)
        return taken

    def _skip_dependants(self, address: Address, cause: Address) -> None:
        todo = [address]
        while todo:
            for dependant in self._wanted_by[todo.pop()]:
                if self._waiting.pop(dependant, None) is not None:
                    self._result.skipped[dependant] = cause
                    todo.append(dependant)
