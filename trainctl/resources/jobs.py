"""Jobs: each creation or replacement is one run, delivered to its nodes and started there exactly once."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from trainctl.apply.step import Deferred, Lookup, MayStop, Step, StepFailed, WouldStop
from trainctl.base.protocol.runs import REMOVE, STOP, RunInCache, StopRequest
from trainctl.errors import (
    Interrupted,
    NodeError,
    NodeUnreachable,
    TrainctlError,
)
from trainctl.jobs.checkpoints import CheckpointAccess
from trainctl.jobs.secrets import Secrets
from trainctl.ledger.state import Intent, Recorded
from trainctl.model.action import Action
from trainctl.model.address import Address, Kind
from trainctl.model.run import RunRecord, RunStatus, run_id
from trainctl.plan.placement import Planned
from trainctl.plan.values import Change, Observation
from trainctl.resources.agents import Agents, Home, nodes_of
from trainctl.resources.beginnings import begin, begun
from trainctl.resources.checkpoints import Checkpoints, checkpoint_store_error
from trainctl.resources.clusters import at
from trainctl.resources.following import Replaced, ahead, goes_on, possible_nodes
from trainctl.resources.run_control import STOP_GRACE_SECONDS, RunControl, runs_of
from trainctl.resources.seating import missing_ranks
from trainctl.resources.starting import order
from trainctl.spi.provider import Presence
from trainctl.weights.mirrors import Mirror

if TYPE_CHECKING:
    from trainctl.resources.deployment import Deployment

_NEW_RUN = frozenset({Action.CREATE, Action.REPLACE})


class JobHandler:
    """Runs jobs."""

    def __init__(
        self,
        agents: Agents,
        mirror: Mirror,
        secrets: Secrets,
        home: Home,
        checkpoints: CheckpointAccess,
        planned: Mapping[Address, Planned],
        *,
        delete_checkpoints: bool = False,
    ) -> None:
        self._agents = agents
        self._mirror = mirror
        self._home = home
        self._checkpoints = checkpoints
        self._planned = planned
        self._delete_checkpoints = delete_checkpoints
        self._secrets = secrets

    @cached_property
    def _deployment(self) -> Deployment:
        from trainctl.resources.deployment import Deployment  # with all that moves bytes

        return Deployment(
            self._agents,
            self._mirror,
            self._secrets,
            self._home,
            self._checkpoints,
            self._planned,
        )

    def carry_out(self, step: Step) -> Mapping[str, Any]:
        """One new run; for an update the record alone. A run that could not be deployed is recorded as such, unless the one before it goes on."""
        earlier = tuple(run for run in runs_of(step.recorded) if run.key != step.key)
        if step.action is Action.UPDATE:
            if earlier and earlier[-1].status.live:
                control = RunControl(self._agents, step.lookup)
                control.reorder(earlier[-1], order(step.address, step.job_spec, self._home.lineage))
            return _outputs(*earlier)
        control = RunControl(self._agents, step.lookup)
        replaced = Replaced(step, control, earlier)
        run = RunRecord(run_id(step.key), len(earlier) + 1, step.key, created_at=time.time())
        store = self._checkpoints.place(step.address, step.job_spec.project, run)
        run = replace(run, store=store)
        try:
            beginning = begin(control, self._mirror.store, step, earlier)
            run = self._deployment.deploy(beginning, beginning.mark(run), replaced)
        except (NodeUnreachable, Interrupted):
            raise  # nobody knows whether it was started: the intent stays open, and the next apply finds out
        except Deferred:
            raise  # nothing was started: no run
        except TrainctlError as error:
            if replaced.survived(error):
                raise
            failed = replace(
                run, status=RunStatus.DEPLOY_FAILED, error=error.summary, ended_at=time.time()
            )
            raise StepFailed(error, _outputs(*replaced.earlier, failed)) from error
        if run.status is RunStatus.DEPLOY_FAILED or _lost_at_once(run):
            raise StepFailed(_why_not_started(run), _outputs(*replaced.earlier, run))
        return _outputs(*replaced.earlier, run)

    def delete(self, step: Step) -> None:
        """Stop what runs and remove every run's directory. Checkpoints stay, unless the user said otherwise."""
        for run in runs_of(step.recorded):
            try:
                self._delete(step, run)
            except NodeUnreachable as error:
                nodes = sorted({rank.node for rank in run.ranks})
                which = nodes[0] if len(nodes) == 1 else f"NODE, which is one of {', '.join(nodes)}"
                fix = f"Try again when it can be reached, or drop what never comes back: trainctl nodes forget {which}."
                raise NodeUnreachable(error.summary, f"{error.detail}\n{fix}".lstrip()) from error

    def _delete(self, step: Step, run: RunRecord) -> None:
        control = RunControl(self._agents, step.lookup)
        if goes_on(run):
            control.stop(run)
        control.remove(run)
        if self._delete_checkpoints:
            project = step.job_spec.project
            Checkpoints(control, self._checkpoints, step.address, project, run).remove()

    def abandon(self, intent: Intent, lookup: Lookup, may_stop: MayStop) -> Mapping[str, Any]:
        """Stop the run that an interrupted attempt may have started. One that did something is to be recorded, as it may have
        saved checkpoints; of any other nothing stays."""
        cluster = lookup(Address(Kind.CLUSTER, str(intent.inputs.get("cluster"))))
        if cluster is None:
            return {}
        (found,) = begun(self._agents, lookup, [intent], self._checkpoints.place)
        if found.silent is not None:
            raise found.silent
        run = found.run
        if run is not None and run.status.live:
            if not may_stop(run.id):
                raise _would_stop(run)
            run = RunControl(self._agents, lookup).stop(run)
        keep = run is not None and run.started_at is not None
        for node in nodes_of(cluster):
            agent = self._agents.of(cluster.provider, node)
            # Where it was never started it can't be any more.
            request = StopRequest(root=node.root, key=intent.key, grace_seconds=STOP_GRACE_SECONDS)
            agent.call(STOP, request)
            if not keep:
                agent.call(REMOVE, RunInCache(**at(node, cluster.cluster_spec), key=intent.key))
        return {"run": run.to_json()} if run is not None and keep else {}

    def read(self, recorded: Recorded, lookup: Lookup) -> Observation:
        """The newest run as its nodes tell it; nobody is asked about a run that has ended."""
        return observed(RunControl(self._agents, lookup), [recorded])[recorded.address]


