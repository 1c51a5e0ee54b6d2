"""What a supervisor has to settle with the other ranks of its run: nothing, where there are none."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional

from trainctl.base.protocol.spec import RunSpec
from trainctl.node.runs import record as runs
from trainctl.node.runs.attempt import Attempt, AttemptEnd, wait_for_stop
from trainctl.node.runs.record import NodeRun
from trainctl.node.scheduling.allocation import Allocation, PendingFn


class RunOutcome(NamedTuple):
    """How a run ended; ``cause`` is the kind of the Failure that it ended by. ``root_cause`` is what ended a gang: ``{rank, status, exit_code, error}``."""

    status: str
    exit_code: Optional[int] = None
    error: Optional[str] = None
    cause: Optional[str] = None
    root_cause: Optional[Mapping[str, Any]] = None


class AttemptPolicy(NamedTuple):
    """How often a job that fails is tried, the first time included, and how long to wait in between."""

    max_attempts: int = 1
    delay_seconds: float = 0.0

    @classmethod
    def of(cls, spec: RunSpec) -> AttemptPolicy:
        """The specification's; once if it says nothing."""
        return cls(**spec["retry"]) if spec["retry"] else cls()


class RankCoordination:
    """A run of one rank decides by itself; a gang's rank (``gang/member``) asks the others at the same places."""

    def __init__(self, run: NodeRun, spec: RunSpec, pending: PendingFn) -> None:
        self._run = run
        self._spec = spec
        self._pending = pending

    def join(self) -> None:
        """Before anything is waited for. Failure if the others can't be spoken with."""

    def turn(self) -> Allocation:
        """What the run has to wait for."""
        return Allocation(self._run, self._spec, self._pending)

    def wait_for_layout(self) -> bool:
        """Until an attempt may be laid out; False if there will be none."""
        return True

    @property
    def variables(self) -> Dict[str, str]:
        """Variables about the other ranks that are known only now."""
        return {}

    def begin(self) -> bool:
        """An attempt is laid out: until its commands may begin; False if they must not."""
        return True

    def chores(self, attempt: Attempt) -> List[Callable[[], None]]:
        """What has to be looked after while an attempt runs."""
        return []

    def settle(
        self, ending: RunOutcome, ended: AttemptEnd, number: int, note: Callable[[str], None]
    ) -> Optional[RunOutcome]:
        """After an attempt: how the run ended, or None where it is tried again; ``note`` is then told why."""
        retry = AttemptPolicy.of(self._spec)
        if ending.status != runs.FAILED or ended.expired or number >= retry.max_attempts:
            return ending
        note(ending.error or "")
        if wait_for_stop(retry.delay_seconds):
            return RunOutcome(runs.STOPPED, ended.code)
        return None

    def leave(self, ending: RunOutcome) -> RunOutcome:
        """The run has ended like this, which is news to the others unless ``settle`` said it: how that is to be put."""
        return ending

    def close(self) -> None:
        """Nothing is left to be said."""
