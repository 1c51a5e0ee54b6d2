"""Runs of clusters with a batch system: submit, observe and stop them."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence

from trainctl.base.lazy_dataclass import asdict, dataclass, replace
from trainctl.base.parallel import each
from trainctl.base.protocol.runs import (
    CREATE_BATCH_RUN,
    END_BATCH_RUN,
    EXPECT_STOP,
    RUN_RANK,
    STATUS,
    CreateBatchRunRequest,
    EndBatchRunRequest,
    ExpectStopRequest,
    RunReport,
    StartRequest,
    StatusRequest,
    rank_root,
)
from trainctl.errors import NodeError
from trainctl.ledger.state import RecordedResource
from trainctl.model.address import Address
from trainctl.model.run import RunRecord, RunStatus
from trainctl.model.specs.job_spec import JobSpec
from trainctl.plugin_api.provider import ClusterSettings, Node
from trainctl.plugin_api.scheduler import BatchJob, BatchRequest, BatchState, SchedulesJobs
from trainctl.remote.agent import NodeAgent
from trainctl.remote.responses import OnEvent
from trainctl.resources.agents import Agents, nodes_of

_QUERY_SECONDS = 60.0
_POLL_SECONDS = 0.5
_SAVE_SECONDS = 120.0
"""For the last checkpoint of a run that is stopped, after its processes have ended."""
_END_MARGIN_SECONDS = 120.0
_AT_ONCE = 8
CHECKPOINT_GRACE_SECONDS = 60.0
"""Time between SIGTERM and the end of a job at its time limit."""
_TIME_MARGIN_SECONDS = 600.0
"""Added to ``max_duration``, which supervisors keep: preparation, an early signal (Slurm: 30 s), the last checkpoint."""


def rank_node(node: Node, rank: int) -> Node:
    """Return the node with the root directory of a rank of a batch run."""
    return replace(node, root=rank_root(node.root, rank))


@dataclass(frozen=True, slots=True)
class BatchCluster:
    """A cluster's batch system, and the node where it is reached."""

    scheduler: SchedulesJobs
    settings: ClusterSettings
    node: Node
    agent: NodeAgent

    @classmethod
    def of(cls, agents: Agents, cluster: RecordedResource) -> BatchCluster | None:
        """Return the batch system of a recorded cluster; None if trainctl places its runs."""
        scheduler = agents.scheduler(cluster.provider)
        nodes = nodes_of(cluster)
        if scheduler is None or not nodes:
            return None
        settings = ClusterSettings(cluster.address.name, cluster.cluster_spec.settings)
        agent = agents.of(cluster.provider, nodes[0], ephemeral=True)
        return cls(scheduler, settings, nodes[0], agent)

    def job(self, key: str) -> BatchJob | None:
        """Return the job of a run."""
        return self.scheduler.find_jobs(self.settings, self.node, [key]).get(key)

    def reports(
        self, ranks: Mapping[str, int]
    ) -> Mapping[str, Sequence[RunReport | None]] | NodeError:
        """Return the reports of each run's ranks by key; ``ranks`` are their counts."""

        def query(rank: int) -> Mapping[str, RunReport | None]:
            keys = sorted(key for key, count in ranks.items() if count > rank)
            request = StatusRequest(root=rank_root(self.node.root, rank), keys=keys)
            return self.agent.call(STATUS, request, timeout=_QUERY_SECONDS)["runs"]

        try:
            jobs = self.scheduler.find_jobs(self.settings, self.node, [*ranks])
            replies = each(query, range(max(ranks.values(), default=0)), _AT_ONCE)
        except NodeError as error:
            return error
        return {
            key: [with_job(replies[rank].get(key), jobs.get(key)) for rank in range(count)]
            for key, count in ranks.items()
        }

    def stop(self, run: RunRecord, grace_seconds: float, on_event: OnEvent | None) -> None:
        """Stop the run's commands, or cancel its job if they haven't started, and wait for its end.

        A batch system kills a cancelled job after a time of its own, whatever the grace time is.
        """
        ranks, root = len(run.ranks), self.node.root
        expected = ExpectStopRequest(
            root=root, key=run.key, ranks=ranks, grace_seconds=grace_seconds
        )
        self.agent.call(EXPECT_STOP, expected)
        job = self.job(run.key)
        seconds_to_save = 0.0
        if (
            job is not None
            and job.state is BatchState.RUNNING
            and self._has_started(run.key, ranks)
        ):
            self.scheduler.signal_job(self.settings, self.node, job)
            seconds_to_save = grace_seconds + _SAVE_SECONDS
        is_cancelled = False
        start = time.monotonic()
        while job is not None and not job.state.ended:
            seconds = time.monotonic() - start
            if seconds >= seconds_to_save and not is_cancelled:
                self.scheduler.cancel_job(self.settings, self.node, job)
                is_cancelled = True
            if seconds > seconds_to_save + grace_seconds + _END_MARGIN_SECONDS:
                raise NodeError(f"job {job.id} of run {run.id} did not end", "Try again.")
            if on_event is not None:
                on_event({"seconds": round(seconds), "grace": grace_seconds, "processes": 1})
            time.sleep(_POLL_SECONDS)
            job = self.job(run.key)
        self.agent.call(
            END_BATCH_RUN,
            EndBatchRunRequest(
                root=root, key=run.key, ranks=ranks, status=RunStatus.STOPPED.value, error=None
            ),
        )

    def _has_started(self, key: str, ranks: int) -> bool:
        reports = self.reports({key: ranks})
        if isinstance(reports, NodeError):
            raise reports
        return any(report and report["status"] == RunStatus.RUNNING for report in reports[key])

    def submit(
        self,
        address: Address,
        job: JobSpec,
        run: RunRecord,
        requests: Sequence[StartRequest],
        *,
        after: Sequence[str],
        slot: str | None,
    ) -> None:
        """Submit the run's job, unless an earlier attempt has: then it is found by its key."""
        if self.job(run.key) is not None:
            return
        create = CreateBatchRunRequest(
            root=self.node.root,
            key=run.key,
            runs=[request["run"] for request in requests],
            secrets=requests[0]["secrets"],
        )
        self.agent.call(CREATE_BATCH_RUN, create)
        jobs = self.scheduler.find_jobs(self.settings, self.node, after) if after else {}
        waits_for = [jobs[key].id for key in after if key in jobs]
        rank_request = {
            "root": self.node.root,
            "data": self.node.data,
            "key": run.key,
            **asdict(self.scheduler.variables(self.settings)),  # fields of RunRankRequest
        }
        request = replace(
            batch_request(address, job, run),
            command=self.agent.command(RUN_RANK.name),
            stdin=json.dumps(rank_request),
            log=f"{requests[0]['root']}/runs/{run.key}/batch.log",
            after=waits_for,
            slot=slot,
        )
        self.scheduler.submit_job(self.settings, self.node, request)

    def reorder(self, address: Address, job: JobSpec, run: RunRecord, slot: str | None) -> None:
        """Change slot and priority of the run's job if it is pending."""
        found = self.job(run.key)
        if found is not None and found.state is BatchState.PENDING:
            request = replace(batch_request(address, job, run), slot=slot)
            self.scheduler.reorder_job(self.settings, self.node, found, request)


