"""Results that commands print: jobs, checkpoints, nodes, caches, metrics, logs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainctl.base.lazy_dataclass import dataclass, field, fields
from trainctl.base.protocol.runs import KeyResult
from trainctl.errors import NodeUnreachable
from trainctl.model.address import Address
from trainctl.model.run import RunRecord

if TYPE_CHECKING:
    from trainctl.base.points import RunPoints
    from trainctl.base.protocol.weights import CachedListing


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One checkpoint of one rank.

    ``run`` is the id of the run, ``job`` the address of the job, ``state`` ``complete``, ``unfinished``, ``uploading`` or
    ``incomplete``, ``created_at`` in Unix seconds. ``unfinished``: the reason, if the trainer did not finish saving it.
    Known only once uploaded: ``type`` is ``lora``, ``full``, ``whisper`` or
    ``other``; ``parameters`` counts those in safetensors files, by type in ``dtypes``. ``skipped_links`` counts
    symlinks to files outside the checkpoint directory, which are not stored. ``value``: of the result by which they are
    compared.
    """

    name: str
    run: str
    rank: int
    step: int | None
    bytes: int
    files: int
    state: str
    created_at: float
    url: str
    type: str | None = None
    base_model: str | None = None
    lora_rank: int | None = None
    skipped_links: int = 0
    unfinished: str | None = None
    tensors: int = 0
    parameters: int = 0
    dtypes: Mapping[str, int] = field(default_factory=dict)
    job: str = ""
    value: float | None = None

    @property
    def complete(self) -> bool:
        """Whether all of its files are stored."""
        return self.state == "complete"


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """One file of a checkpoint.

    ``path`` is relative to the directory of the rank, ``modified`` in Unix seconds.
    """

    url: str
    path: str
    rank: int
    bytes: int
    modified: float


