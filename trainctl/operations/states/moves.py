"""Renamed resources and imported runs of a manifest."""

from __future__ import annotations

from trainctl.errors import StateError
from trainctl.ledger.planned_edits import NO_EDITS, StateEdits
from trainctl.ledger.renaming import renames
from trainctl.ledger.state import ORIGIN, RecordedResource, State
from trainctl.model.address import Address, Kind
from trainctl.model.run import RankRecord, RunRecord, RunStatus, run_id
from trainctl.model.specs.job_spec import JobSpec
from trainctl.operations.workspace import Workspace
from trainctl.plan.values import PlanOptions
from trainctl.resources.runs.run_control import RunControl

_PLACE = ("url", "endpoint_url", "secret", "prefix")


def planned_edits(workspace: Workspace, state: State, options: PlanOptions) -> StateEdits:
    """Return what the manifest renames and imports and the state doesn't have yet.

    Raises StateError if both names of a resource are in the state, NodeError if a run can't be read.
    """
    if options.destroy or options.refresh_only or not options.edits_state:
        return NO_EDITS
    desired = workspace.desired
    names = renames(state, desired.moves.renamed.items(), desired.resources)
    imports = [
        adopt_run(workspace, state, job, *text.rsplit("/", 1))
        for job, text in desired.moves.imported.items()
        if job not in state.resources and job not in names.values()
    ]
    return StateEdits(names, tuple(imports))


def adopt_run(
    workspace: Workspace, state: State, job: Address, node_id: str, run: str
) -> RecordedResource:
    """Return the record of a declared job with an existing run; NodeError if it can't be read."""
    desired = workspace.desired.resources[job]
    cluster = Address(Kind.CLUSTER, node_id.partition("/")[0])
    if cluster not in state.resources:
        raise StateError(
            f"{job} can't be imported: {cluster} is not in the state",
            f"Import it first: trainctl import {cluster}.",
            address=str(job),
            code="not-in-state",
        )
    control = RunControl(workspace.agents, state.resources.get)
    found = control.find_run(node_id, run)
    attributes = found["run_inputs"]["attributes"]
    record = RunRecord(
        run_id(found["key"]),
        found["number"],
        found["key"],
        found["generation"],
        ranks=tuple(
            RankRecord(rank, node, RunStatus.CREATED) for rank, node in enumerate(found["nodes"])
        ),
        created_at=found["created_at"],
        code=(attributes.get("code") or {}).get("digest"),
        store={name: found["store"].get(name) for name in _PLACE},
        max_duration_seconds=JobSpec.from_attributes(attributes).max_duration_seconds,
    )
    origin = {} if found["address"] == str(job) else {ORIGIN: found["address"]}
    return RecordedResource(
        job,
        desired.provider,
        attributes,
        {**origin, "runs": [control.status(record).to_json()]},
        desired.depends_on,
        desired.lifecycle,
        key=record.key,
    )
