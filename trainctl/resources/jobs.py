"""Jobs: each creation or replacement is one run, started exactly once."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from trainctl.apply.step import (
    ApplyStep,
    DeferredStep,
    LiveRunConflict,
    MayStop,
    StepFailed,
)
from trainctl.base.lazy_dataclass import replace
from trainctl.base.protocol.runs import REMOVE, STOP, RunCacheRequest, StopRequest
from trainctl.errors import (
    NodeError,
    NodeUnreachable,
    TrainctlError,
    UserInterrupt,
)
from trainctl.ledger.leases import entry_author
from trainctl.ledger.state import Intent, Lookup, RecordedResource
from trainctl.model.action import Action
from trainctl.model.address import Address, Kind
from trainctl.model.run import RunRecord, RunStatus, run_id
from trainctl.plan.values import Change, Observation
from trainctl.plugin_api.provider import ResourceStatus
from trainctl.resources.agents import Agents, Services, nodes_of
from trainctl.resources.clusters import cache_target
from trainctl.resources.runs.previous_runs import (
    ReplacedRun,
    find_attempted_runs,
    find_blocking_runs,
    is_active,
    prepare_start,
    run_name,
)
from trainctl.resources.runs.run_control import STOP_GRACE_SECONDS, RunControl, runs_of

if TYPE_CHECKING:
    from trainctl.resources.deployment import Deployment

_NEW_RUN = frozenset({Action.CREATE, Action.REPLACE})


class JobHandler:
    """Starts, updates, observes and deletes the runs of jobs."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._agents = services.agents
        self._checkpoints = services.checkpoints

    @cached_property
    def _deployment(self) -> Deployment:
        from trainctl.resources.deployment import Deployment  # slow to import

        return Deployment(self._services)

    def apply(self, step: ApplyStep) -> Mapping[str, Any]:
        """Start a new run; for an update, set only the queue order of a live run.

        A run that fails to deploy is recorded, unless the run before it continues.
        """
        earlier = tuple(run for run in runs_of(step.recorded) if run.key != step.key)
        if step.action in (Action.UPDATE, Action.REUSE):
            return self._apply_without_start(step, earlier)
        control = RunControl(self._agents, step.lookup)
        replaced = ReplacedRun(step, control, earlier)
        run = RunRecord(
            run_id(step.key),
            max((run.number for run in earlier), default=0) + 1,
            step.key,
            created_at=time.time(),
            commit=entry_author(os.environ).commit,
            max_duration_seconds=step.job_spec.max_duration_seconds,
            identity=step.identity,
        )
        store = self._checkpoints.place(step.lookup, step.address, step.job_spec.project, run)
        run = replace(run, store=store)
        try:
            start = prepare_start(control, self._services.mirror.store, step, earlier)
            repeated = start.repeated_run.id if start.repeated_run else None
            run = self._deployment.deploy(start, replace(run, rerun_of=repeated), replaced)
        except (NodeUnreachable, UserInterrupt):
            raise  # it may have started: the intent stays open for the next apply
        except DeferredStep:
            raise  # nothing was started: no run
        except TrainctlError as error:
            if replaced.live is not None:
                name = run_name(replaced.live).capitalize()
                error.detail = f"{error.detail}\n{name} continues.".lstrip()
                raise
            failed = replace(
                run, status=RunStatus.DEPLOY_FAILED, error=error.summary, ended_at=time.time()
            )
            raise StepFailed(error, _outputs(*replaced.earlier, failed)) from error
        was_lost = run.status is RunStatus.LOST and run.started_at is None
        if run.status is RunStatus.DEPLOY_FAILED or was_lost:
            why = "the run could not be started"
            if was_lost:
                why = f"{run_name(run)} was lost before it started: its supervisor or node failed"
            failure = NodeError(run.error or why, code=run.now.get("cause"))
            raise StepFailed(failure, _outputs(*replaced.earlier, run))
        return _outputs(*replaced.earlier, run)

    def _apply_without_start(
        self, step: ApplyStep, earlier: Sequence[RunRecord]
    ) -> Mapping[str, Any]:
        """Record a reused run, or set the queue order of a live one."""
        from trainctl.resources.runs.batch_runs import BatchCluster
        from trainctl.resources.runs.launch import queue_order

        if step.reuses is not None:
            others = [run for run in earlier if run.id != step.reuses.id]
            owns = step.reuses.reused_from is None
            number = step.reuses.number if owns else len(others) + 1
            return _outputs(*others, replace(step.reuses, number=number))
        if earlier and earlier[-1].status.live:
            batch = BatchCluster.of(self._agents, step.needed(step.job_spec.cluster_address))
            if batch is not None:
                slot = self._deployment.slot(step)
                batch.reorder(step.address, step.job_spec, earlier[-1], slot)
            else:
                order = queue_order(step.address, step.job_spec, self._services.context.lineage)
                RunControl(self._agents, step.lookup).set_queue_order(earlier[-1], order)
        return _outputs(*earlier)

    def delete(self, step: ApplyStep) -> None:
        """Stop live runs and delete the directory of every own run; checkpoints only on request."""
        from trainctl.resources.checkpoints import CheckpointClient

        control = RunControl(self._agents, step.lookup)
        for run in (run for run in runs_of(step.recorded) if run.reused_from is None):
            try:
                if is_active(run):
                    control.stop(run)
                control.remove(run)
                if self._services.delete_checkpoints:
                    CheckpointClient(control, self._checkpoints, run).remove()
            except NodeUnreachable as error:
                nodes = sorted({rank.node for rank in run.ranks})
                node = nodes[0] if len(nodes) == 1 else f"NODE, one of {', '.join(nodes)}"
                fix = f"Try again when the node is reachable. If it is permanently gone: trainctl nodes forget {node}."
                raise NodeUnreachable(error.summary, f"{error.detail}\n{fix}".lstrip()) from error

    def undo(self, intent: Intent, lookup: Lookup, may_stop: MayStop) -> Mapping[str, Any]:
        """Stop the run that an interrupted attempt may have started.

        Return a run that executed anything, as it may have checkpoints; delete any other run.
        """
        cluster = lookup(Address(Kind.CLUSTER, str(intent.inputs.get("cluster"))))
        if cluster is None:
            return {}
        (attempted,) = find_attempted_runs(
            self._agents, lookup, [intent], partial(self._checkpoints.place, lookup)
        )
        if attempted.node_error is not None:
            raise attempted.node_error
        run = attempted.run
        if run is not None and run.status.live:
            if not may_stop(run.id):
                raise LiveRunConflict(
                    f"{run_name(run)} is live, started by an interrupted apply",
                    "Use --stop-running to stop it, or restore its configuration: apply then resumes it.",
                )
            run = RunControl(self._agents, lookup).stop(run)
        keep = run is not None and run.started_at is not None
        for node in nodes_of(cluster):
            agent = self._agents.of(cluster.provider, node)
            # Also prevents a later start on nodes where it was never started.
            request = StopRequest(root=node.root, key=intent.key, grace_seconds=STOP_GRACE_SECONDS)
            agent.call(STOP, request)
            if not keep:
                agent.call(
                    REMOVE,
                    RunCacheRequest(**cache_target(node, cluster.cluster_spec), key=intent.key),
                )
        return {"run": run.to_json()} if run is not None and keep else {}

    def read(self, recorded: RecordedResource, lookup: Lookup) -> Observation:
        """Observe the newest run; query nodes only if it is live."""
        return observe_jobs(RunControl(self._agents, lookup), [recorded])[recorded.address]