@dataclass(frozen=True, slots=True)
class PendingApply:
    """The apply that starts a run that is not recorded yet; ``since`` in Unix seconds."""

    actor: str
    since: float
    interrupted: bool


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A run of a job with its checkpoints.

    ``refresh_error``: why its nodes could not be queried. ``matrix``: values of a job of a matrix, in the declared
    order. ``deadline``: end of a live run's time limit in Unix seconds. ``forecast``: expected duration of each phase in
    seconds, taken from run ``like``, the newest completed run before it. ``workdir``: working directories by rank.
    ``apply``: set until the run is recorded.
    """

    address: Address
    run: RunRecord
    checkpoints: tuple[Checkpoint, ...] = ()
    refresh_error: str = ""
    matrix: tuple[tuple[str, str], ...] = ()
    deadline: float | None = None
    forecast: Mapping[str, float] = field(default_factory=dict)
    like: int | None = None
    workdir: Mapping[int, str] = field(default_factory=dict)
    apply: PendingApply | None = None


@dataclass(frozen=True, slots=True)
class RunResult:
    """A run with the ``seconds`` that it ran, the ``cost`` of its nodes, None: unknown, and the points read."""

    status: JobStatus
    seconds: float | None
    cost: float | None
    points: RunPoints = field(default_factory=dict)

    @property
    def reported(self) -> Mapping[str, KeyResult]:
        """Return what the run reported, by key."""
        found = self.status.run.reported.get("results")
        return found or {key: points.result for key, points in self.points.items()}


@dataclass(frozen=True, slots=True)
class RetainedData:
    """Data that a destroy retains; ``what`` is ``mirror`` or ``checkpoints``."""

    what: str
    place: str
    bytes: int


@dataclass(frozen=True, slots=True)
class UnreachableNode:
    """An unreachable node, the ranks it would report, and the reason."""

    node: str
    ranks: tuple[int, ...]
    why: str


def unreachable_nodes(
    run: RunRecord, unreachable: Mapping[int, NodeUnreachable]
) -> tuple[UnreachableNode, ...]:
    """Return the unreachable nodes of a run, each once, in rank order."""
    by_node: dict[str, list[int]] = {}
    for rank in run.ranks:
        if rank.rank in unreachable:
            by_node.setdefault(rank.node, []).append(rank.rank)
    return tuple(
        UnreachableNode(node, tuple(ranks), unreachable[ranks[0]].summary)
        for node, ranks in by_node.items()
    )


@dataclass(frozen=True, slots=True)
class LogBatch:
    """Lines that a rank wrote at one time (Unix seconds), with newlines between them; None for no line.

    ``open``: the last line continues in the next batch. ``skipped_bytes``: lost bytes before this batch.
    """

    rank: int
    time: float
    text: str | None = None
    open: bool = False
    skipped_bytes: int = 0
    prepared_by: str = ""
    """The other run, in words, that filled the training cache and has the lines; else empty."""
    run: str = ""
    """Id of the run."""


@dataclass(frozen=True, slots=True)
class RunForecast:
    """Forecast of a new run by the last completed runs of its job.

    ``gpus`` and ``hourly_cost`` (USD) are those of all ranks; ``gpus`` None: unknown. ``seconds``: durations of those
    runs, newest last. ``max_seconds``: the limit of the new run.
    """

    gpus: int | None
    seconds: tuple[float, ...] = ()
    max_seconds: float | None = None
    hourly_cost: float = 0.0

    def gpu_hours(self, seconds: float) -> float:
        """Return the GPU hours of a run of this duration."""
        return (self.gpus or 0) * seconds / 3600


@dataclass(frozen=True, slots=True)
class UnattendedCost:
    """What the machines of a cluster cost if no one returns after an apply, without its runs.

    ``end``: what ends the last, ``guest``, its own shutdown when idle, or ``provider``; empty if only a user does.
    ``seconds``: until all have ended by what is first; None if only a user ends one. ``hourly`` and ``cost`` (USD) are None
    if a price is unknown, ``cost`` also without ``seconds``.
    """

    cluster: Address
    machines: int
    end: str
    seconds: float | None
    hourly: float | None
    cost: float | None


@dataclass(frozen=True, slots=True)
class NodeUsage:
    """What the state knows of a node; None: unknown. Times in Unix seconds.

    ``quarantine`` is the reason, ``since`` and ``by`` are unknown until it is recorded. ``cost`` is that since
    ``created_at``. ``idle_since``: end of its last run, unless one is live.
    """

    quarantine: str | None = None
    since: float | None = None
    by: str | None = None
    created_at: float | None = None
    price_per_hour: float | None = None
    cost: float | None = None
    idle_since: float | None = None


@dataclass(frozen=True, slots=True)
class NodeReport:
    """Status of one node.

    ``status`` is planned, present, missing, unreachable or forbidden; ``why`` explains any but present. ``found``
    is the response of the node program's ``inspect``, None if unavailable. ``limit``: size limit of its weight cache
    in bytes.
    """

    cluster: str
    name: str
    address: str
    status: str
    why: str = ""
    found: Mapping[str, Any] | None = None
    limit: int | None = None
    runs: tuple[Mapping[str, Any], ...] = ()
    """Recorded live runs on it, ``{address, number, project, lineage}``; the node's own data where it knows the run."""
    lineage: str = ""
    """Lineage of the inspecting state; runs with another lineage belong to other projects."""
    usage: NodeUsage = NodeUsage()

    @property
    def id(self) -> str:
        """``cluster/name``."""
        return f"{self.cluster}/{self.name}"


def format_run(run: Mapping[str, Any], lineage: str | None = None) -> str:
    """Format as ``job.sft run 3``, with ``of PROJECT`` unless of this lineage."""
    words = f"{run.get('address')} run {run.get('number')}"
    return words if lineage in (None, run.get("lineage")) else f"{words} of {run.get('project')}"


@dataclass(frozen=True, slots=True)
class CachedFile:
    """A file, directory or symlink in a cache; ``size`` of a directory is its total.

    ``modified`` is in Unix seconds, ``mode`` is ``st_mode``.
    """

    path: str
    size: int
    modified: float
    mode: int


