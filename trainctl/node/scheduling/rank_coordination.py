"""Coordination of a supervisor with other ranks; no-op without a gang."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Optional

from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.base.protocol.runs import RunSpec
from trainctl.base.units import parse_duration
from trainctl.node.runs import record as runs
from trainctl.node.runs.attempt import Attempt, AttemptEnd, wait_for_stop
from trainctl.node.runs.record import NodeRun
from trainctl.node.scheduling.allocation import Allocation, PendingFn


class RunOutcome(NamedTuple):
    """Outcome of a run.

    ``cause``: code of the error; ``root_cause`` of a gang: ``{rank, status, exit_code, error}``.
    """

    status: str
    exit_code: Optional[int] = None
    error: Optional[str] = None
    cause: Optional[str] = None
    root_cause: Optional[Mapping[str, Any]] = None


class AttemptPolicy(NamedTuple):
    """Number of attempts of a failing job, and the delay between them."""

    max_attempts: int = 1
    delay_seconds: float = 0.0

    @classmethod
    def of(cls, spec: RunSpec) -> AttemptPolicy:
        """The policy of the job."""
        retry = spec["job"]["retry"]
        return cls(retry["max_attempts"], parse_duration(retry["delay"]))


class RankCoordination:
    """Coordination for runs of one rank; see ``rendezvous.member`` for gangs."""

    def __init__(self, run: NodeRun, spec: RunSpec, pending: PendingFn) -> None:
        self._run = run
        self._spec = spec
        self._pending = pending

    def join(self) -> None:
        """Connect to the other ranks; TrainctlError if that is impossible."""

    def allocation(self) -> Allocation:
        """Resources that the run waits for."""
        return Allocation(self._run, self._spec, self._pending)

    def wait_for_layout(self) -> bool:
        """Wait until an attempt may be prepared; False if there will be none."""
        return True

    @property
    def variables(self) -> Dict[str, str]:
        """Variables about the other ranks, known once an attempt is prepared."""
        return {}

    def wait_to_start(self) -> bool:
        """Wait until the commands of a prepared attempt may start; False if they must not."""
        return True

    def chores(self, attempt: Attempt) -> List[Callable[[], None]]:
        """Functions to call once a second during an attempt."""
        return []

    def decide_outcome(
        self, own: RunOutcome, end: AttemptEnd, number: int, record: Callable[..., None]
    ) -> Optional[RunOutcome]:
        """Decide after an attempt: the outcome, or None to retry.

        ``record`` updates the run's record before a retry.
        """
        retry = AttemptPolicy.of(self._spec)
        if own.status != runs.FAILED or end.expired or number >= retry.max_attempts:
            return own
        record(error=own.error or "", retries=number)
        if wait_for_stop(retry.delay_seconds):
            return RunOutcome(runs.STOPPED, end.code)
        return None

    def report_exit(self, own: RunOutcome) -> RunOutcome:
        """Report an outcome that was not decided; the outcome in view of the others."""
        return own

    def close(self) -> None:
        """Disconnect."""
