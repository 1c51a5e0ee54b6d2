"""How an apply ended."""

from __future__ import annotations

from dataclasses import dataclass, field

from trainctl.apply.step import Deferred
from trainctl.errors import Busy, Forbidden, Interrupted, PartlyDone, StalePlan, TrainctlError
from trainctl.model.address import Address
from trainctl.plan.values import Change


@dataclass(slots=True)
class Result:
    """What was done, what failed and why, what was not tried because of which failure, what was left alone, and what waits.

    ``interrupted``: the user stopped it before its end.
    """

    done: list[Change] = field(default_factory=list)
    failed: dict[Address, TrainctlError] = field(default_factory=dict)
    skipped: dict[Address, Address] = field(default_factory=dict)
    left_alone: list[Change] = field(default_factory=list)
    deferred: dict[Address, Deferred] = field(default_factory=dict)
    not_started: list[Address] = field(default_factory=list)
    interrupted: bool = False

    def carried_on(self, later: Result) -> None:
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
            return Interrupted.exit_code
        if self.done or self.left_alone or self.deferred:
            return PartlyDone.exit_code
        codes = {error.exit_code for error in self.failed.values()}
        if len(codes) == 1 and codes <= {Busy.exit_code, StalePlan.exit_code, Forbidden.exit_code}:
            return codes.pop()
        return TrainctlError.exit_code
