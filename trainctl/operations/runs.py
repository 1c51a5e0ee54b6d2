"""Finding runs in the state, and keeping the state's record of them up to date."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trainctl.errors import UsageError
from trainctl.ledger.state import Recorded, State
from trainctl.model.address import Address, Kind
from trainctl.model.run import RunRecord
from trainctl.operations.workspace import Workspace
from trainctl.resources.jobs import runs_of
from trainctl.resources.run_control import RunControl


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a recorded job."""

    job: Recorded
    record: RunRecord

    @property
    def project(self) -> str:
        """The project it is filed under."""
        return str(self.job.attributes["project"])


def job_address(text: str) -> Address:
    """A job's address as users type it: ``job.sft``, or its name alone."""
    try:
        address = Address.parse(text if text.startswith("job.") else f"job.{text}")
    except ValueError as error:
        raise UsageError(str(error)) from None
    return address


def find_run(state: State, address: Address, run: str | None = None) -> Run:
    """A run by id or number, the newest by default; UsageError says what there is."""
    job = state.resources.get(address)
    if job is None:
        known = ", ".join(str(one) for one in sorted(state.resources) if one.kind is Kind.JOB)
        raise UsageError(
            f"{address} is not in the state",
            f"In the state: {known or 'no job'}.",
            code="not-in-state",
        )
    runs = runs_of(job)
    if not runs:
        raise UsageError(
            f"{address} has not run yet", "Run it: trainctl apply.", code="no-such-run"
        )
    if run is None:
        return Run(job, runs[-1])
    for record in runs:
        if run in (record.id, str(record.number)):
            return Run(job, record)
    raise UsageError(
        f"{address} has no run {run}",
        f"Its runs: {', '.join(f'{r.number} ({r.id})' for r in runs)}.",
        code="no-such-run",
    )


def newest_runs(state: State) -> Iterator[Run]:
    """The newest run of every job that has one."""
    for address in sorted(state.resources):
        if address.kind is Kind.JOB and (runs := runs_of(state.resources[address])):
            yield Run(state.resources[address], runs[-1])


def control(workspace: Workspace) -> RunControl:
    """A way to ask nodes about runs."""
    state = workspace.ledger.state()
    return RunControl(workspace.agents, state.resources.get)


def refresh(workspace: Workspace, run: Run) -> Run:
    """The run as its nodes tell it now; what changed is appended to the state as observed."""
    if not run.record.status.live:
        return run
    now = control(workspace).status(run.record)
    if now != run.record:
        note(workspace, run.job, now)
    return Run(run.job, now)


def note(workspace: Workspace, job: Recorded, record: RunRecord) -> None:
    """Append what was seen of a run."""
    workspace.ledger.observe(job.address, {"run": record.to_json()})
