"""The live run whose place a new one takes: it goes on until all is there that the new one needs, so that no failure costs it."""

from __future__ import annotations

from collections.abc import Sequence

from trainctl.apply.step import Step
from trainctl.errors import TrainctlError
from trainctl.model.run import RunRecord
from trainctl.resources.run_control import RunControl


class Replaced:
    """A job's earlier runs, of which the newest may be live."""

    def __init__(self, step: Step, control: RunControl, earlier: Sequence[RunRecord]) -> None:
        self.earlier = tuple(earlier)
        self._step = step
        self._control = control
        self._live = self.earlier[-1] if earlier and goes_on(earlier[-1]) else None

    @property
    def key(self) -> str | None:
        """The live run's."""
        return self._live.key if self._live else None

    def stop(self) -> bool:
        """End the live run, and say so; whether there was one until now."""
        if self._live is None:
            return False
        self._step.tell(f"stops {_named(self._live)}")
        self.earlier = (*self.earlier[:-1], self._control.stop(self._live))
        self._live = None
        return True

    def survived(self, error: TrainctlError) -> bool:
        """Whether the live run goes on although the new one failed; if so, the error tells it."""
        if self._live is None:
            return False
        error.detail = f"{error.detail}\n{_named(self._live).capitalize()} goes on.".lstrip()
        return True


def goes_on(run: RunRecord) -> bool:
    """Whether anything of it may still do something: of a gang that has lost a rank the others."""
    return run.status.live or any(rank.status.live for rank in run.ranks)


def _named(run: RunRecord) -> str:
    return f"run {run.number} ({run.id})"
