"""Provider of Slurm clusters; see DESIGN.md."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing

from trainctl.base.json import JsonObject
from trainctl.base.lazy_dataclass import replace
from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.errors import NodeError, NodeUnreachable
from trainctl.plugin_api.provider import (
    Capabilities,
    ClusterSettings,
    CommandOutput,
    Node,
    Provider,
    SettingsProblem,
    Transport,
)
from trainctl.plugin_api.scheduler import (
    BatchForecast,
    BatchJob,
    BatchMachine,
    BatchRequest,
    BatchState,
    BatchVariables,
    PartitionFacts,
    SchedulesJobs,
)
from trainctl.remote.responses import printable_tail
from trainctl_local import LocalTransport
from trainctl_slurm.queries import (
    MACHINES,
    PARTITIONS,
    parse_accounting,
    parse_forecast,
    parse_jobs,
    parse_machines,
    parse_partitions,
    parse_time_limits,
    sacct_arguments,
    sinfo_arguments,
    squeue_arguments,
    time_limits_arguments,
)
from trainctl_slurm.submission import (
    VARIABLES,
    gpu_kinds,
    hosts,
    job_name,
    order,
    partition_for,
    sbatch_arguments,
    schema,
    script,
    with_margin,
)
from trainctl_ssh import SshProvider

_SECONDS = 5
"""How long a command of Slurm may take; its own timeout is 18 s and more."""
_TIMED_OUT = 124  # of timeout(1)
_POLL_SECONDS = 5.0  # squeue loads the controller of all users
_SOON_SECONDS = 0.5
_SETTLING_SECONDS = 10.0
"""For how long after a submission or cancellation Slurm is asked more often."""


class _Listing(NamedTuple):
    """Jobs as Slurm listed them, until ``expires`` by the monotonic clock."""

    jobs: list[BatchJob]
    expires: float


class SlurmProvider(SshProvider):
    """Jobs run where Slurm places them; the only node is the login host with the shared directory."""

    name = "slurm"
    capabilities = Capabilities(schedules_jobs=True, replacement_settings=("shared_dir",))

    def schema(self) -> JsonObject:
        return schema()

    def check(self, cluster: ClusterSettings) -> Sequence[SettingsProblem]:
        return ()

    def plan(self, cluster: ClusterSettings) -> Sequence[Node]:
        return super().plan(hosts(cluster))

    def locate(self, cluster: ClusterSettings, node: Node) -> Node:
        return super().locate(cluster if "hosts" in cluster.settings else hosts(cluster), node)

    def transport(self, node: Node) -> Transport:
        return LocalTransport() if node.address == "local" else super().transport(node)

    def variables(self, cluster: ClusterSettings) -> BatchVariables:
        return replace(VARIABLES, node_cache=str(cluster.settings.get("node_cache") or ""))

    def __init__(self) -> None:
        super().__init__()
        self._listings: dict[str, _Listing] = {}
        self._changed_at = -_SETTLING_SECONDS
        self._time_limits: dict[tuple[str, str], list[float]] = {}

    def submit_job(self, cluster: ClusterSettings, node: Node, request: BatchRequest) -> str:
        request = self._with_margin(cluster, node, request)
        argv = sbatch_arguments(cluster, request)
        output = self._slurm(node, argv, script(request))
        if output.exit_code != 0:
            tail = printable_tail(output.stderr)
            raise NodeError(f"Slurm refused {request.label}", tail, code="job-refused")
        self._note_change(node)
        return output.stdout.decode().strip().partition(";")[0]

    def find_jobs(
        self, cluster: ClusterSettings, node: Node, keys: Collection[str]
    ) -> Mapping[str, BatchJob]:
        """The newest job of a key counts."""
        jobs = sorted(self._jobs(node), key=lambda job: (job.state.ended is False, int(job.id)))
        found = {job.key: job for job in jobs if job.key in keys}
        forgotten = {job_name(key): key for key in keys if key not in found}
        cancelled = {job.id: job.key for job in found.values() if job.state is BatchState.CANCELLED}
        accounted = self._accounted_jobs(node, "name", forgotten)
        return found | accounted | self._accounted_jobs(node, "jobs", cancelled)

    def cancel_job(self, cluster: ClusterSettings, node: Node, job: BatchJob) -> None:
        # of a running job only after its time to save: Slurm kills it within KillWait
        self._checked(node, ["scancel", job.id], f"cannot cancel job {job.id}")
        self._note_change(node)

    def signal_job(self, cluster: ClusterSettings, node: Node, job: BatchJob) -> None:
        """Without ``scancel --full``, only steps get the signal."""
        self._slurm(node, ["scancel", "--signal=TERM", job.id])
        self._note_change(node)

    def reorder_job(
        self, cluster: ClusterSettings, node: Node, job: BatchJob, request: BatchRequest
    ) -> None:
        """The name is the slot; a job that has just started is left as it is."""
        argv = ["scontrol", "update", f"jobid={job.id}", *order(request)]
        self._checked(node, argv, f"cannot change job {job.id}")
        self._note_change(node)

    def machines(self, cluster: ClusterSettings, node: Node) -> Sequence[BatchMachine]:
        return parse_machines(self._sinfo(node, sinfo_arguments(MACHINES)))

    def partitions(self, cluster: ClusterSettings, node: Node) -> Sequence[PartitionFacts]:
        names = {partition_for(cluster, kind) for kind in ("", *gpu_kinds(cluster))}
        known = parse_partitions(self._sinfo(node, sinfo_arguments(PARTITIONS)))
        named = [partition for partition in known if partition.name in names]
        return named or known

    def forecast(
        self, cluster: ClusterSettings, node: Node, request: BatchRequest
    ) -> BatchForecast:
        request = self._with_margin(cluster, node, request)
        argv = [*sbatch_arguments(cluster, request, ["TZ=UTC"]), "--test-only"]
        output = self._slurm(node, argv, "#!/bin/sh\n")
        text = (output.stderr or output.stdout).decode(errors="replace")
        return parse_forecast(text, refused=output.exit_code != 0)

    def _with_margin(
        self, cluster: ClusterSettings, node: Node, request: BatchRequest
    ) -> BatchRequest:
        if request.time_limit is None:
            return request
        partition = partition_for(cluster, request.gpu_kind)
        key = (node.id, partition)
        if key not in self._time_limits:
            output = self._sinfo(node, time_limits_arguments(partition))
            self._time_limits[key] = parse_time_limits(output, partition)
        return with_margin(request, self._time_limits[key])

    def _sinfo(self, node: Node, argv: Sequence[str]) -> str:
        return self._checked(node, argv, f"sinfo failed on {node.id}")

    def _checked(
        self,
        node: Node,
        argv: Sequence[str],
        problem: str,
        error: type[NodeError] = NodeError,
    ) -> str:
        """Return standard output; an error with this summary if the command fails."""
        output = self._slurm(node, argv)
        if output.exit_code != 0:
            raise error(problem, printable_tail(output.stderr))
        return output.stdout.decode(errors="replace")

    def _jobs(self, node: Node) -> list[BatchJob]:
        """List the user's jobs; at most every 5 s, less often if Slurm is slow, more often after a change."""
        known = self._listings.get(node.id)
        if known is not None and time.monotonic() < known.expires:
            return known.jobs
        began = time.monotonic()
        query = ["sh", "-c", 'TZ=UTC "$@" --user="$(id -un)"', "sh", *squeue_arguments()]
        output = self._checked(node, query, f"squeue failed on {node.id}", NodeUnreachable)
        jobs = [*parse_jobs(output)]
        now = time.monotonic()
        is_settled = began > self._changed_at + _SETTLING_SECONDS
        interval = max(_POLL_SECONDS if is_settled else _SOON_SECONDS, 20 * (now - began))
        self._listings[node.id] = _Listing(jobs, now + interval)
        return jobs

    def _note_change(self, node: Node) -> None:
        self._changed_at = time.monotonic()
        self._listings.pop(node.id, None)

    def _accounted_jobs(
        self, node: Node, option: str, keys: Mapping[str, str]
    ) -> dict[str, BatchJob]:
        """Return jobs as the accounting remembers them, with who cancelled them; none without accounting."""
        if not keys:
            return {}
        output = self._slurm(node, sacct_arguments(option, keys))
        jobs = parse_accounting(output.stdout.decode(errors="replace"), keys)
        for key, job in jobs.items():
            if job.reason:
                name = self._slurm(node, ["id", "-un", job.reason]).stdout.decode(errors="replace")
                jobs[key] = replace(job, reason=f"by {name.strip() or f'user {job.reason}'}")
        return jobs

    def _slurm(self, node: Node, argv: Sequence[str], text: str = "") -> CommandOutput:
        """Run a command of Slurm; NodeUnreachable if its controller is silent."""
        with closing(self.transport(node)) as transport:
            output = transport.run(["timeout", str(_SECONDS), *argv], stdin=[text.encode()])
        if output.exit_code == _TIMED_OUT or b"Unable to contact slurm" in output.stderr:
            raise NodeUnreachable(
                f"Slurm's controller doesn't respond on {node.id}",
                "Running jobs continue. Try again later.",
                code="scheduler-unreachable",
            )
        return output


_: tuple[type[Provider], type[SchedulesJobs]] = (SlurmProvider, SlurmProvider)