@dataclass(frozen=True, slots=True)
class CacheFacts:
    """Usage of one directory of a training cache at a time ``at`` (Unix seconds).

    ``is_complete`` is False if it has more files than counted. ``others``: other caches that use it, as
    ``LINEAGE+NAME``; ``ours``: created by trainctl, and deleted with the last of them.
    """

    directory: str
    bytes: int
    files: int
    at: float
    is_complete: bool = True
    others: tuple[str, ...] = ()
    ours: bool = True


@dataclass(frozen=True, slots=True)
class CacheUsage:
    """Content of a cache on a node at a time ``at`` (Unix seconds).

    ``limit`` is the declared size in bytes.
    """

    address: str
    node: str
    directory: str
    at: float
    files: int
    bytes: int
    entries: tuple[CachedFile, ...]
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class CacheClearResult:
    """Files removed from a cache, or to be removed with ``dry_run``.

    ``left`` counts files that could not be removed.
    """

    directory: str
    files: int
    bytes: int
    left: int
    dry_run: bool


@dataclass(frozen=True, slots=True)
class CacheReport:
    """Result of an eviction or verification: listings with the ids of their nodes; ``freed`` and ``hashed`` in bytes.

    ``unreachable``: names of nodes with the reason.
    """

    listings: tuple[tuple[str, CachedListing], ...]
    freed: int = 0
    hashed: int = 0
    unreachable: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class VolumeMetrics:
    """Usage of a directory and its file system; ``utilization`` from 0 to 1.

    None means unknown.
    """

    usage_bytes: int | None = None
    utilization: float | None = None
    free_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class GpuMetrics:
    """Usage of one GPU; ``utilization`` from 0 to 1. None: not reported by the driver."""

    name: str
    utilization: float | None
    memory_usage_bytes: int | None
    memory_total_bytes: int | None


@dataclass(frozen=True, slots=True)
class HostMetrics:
    """Usage of a host; ``cpu_usage`` in cores, network counters since boot."""

    cpu_count: int = 1
    cpu_usage: float | None = None
    memory_total_bytes: int = 0
    memory_available_bytes: int = 0
    network_received_bytes: int = 0
    network_sent_bytes: int = 0

    @property
    def memory_utilization(self) -> float | None:
        """Used fraction of memory, from 0 to 1."""
        if not self.memory_total_bytes:
            return None
        return 1 - self.memory_available_bytes / self.memory_total_bytes


@dataclass(frozen=True, slots=True)
class RankSample:
    """One sample of one rank at ``time`` (Unix seconds).

    ``cpu_usage`` is in cores since the previous sample; GPUs by number.
    """

    rank: int
    node: str
    time: float
    cpu_usage: float | None
    cpu_memory_usage_bytes: int
    processes: int
    host: HostMetrics
    gpus: Mapping[str, GpuMetrics] = field(default_factory=dict)
    volumes: Mapping[str, VolumeMetrics] = field(default_factory=dict)
    problem: str | None = None
    progress: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, rank: int, node: str, row: Mapping[str, Any]) -> RankSample:
        """Parse a sample from a node, ignoring unknown fields."""
        names = row.get("gpu_names", {})
        host = {each.name: row["host"].get(each.name) for each in fields(HostMetrics)}
        return cls(
            rank,
            node,
            float(row["time"]),
            row.get("cpu_usage"),
            int(row["cpu_memory_usage_bytes"]),
            int(row["processes"]),
            HostMetrics(**host),
            {
                number: GpuMetrics(
                    str(names.get(number, "")),
                    busy,
                    row["gpu_memory_usage_bytes"].get(number),
                    row["gpu_memory_total_bytes"].get(number),
                )
                for number, busy in sorted(row.get("gpu_utilization", {}).items())
            },
            {
                name: VolumeMetrics(*(row[name].get(part.name) for part in fields(VolumeMetrics)))
                for name in VOLUMES
                if name in row
            },
            row.get("problem"),
            row.get("progress"),
        )


VOLUMES = ("ephemeral_storage", "checkpoints", "cache")
"""Directories of a run: working directory and scratch, checkpoints, training cache."""
