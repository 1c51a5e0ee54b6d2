"""Runs that lost their supervisors before they began, and with them perhaps their secrets, as in a reboot of their host: they go on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trainctl.base.protocol import WANTS_CARRYING_ON, WANTS_SECRETS
from trainctl.errors import TrainctlError
from trainctl.ledger.state import Recorded
from trainctl.model.events import Emit, Event, EventType
from trainctl.operations.following import run_event
from trainctl.operations.runs import Run, control, newest_runs, note, refresh_all
from trainctl.operations.workspace import Workspace


def waiting_runs(workspace: Workspace, name: str | None = None) -> list[Run]:
    """The runs that wait for secrets, or for one of them, or to go on with those that their nodes keep, as these tell it now. Who can't be asked is left out."""
    with_secrets = [
        run
        for run in newest_runs(workspace.ledger.state())
        if run.record.status.live and name in (None, *_names(run.job, run))
    ]
    return waiting_of([run for run, _ in refresh_all(workspace, with_secrets)])


def waiting_of(runs: Iterable[Run]) -> list[Run]:
    """Those that wait for secrets, or to go on with those that their nodes keep, of runs as they are now."""
    return [run for run in runs if run.record.waiting in (WANTS_SECRETS, WANTS_CARRYING_ON)]


def send_again(workspace: Workspace, runs: Sequence[Run], emit: Emit) -> list[Run]:
    """Give each run its secrets, as the manifest declares them now, or have it go on with those that are kept; those that go on, as they are then.

    Trouble is told of each.
    """
    given = []
    for run in runs:
        try:
            given.append(_send(workspace, run))
            emit(run_event(given[-1]))
        except TrainctlError as error:
            emit(
                Event(
                    EventType.DIAGNOSTIC,
                    f"{error.summary}. {error.detail}".strip(),
                    run.job.address,
                )
            )
    return given


def _send(workspace: Workspace, run: Run) -> Run:
    values = None if run.record.waiting == WANTS_CARRYING_ON else _values(workspace, run)
    now = control(workspace).give_secrets(run.record, values)
    note(workspace, run.job, now)
    return Run(run.job, now)


def _values(workspace: Workspace, run: Run) -> dict[str, str]:
    names = sorted(set(run.job.job_spec.runtime.secret_environment.values()))
    values = {name: workspace.secrets.value(name) for name in names}
    values.update(workspace.checkpoints.values(run.record.store or {}))
    return values


def _names(job: Recorded, run: Run) -> set[str]:
    """The secrets that the run has."""
    store = (run.record.store or {}).get("secret")
    return {*job.job_spec.runtime.secret_environment.values(), *([str(store)] if store else [])}
