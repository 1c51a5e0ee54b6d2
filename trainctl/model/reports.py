"""Results that commands print: job statuses, checkpoints, nodes, caches and log lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainctl.errors import NodeUnreachable
from trainctl.model.address import Address
from trainctl.model.run import RunRecord


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One checkpoint of one rank.

    ``job`` is the job's address, ``run`` the run's id, ``url`` says where it lies; ``state`` is ``complete``, ``uploading`` or ``incomplete``;
    ``created_at`` in Unix seconds. What files say of it is known once it is complete: ``type`` is ``lora``, ``full``,
    ``whisper`` or ``other``; ``parameters`` counts those of its safetensors files, by type in ``dtypes``. ``skipped_links`` counts
    links in it that lead to no file of the job's checkpoint directory: what they lead to isn't kept.
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
    tensors: int = 0
    parameters: int = 0
    dtypes: Mapping[str, int] = field(default_factory=dict)
    job: str = ""

    @property
    def complete(self) -> bool:
        """Whether all of its files are stored."""
        return self.state == "complete"


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """One file of a checkpoint: ``path`` from the rank's directory on, ``modified`` in Unix seconds."""

    url: str
    path: str
    rank: int
    bytes: int
    modified: float


@dataclass(frozen=True, slots=True)
class PendingApply:
    """The apply that begins a run which is not recorded yet: its user, start (Unix seconds), and whether it is known to be interrupted."""

    actor: str
    since: float
    interrupted: bool


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job's run with its checkpoints. ``refresh_error`` says why its nodes could not be asked, if they couldn't.

    ``matrix`` has the values of a job of a matrix, as written and in the order declared.
    ``deadline`` is when a live run is ended, in Unix seconds; ``forecast`` how long its phases should take, in seconds: as long as
    those of ``like``, the newest run before it that completed. ``workdir`` has the working directories on the nodes, by rank.
    ``apply`` is the apply that begins it, as long as the run is not recorded.
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
class RetainedData:
    """A data directory that outlives a destroy. ``what`` is ``mirror`` or ``checkpoints``; ``place`` says where."""

    what: str
    place: str
    bytes: int


@dataclass(frozen=True, slots=True)
class UnreachableNode:
    """An unreachable node, the ranks whose answers are missing with it, and the reason."""

    node: str
    ranks: tuple[int, ...]
    why: str


def unreachable_nodes(
    run: RunRecord, unreachable: Mapping[int, NodeUnreachable]
) -> tuple[UnreachableNode, ...]:
    """The unreachable nodes of a run, each once, in rank order."""
    found: dict[str, list[int]] = {}
    why: dict[str, str] = {}
    for rank in run.ranks:
        if rank.rank in unreachable:
            found.setdefault(rank.node, []).append(rank.rank)
            why.setdefault(rank.node, unreachable[rank.rank].summary)
    return tuple(UnreachableNode(node, tuple(ranks), why[node]) for node, ranks in found.items())


@dataclass(frozen=True, slots=True)
class LogBatch:
    """Lines of one rank that were written at one time, in Unix seconds, each without its end.

    ``open`` says that the last of them goes on in the next piece, ``skipped_bytes`` how many bytes before this one are gone.
    """

    rank: int
    time: float
    lines: tuple[str, ...] = ()
    open: bool = False
    skipped_bytes: int = 0
    prepared_by: str = ""
    """The run that filled the training cache, in words, where it was not this one; it has the lines."""


@dataclass(frozen=True, slots=True)
class NodeReport:
    """One node. ``status`` is planned, present, missing, unreachable or forbidden; ``why`` says more where it isn't present.

    ``found`` is what it says of itself, as the node program's ``inspect`` gives it; None where it could not be asked.
    ``limit`` is how many bytes its cache of weights may hold.
    """

    cluster: str
    name: str
    address: str
    status: str
    why: str = ""
    found: Mapping[str, Any] | None = None
    limit: int | None = None
    runs: tuple[Mapping[str, Any], ...] = ()
    """Recorded live runs that are on it, ``{address, number, project, lineage}``; of those the node knows, its own."""
    lineage: str = ""
    """Of the state from which it was looked at: what has another is another project's."""

    @property
    def id(self) -> str:
        """``cluster/name``."""
        return f"{self.cluster}/{self.name}"


def format_run(run: Mapping[str, Any], lineage: str | None = None) -> str:
    """``job.sft run 3``; with ``of PROJECT`` for a run of another state than ``lineage``."""
    words = f"{run.get('address')} run {run.get('number')}"
    return words if lineage in (None, run.get("lineage")) else f"{words} of {run.get('project')}"


@dataclass(frozen=True, slots=True)
class CachedFile:
    """A file, directory or link in a cache: its path there, bytes (of a directory, of all below it), mtime, ``st_mode``."""

    path: str
    size: int
    modified: float
    mode: int


@dataclass(frozen=True, slots=True)
class CacheUsage:
    """What a cache holds on a node. ``at`` is when it was looked at, in Unix seconds; ``limit`` the declared size, in bytes."""

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
    """What was removed from a cache, or with ``dry_run`` would be; ``left`` counts files that could not be."""

    directory: str
    files: int
    bytes: int
    left: int
    dry_run: bool


@dataclass(frozen=True, slots=True)
class CachedListingReport:
    """A listing in a node's cache and what was done about it.

    ``outcome`` is evicted, leased or busy; of a verification whole, dropped or wrong. ``last_used`` is in Unix seconds.
    """

    node: str
    id: str
    source: str
    files: int
    bytes: int
    outcome: str
    last_used: float | None = None
    leased_by: tuple[str, ...] = ()
    corrupt_files: tuple[str, ...] = ()
    detail: str = ""


@dataclass(frozen=True, slots=True)
class CacheReport:
    """What became of the caches: ``freed`` in bytes, ``hashed`` those that were read again; ``unreachable`` nodes with why they could not be asked."""

    listings: tuple[CachedListingReport, ...]
    freed: int = 0
    hashed: int = 0
    unreachable: tuple[tuple[str, str], ...] = ()
