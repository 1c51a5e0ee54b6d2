"""Noting how runs stand and carrying on what was approved, for as long as somebody watches."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from trainctl.apply.interrupt import Interrupt
from trainctl.errors import TrainctlError
from trainctl.model.events import Emit, EventType
from trainctl.operations.continuing import Continuation
from trainctl.operations.following import run_event
from trainctl.operations.resending import send_again, waiting_of
from trainctl.operations.runs import newest_runs, refresh_all
from trainctl.operations.workspace import Workspace

Open = Callable[[], AbstractContextManager[Workspace]]
"""Opens the manifest and the state as they are now."""


class Watcher:
    """Looks again and again; tells what changed since the last look, and each trouble once."""

    def __init__(self, open_: Open, emit: Emit, interrupt: Interrupt, parallelism: int) -> None:
        self._open = open_
        self._emit = emit
        self._interrupt = interrupt
        self._continuation = Continuation(emit, interrupt, parallelism)

    def watch(self, interval: float) -> None:
        """Until the user has had enough; ``interval`` is in seconds."""
        while not self._interrupt.stopping.is_set():
            self.look()
            self._interrupt.stopping.wait(interval)

    def look(self) -> int:
        """Note how runs stand, then carry on what can be carried on; the exit code of this one look."""
        try:
            with self._open() as workspace:
                self._note_runs(workspace)
                result = self._continuation.carry_on(workspace)
            self._continuation.all_well()
        except TrainctlError as error:
            self._continuation.say(None, error.summary, EventType.DIAGNOSTIC)
            return error.exit_code
        return result.exit_code if result else 0

    def _note_runs(self, workspace: Workspace) -> None:
        runs = [one for one in newest_runs(workspace.ledger.state()) if one.record.status.live]
        seen = refresh_all(workspace, runs)
        for before, (now, problem) in zip(runs, seen, strict=True):
            if problem is not None:
                self._continuation.say(now.job.address, problem.summary, EventType.DIAGNOSTIC)
            elif now.record.status is not before.record.status:
                self._emit(run_event(now))
        send_again(workspace, waiting_of(now for now, _ in seen), self._emit)
