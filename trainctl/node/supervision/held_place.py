"""Keep the place of a run whose commands have ended: its processes' mounts, GPUs and files.

The shell writes its exit code to ``held`` and waits (``environment.shell.holding_lines``); the supervisor ends it.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

from trainctl.base.clock import Stopwatch
from trainctl.base.protocol.runs import RunSpec
from trainctl.node.runs.attempt import Attempt, AttemptEnd
from trainctl.node.runs.record import NodeRun
from trainctl.node.scheduling.rank_coordination import AttemptPolicy

_SHOWN_SECONDS = 1.0


class HeldPlace:
    """The place of one run; ``record`` updates the run's record."""

    def __init__(self, run: NodeRun, spec: RunSpec, record: Callable[..., None]) -> None:
        self._run = run
        self._session = spec["job"].get("interactive_session")
        self._attempts = AttemptPolicy.of(spec).max_attempts
        self._record = record
        self._began: Optional[float] = None
        self._until = 0.0

    def trigger(self, number: int) -> str:
        """Why the shell of an attempt waits after its commands; empty if it doesn't."""
        return self._session["trigger"] if self._session and number >= self._attempts else ""

    def tend(self, attempt: Attempt, clock: Stopwatch) -> None:
        """End the shell once its time is over; a timeout counts from the start with ``on_startup``."""
        code = self._run.held_code
        if self._session is None or code is None or attempt.stopped:
            return
        if self._began is None:
            self._began = 0.0 if self._session["trigger"] == "on_startup" else clock.seconds
        own = (
            self._session["timeout_minutes"] * 60
            if self._session["trigger"] != "on_demand"
            else 0.0
        )
        end = self._began + own + self._run.session_extension
        if clock.seconds >= end:
            attempt.release()
            return
        until = clock.wall + end
        if abs(until - self._until) > _SHOWN_SECONDS:
            self._until = until
            session: Any = {"until": until, "exit_code": code}
            self._record(session=session)

    def result(self, end: AttemptEnd) -> AttemptEnd:
        """Return how the commands ended, if the shell waited afterwards."""
        code = self._run.held_code
        return end if code is None else end._replace(code=code, stopped=False, expired=False)
