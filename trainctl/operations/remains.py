"""What destroy leaves on purpose: the mirror and checkpoints, with their sizes."""

from __future__ import annotations

from trainctl.errors import NodeError, StorageError
from trainctl.jobs.environment import checkpoint_directory
from trainctl.model.address import Address, Kind
from trainctl.model.reports import Remain
from trainctl.operations.begun import with_begun
from trainctl.operations.checkpoints import checkpoints_of
from trainctl.operations.runs import Run
from trainctl.operations.workspace import Workspace
from trainctl.resources.agents import node_named
from trainctl.resources.run_control import runs_of
from trainctl.weights.mirrors import Mirror, directory_of


def remains_of(workspace: Workspace) -> list[Remain]:
    """What a destroy would leave, as far as it can be asked; directories that hold nothing are not named."""
    state = with_begun(workspace)
    found = [
        remain
        for address, job in sorted(state.resources.items())
        if address.kind is Kind.JOB
        for record in runs_of(job)
        for remain in _checkpoints(workspace, Run(job, record))
    ]
    return [*found, *_mirror(workspace.mirror)]


def _mirror(mirror: Mirror) -> list[Remain]:
    try:
        size = mirror.store.stored_bytes()
    except (NodeError, StorageError):
        return []
    place = str(directory_of(mirror) or mirror.url)
    return [Remain("mirror", place, size)] if size else []


def _checkpoints(workspace: Workspace, run: Run) -> list[Remain]:
    try:
        rows = checkpoints_of(workspace, run).rows()
    except (NodeError, StorageError):
        return []
    size = sum(row["bytes"] for row in rows)
    return [Remain("checkpoints", _place(workspace, run), size)] if size else []


def _place(workspace: Workspace, run: Run) -> str:
    store = run.record.store or {}
    if store.get("url"):
        return f"{store['url'].rstrip('/')}/{store['prefix']}"
    node_id = run.record.ranks[0].node
    cluster = workspace.ledger.state().resources.get(
        Address(Kind.CLUSTER, node_id.partition("/")[0])
    )
    node = node_named(cluster, node_id) if cluster else None
    return (
        str(checkpoint_directory(node, run.job.address, run.project, run.record))
        if node
        else node_id
    )