def why_not_yet(change: Change, agents: Agents, lookup: Lookup) -> str:
    """Why a change has to wait for other runs, of which only a later apply can know the end; empty if it hasn't to."""
    if change.address.kind is not Kind.JOB or change.action not in _NEW_RUN:
        return ""
    job = change.job_spec
    cluster = lookup(job.cluster_address)
    nodes = possible_nodes(cluster, job)
    why = ahead(RunControl(agents, lookup), lookup, change.depends_on, nodes).why_not
    return why or (missing_ranks(agents, cluster, job.compute.node_count) if cluster else "")


def observed(control: RunControl, jobs: Sequence[Recorded]) -> dict[Address, Observation]:
    """The newest run of each job as its nodes tell it, each node asked once; nobody is asked about one that has ended."""
    newest = {job.address: runs[-1] for job in jobs if (runs := runs_of(job))}
    live = {address: run for address, run in newest.items() if run.status.live}
    now = control.statuses(list(live.values()))
    found = {job.address: Observation(Presence.PRESENT) for job in jobs}
    for address, run in live.items():
        seen, problem = now[run.key]
        if problem is not None:
            found[address] = Observation(Presence.UNREACHABLE, detail=problem.summary)
        else:
            found[address] = Observation(Presence.PRESENT, {"run": seen.to_json()})
    return found


def _lost_at_once(run: RunRecord) -> bool:
    """Whether nobody is left to begin it."""
    return run.status is RunStatus.LOST and run.started_at is None


def _would_stop(run: RunRecord) -> WouldStop:
    return WouldStop(
        f"run {run.number} ({run.id}), which an interrupted apply began, is live",
        "Pass --stop-running to stop it, or put back what it was begun with: it is carried on then.",
    )


def _outputs(*runs: RunRecord) -> dict[str, Any]:
    return {"runs": [run.to_json() for run in runs]}


def _why_not_started(run: RunRecord) -> TrainctlError:
    lost = (
        f"run {run.number} ({run.id}) was lost before it began, with its supervisor or its machine"
    )
    said = run.error or (lost if _lost_at_once(run) else "the run could not be started")
    if run.cause == "checkpoints":
        return checkpoint_store_error(said)
    return NodeError(said, code="no-free-port") if run.cause == "ports" else NodeError(said)
