"""Interface of providers whose jobs are placed and started by a batch system, such as Slurm."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import Protocol, runtime_checkable

from trainctl.base.lazy_dataclass import dataclass
from trainctl.plugin_api.provider import ClusterSettings, Node


class BatchState(StrEnum):
    """State of a job in the batch system."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIME_LIMIT = "time limit"
    NODE_FAILED = "node failed"
    OUT_OF_MEMORY = "out of memory"
    PREEMPTED = "preempted"

    @property
    def ended(self) -> bool:
        """Whether the job has ended."""
        return self not in (BatchState.PENDING, BatchState.RUNNING)


@dataclass(frozen=True, slots=True)
class BatchJob:
    """A job as the batch system reports it.

    ``key``: idempotency key of its run. ``reason``: in words, why it is pending or how it ended.
    ``restarts``: how many times it was requeued and started again. ``nodes``: names in the batch system. ``ended_at``:
    Unix time of its end if known.
    """

    id: str
    key: str
    state: BatchState
    reason: str = ""
    restarts: int = 0
    nodes: tuple[str, ...] = ()
    ended_at: float | None = None


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """What to submit: ``command`` is started once per node, each with ``stdin`` on its standard input.

    ``name`` and ``label`` (address and run) are for people. ``gpus`` are per node; None: all of a node. ``memory`` is
    in bytes per node, ``time_limit`` in seconds. ``after``: ids of jobs that must complete before. ``slot``: at most one
    job with the same slot runs at a time. ``time_margin``: seconds to add to the time limit, as far as the batch system
    allows. ``grace``: seconds between the signal and the end at the time limit.
    """

    key: str
    name: str
    label: str
    command: Sequence[str]
    stdin: str
    log: str
    nodes: int = 1
    gpus: int | None = 0
    gpu_kind: str = ""
    cpus: int | None = None
    memory: int | None = None
    time_limit: float | None = None
    time_margin: float = 0.0
    priority: int = 0
    after: Sequence[str] = ()
    slot: str | None = None
    grace: float = 60.0


@dataclass(frozen=True, slots=True)
class BatchVariables:
    """Environment variables of a started command.

    ``host``: name of its machine. ``rank``: its number among the nodes. ``restarts``: see BatchJob. ``gpus``: numbers of its GPUs, separated by commas.
    ``forwarded``: prefixes of the variables that jobs see. ``node_cache``: directory on each node's own disk for copies
    of weights, with variables of the job; empty: ranks read the shared directory.
    """

    rank: str
    restarts: str
    gpus: str
    host: str
    forwarded: tuple[str, ...]
    node_cache: str = ""


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """Machines that jobs may get: counts of nodes, of GPUs per node, and of GPUs that are free now.

    ``limits``: in words, such as ``at most 2 days``.
    """

    name: str
    nodes: int
    gpus_per_node: int
    gpus_free: int
    gpus_total: int
    limits: str = ""


@dataclass(frozen=True, slots=True)
class BatchMachine:
    """A machine of the batch system, with its ``state`` there and the ``reason`` if it gets no jobs.

    ``gpu_type`` is the batch system's name of it; empty: unknown.
    """

    name: str
    state: str
    usable: bool
    reason: str = ""
    gpus: int = 0
    gpus_used: int = 0
    gpu_type: str = ""


@dataclass(frozen=True, slots=True)
class BatchForecast:
    """Answer to a job that was not submitted: Unix time of its start if known, or why it would be refused.

    ``obstacle``: in words, why the start is unknown. ``cpus``: processors that it would get on all nodes; None: unknown.
    """

    start: float | None = None
    refusal: str = ""
    obstacle: str = ""
    cpus: int | None = None


@runtime_checkable
class SchedulesJobs(Protocol):
    """A provider whose only node is a host of the batch system, with a directory that all its machines share.

    Many threads call it at once. Methods raise NodeError if the batch system refuses, or NodeUnreachable: within 5 s also if
    it is silent, and then a change was made or not. Only ``find_jobs`` tells, so callers ask it before they repeat.
    """

    def variables(self, cluster: ClusterSettings) -> BatchVariables:
        """Return how a started command finds what it was granted."""
        ...

    def submit_job(self, cluster: ClusterSettings, node: Node, request: BatchRequest) -> str:
        """Submit a job and return its id. Not idempotent: callers ask ``find_jobs`` for the key before."""
        ...

    def find_jobs(
        self, cluster: ClusterSettings, node: Node, keys: Collection[str]
    ) -> Mapping[str, BatchJob]:
        """Return the jobs known to the batch system by key of their run, the newest of a key; answers may be some seconds old.

        A job submitted by this object before is never missing.
        """
        ...

    def cancel_job(self, cluster: ClusterSettings, node: Node, job: BatchJob) -> None:
        """Ask for the end of a job: SIGTERM, later SIGKILL; no error if it has ended."""
        ...

    def signal_job(self, cluster: ClusterSettings, node: Node, job: BatchJob) -> None:
        """Send SIGTERM to the commands of a running job, and nothing else: they decide when it ends. May be repeated."""
        ...

    def reorder_job(
        self, cluster: ClusterSettings, node: Node, job: BatchJob, request: BatchRequest
    ) -> None:
        """Give a pending job the slot and the priority of the request."""
        ...

    def partitions(self, cluster: ClusterSettings, node: Node) -> Sequence[PartitionFacts]:
        """Return the partitions that the cluster's jobs may use."""
        ...

    def machines(self, cluster: ClusterSettings, node: Node) -> Sequence[BatchMachine]:
        """Return the machines of the batch system."""
        ...

    def forecast(
        self, cluster: ClusterSettings, node: Node, request: BatchRequest
    ) -> BatchForecast:
        """Return when a job would start, without submitting it; a refusal is a value."""
        ...