def deferral_reason(change: Change, agents: Agents, lookup: Lookup) -> str:
    """Return why a change is left to a later apply; '' if nothing blocks it."""
    from trainctl.resources.placement import taken_back_reason, unreachable_nodes_reason

    if change.address.kind is not Kind.JOB or change.action not in _NEW_RUN:
        return ""
    job = change.job_spec
    cluster = lookup(job.cluster_address)
    control = RunControl(agents, lookup)
    blocking = find_blocking_runs(control, lookup, change.depends_on, job)
    pins = job.checkpoint_pins or {}
    for load in job.runtime.loads if not blocking.blocked_reason else ():
        if load.metric and (load.best_of not in pins or blocking.follows):
            return f"waits: the best checkpoint of {load.job} is chosen when its runs and their evaluations have ended"
    if blocking.blocked_reason or cluster is None:
        return blocking.blocked_reason
    count = job.compute.node_count
    return unreachable_nodes_reason(agents, cluster, count) or taken_back_reason(
        agents, cluster, count
    )


def observe_jobs(
    control: RunControl, jobs: Sequence[RecordedResource]
) -> dict[Address, Observation]:
    """Observe the newest run of each job; query the nodes of live runs, each once."""
    newest = {job.address: runs[-1] for job in jobs if (runs := runs_of(job))}
    live = {address: run for address, run in newest.items() if run.status.live}
    statuses = control.statuses(list(live.values()))
    observations = {job.address: Observation(ResourceStatus.PRESENT) for job in jobs}
    for address, run in live.items():
        observed, problem = statuses[run.key]
        observations[address] = (
            Observation(ResourceStatus.UNREACHABLE, detail=problem.summary)
            if problem is not None
            else Observation(ResourceStatus.PRESENT, {"run": observed.to_json()})
        )
    return observations


def _outputs(*runs: RunRecord) -> dict[str, Any]:
    return {"runs": [run.to_json() for run in runs]}