def batch_request(address: Address, job: JobSpec, run: RunRecord) -> BatchRequest:
    """Return the resources that a run asks the batch system for."""
    compute = job.compute
    return BatchRequest(
        key=run.key,
        name=str(address).removeprefix("job."),
        label=f"{address} run {run.number} ({run.id})",
        command=(),
        stdin="",
        log="",
        nodes=compute.node_count,
        gpus=compute.gpus,
        gpu_kind=compute.gpu_kind,
        cpus=compute.cpu_count,
        memory=compute.memory_bytes,
        time_limit=job.max_duration_seconds,
        time_margin=_TIME_MARGIN_SECONDS,
        priority=job.priority,
        grace=min(CHECKPOINT_GRACE_SECONDS, (job.max_duration_seconds or math.inf) / 2),
    )


_ENDINGS: Mapping[BatchState, tuple[RunStatus, str]] = {
    BatchState.COMPLETED: (RunStatus.LOST, "its job ended without a result"),
    BatchState.FAILED: (RunStatus.LOST, "its job failed"),
    BatchState.CANCELLED: (RunStatus.STOPPED, "its job was cancelled"),
    BatchState.TIME_LIMIT: (RunStatus.FAILED, "its job reached the time limit"),
    BatchState.NODE_FAILED: (RunStatus.LOST, "a node of its job failed"),
    BatchState.OUT_OF_MEMORY: (RunStatus.FAILED, "its job ran out of memory"),
    BatchState.PREEMPTED: (RunStatus.LOST, "its job was preempted"),
}
"""Status and error of a run whose job has ended before the run reported a result."""


def with_job(report: RunReport | None, job: BatchJob | None) -> RunReport | None:
    """Combine what a rank reports with what the batch system reports of its job."""
    if report is None:
        return None
    status = RunStatus(report["status"])
    if job is None:  # forgotten by the batch system, or never submitted
        return report if not status.live else _changed(report, RunStatus.LOST, None)
    if job.state is BatchState.PENDING:
        reason = job.reason or "waits to be scheduled"
        pending = _changed(report, RunStatus.PENDING, None)
        return {**pending, "waiting": reason, "supervised": True, "host": ""}
    if job.state is BatchState.RUNNING:
        is_current = report.get("restarts", 0) >= job.restarts
        if is_current and status is not RunStatus.CREATED:
            return report
        deploying = _changed(report, RunStatus.DEPLOYING, None)
        return {**deploying, "waiting": f"starts on {', '.join(job.nodes)}", "supervised": True}
    ended, error = _ENDINGS[job.state]
    if status.live:
        text = f"{error}{f' {job.reason}' if job.reason else ''}"
        return {**_changed(report, ended, text), "ended_at": report.get("ended_at") or job.ended_at}
    return report


def _changed(report: RunReport, status: RunStatus, error: str | None) -> RunReport:
    live = status.live
    return {
        **report,
        "status": status.value,
        "error": error,
        "exit_code": None if live else report.get("exit_code"),
        "ended_at": None if live else report.get("ended_at"),
        "supervised": live,
    }
