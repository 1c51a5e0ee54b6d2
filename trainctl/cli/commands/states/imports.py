"""``trainctl import``."""

from __future__ import annotations

from typing import Annotated

import typer

from trainctl.cli.options import PlanFormat, RunOption, argument, option
from trainctl.cli.plan_execution import ExecutionFlags, execute_plan
from trainctl.cli.plans import show_plan
from trainctl.cli.session import CliSession, session_of
from trainctl.cli.workspaces import addresses, open_workspace
from trainctl.errors import UsageError
from trainctl.ledger.edits import edit
from trainctl.ledger.planned_edits import StateEdits
from trainctl.model.address import Address, Kind
from trainctl.operations.plan import create_plan
from trainctl.operations.states.moves import adopt_run
from trainctl.operations.survey import SurveyOptions
from trainctl.operations.workspace import Workspace
from trainctl.plan.values import PlanOptions
from trainctl.views.state import summary


def import_command(
    ctx: typer.Context,
    address: Annotated[str, argument("ADDRESS", "Declared resource, e.g. job.train")],
    id_: Annotated[str | None, argument("ID", "ID of the run, as --run")] = None,
    run: RunOption = None,
    on: Annotated[str | None, option("--on CLUSTER/NODE", "First node of the run")] = None,
) -> int:
    """Record an existing resource in the state, and what it needs.

    Clusters, weights and caches are found by what the manifest says. A job needs one of its runs.
    """
    session, run = session_of(ctx), run or id_
    named = addresses((address,), "ADDRESS")[0]
    is_job = named.kind is Kind.JOB
    if is_job is not bool(run and on):
        raise UsageError(
            f"{named} needs --run and --on" if is_job else "--run and --on are for jobs",
            "For example: trainctl import job.train --run nuui5lk --on lab/gpu-01",
        )
    with open_workspace(session) as workspace:
        resource, state = workspace.desired.resources.get(named), workspace.ledger.state()
        if resource is None or named in state.resources:
            where = "not in the manifest" if resource is None else "in the state already"
            raise UsageError(f"{named} is {where}", "Nothing was changed.")
        needed = resource.depends_on if is_job else (named,)
        missing = [item for item in needed if item not in state.resources]
        code = _adopt(session, workspace, missing) if missing else 0
        if code or not is_job:
            return code
        record = adopt_run(workspace, workspace.ledger.state(), named, str(on), str(run))
        edit(workspace.ledger, StateEdits(imports=(record,)))
    session.output.print(f"Imported {named}: {summary(record)}.")
    return 0


def _adopt(session: CliSession, workspace: Workspace, missing: list[Address]) -> int:
    """Record resources that are not in the state; creating them again changes nothing."""
    for address in missing:
        provider = workspace.desired.resources[address].provider
        if address.kind is Kind.JOB:
            raise UsageError(f"{address} is not in the state", f"Import it first: {address}.")
        if (
            address.kind is Kind.CLUSTER
            and workspace.provider(provider).capabilities.creates_machines
        ):
            raise UsageError(
                f"{address} can't be imported: its machines belong to the lost state",
                "End them: trainctl nodes reap --lineage ID. Then apply creates new ones.",
            )
    options = PlanOptions(targets=tuple(missing), edits_state=False)
    plan = create_plan(workspace, options, SurveyOptions(applies=True))
    if not plan.usable:
        show_plan(session, plan, PlanFormat.TEXT)
        return plan.exit_code
    return execute_plan(session, workspace, plan, ExecutionFlags(auto_approve=True), 10)
