"""A plan and what it is made from, as plain values. Nothing here reads, writes or knows the time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from trainctl.base.listing import ResolvedSource
from trainctl.desired.values import DesiredState
from trainctl.errors import PermissionDenied, TrainctlError
from trainctl.ledger.state import State
from trainctl.model.action import Action, ActionReason
from trainctl.model.address import Address
from trainctl.model.delivery import SERVES_ALL, ServingCapability
from trainctl.model.diagnostics import Diagnostic, Severity
from trainctl.model.run import RunRecord
from trainctl.model.specs.job_spec import JobSpec
from trainctl.model.specs.resource import LifecycleSpec
from trainctl.model.trust import PlanPolicy
from trainctl.plugin_api.provider import ResourceStatus


@dataclass(frozen=True, slots=True)
class Observation:
    """What a look at a recorded resource found. ``outputs`` are those outputs that can change by themselves.

    Of a job: ``run``, its newest run's record as the node tells it, or ``runs``, several of them.
    Of a cluster: ``unobserved``, the ids of nodes of which nobody could tell, and ``recovered_nodes``, the names of those that were away when it
    was made and can be reached now.
    Of weights: ``other_mirror``, the mirror that they are in, where the manifest wants another.
    """

    status: ResourceStatus
    outputs: Mapping[str, Any] = field(default_factory=dict)
    detail: str = ""
    recovered_nodes: tuple[str, ...] = ()
    unobserved: tuple[str, ...] = ()
    other_mirror: str = ""


@dataclass(frozen=True, slots=True)
class CodeTree:
    """The code a job would ship: its digest, how much it is, and what was left out by the built-in list."""

    digest: str
    files: int
    bytes: int
    excluded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WeightsFacts:
    """A weights resource after resolving. ``mirrored`` in bytes, None where the mirror was not asked; ``listing`` where it is known already.

    ``resolved`` is None when upstream was not asked; ``locked_as`` is then what the lock file says, if it says anything:
    ``revision``, ``pin``, ``files``, ``bytes``. ``locked`` says that the lock file names it, or will before it is relied on.
    """

    resolved: ResolvedSource | None
    mirrored: int | None = 0
    relayed_bytes: int = 0
    """What is missing in a mirror on a host or in a bucket, and can only come through the operator's machine, in bytes."""
    listing: str | None = None
    locked: bool = False
    locked_as: Mapping[str, Any] | None = None
    unmatched_patterns: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TierFacts:
    """Where one weights' bytes are, seen from one node; the sum is the listing's size."""

    node: int = 0
    cluster: int = 0
    mirror: int = 0
    upstream: int = 0

    @property
    def total(self) -> int:
        """All bytes of the listing."""
        return self.node + self.cluster + self.mirror + self.upstream

    @property
    def missing(self) -> int:
        """Those that are not on the node."""
        return self.total - self.node


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One GPU as its host reports it; ``kinds`` are those asked-for accelerators that it is.

    ``free``: no job holds it and nobody computes on it, as far as anyone asked.
    """

    name: str
    kinds: tuple[str, ...] = ()
    free: bool = True

    def matches(self, kind: str) -> bool:
        """Whether it is an accelerator that was asked for; any is, where none is named."""
        return not kind or kind in self.kinds


@dataclass(frozen=True, slots=True)
class ImageSelection:
    """An image as the manifest writes it, and the engine that is to run it; None for whichever works."""

    image: str
    engine: str | None


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """What a node says of an image: which engine would run it (None: none works, and ``why``), and whether it has it."""

    engine: str | None
    present: bool
    why: str = ""


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """What of a node is free now: the GPUs that jobs may use there, and how many runs go on."""

    gpus: tuple[GpuFacts, ...] = ()
    runs: int = 0


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a node says of itself before anything moves: ``mount`` is namespace, container or link.

    ``cpus`` and bytes of ``memory`` are the machine's; 0: not known.
    ``room`` is what weights may take beside those that live runs have, in bytes, and ``most`` what they may when none is
    live (None: not known); ``limit`` what its cache may hold, if there is a limit; ``claims`` what of each weights no live
    run has there already.
    ``rates`` are recorded, in bytes per second: ``upstream`` into the mirror, and by the last hop onto the node.
    ``max_rate``: how many bytes a second each node of its cluster takes from the mirror, if there is a limit.
    ``near``: whether it sees the mirror's directory; ``shared_cache``: whether its cluster has a cache in a directory.
    """

    id: str
    mount: str
    disk_free: int
    tiers: Mapping[Address, TierFacts] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)
    cpus: int = 0
    memory: int = 0
    detail: str = ""
    unusable: str = ""
    """Why its directories can't be made; empty where they can, or are there."""
    missing_requirements: Mapping[Address, tuple[str, ...]] = field(default_factory=dict)
    """Of each job, what it needs of this host and isn't there, in sentences."""
    logout: str = ""
    """Why a run would not survive the logout of its user, and what to do about it; empty where it does."""
    gpus: tuple[GpuFacts, ...] = ()
    gpus_problem: str = ""
    """Why nobody can say which GPUs it has; empty where its tools do, or where there is no tool."""
    usable_gpus: int = 0
    """How many of them jobs may claim; where none is reported, how many are declared."""
    images: Mapping[ImageSelection, ImageFacts] = field(default_factory=dict)
    room: int | None = None
    most: int | None = None
    limit: int | None = None
    claims: Mapping[Address, int] = field(default_factory=dict)
    near: bool = True
    mirror_on: str = ""
    """The host that keeps the mirror, by its id, or the bucket's URL; empty where that is a directory of the operator's machine."""
    unserved: str = ""
    """Why that host can't hand this node weights; empty where it can."""
    mirror_tls: bool = False
    """Whether that host hands them out over TLS, as it has no private address."""
    serving: ServingCapability = SERVES_ALL
    """How this node hands weights to its peers."""
    shared_cache: bool = False
    max_rate: int | None = None
    free_resources: NodeCapacity | None = None
    """Asked only where there are nodes to choose from."""


@dataclass(frozen=True, slots=True)
class CacheFacts:
    """One directory of a training cache, by the newest walk through it (``at``, Unix seconds).

    ``whole`` is False where there is more than was counted; ``others`` who else refers to it, as ``LINEAGE+NAME`` of a
    cache; ``ours`` says that it would go with the last of them.
    """

    directory: str
    bytes: int
    files: int
    at: float
    whole: bool = True
    others: tuple[str, ...] = ()
    ours: bool = True


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What the user asked of the planner."""

    destroy: bool = False
    refresh_only: bool = False
    targets: tuple[Address, ...] = ()
    excludes: tuple[Address, ...] = ()
    replace: tuple[Address, ...] = ()
    upgrade: bool = False
    run: tuple[Address, ...] = ()
    """Jobs that get one new run whatever has changed: ``trainctl run``."""
    delete_checkpoints: bool = False
    """Whether the runs of jobs that go take their checkpoints along."""


@dataclass(frozen=True, slots=True)
class RerunRequest:
    """How a run that the user asked for begins from an earlier one.

    ``attributes`` are recorded with the job's; ``as_recorded`` says that nothing of today's manifest counts.
    """

    attributes: Mapping[str, Any]
    note: str
    as_recorded: bool = False


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """All that planning looks at."""

    desired: DesiredState
    state: State
    observed: Mapping[Address, Observation] = field(default_factory=dict)
    unrecorded_runs: Mapping[Address, tuple[RunRecord, ...]] = field(default_factory=dict)
    """Of each job, the runs that attempts have begun and nobody has recorded, as their nodes tell them."""
    code: Mapping[Address, CodeTree] = field(default_factory=dict)
    weights: Mapping[Address, WeightsFacts] = field(default_factory=dict)
    nodes: Mapping[Address, tuple[NodeFacts, ...]] = field(default_factory=dict)
    """Of each cluster, its nodes in rank order, as far as they could be asked."""
    node_names: Mapping[Address, tuple[str, ...]] = field(default_factory=dict)
    """Of each cluster, the names its provider plans, in rank order."""
    prices: Mapping[str, float] = field(default_factory=dict)
    """Of each node that has a price of its own, by id."""
    missing_requirements: Mapping[Address, tuple[str, ...]] = field(default_factory=dict)
    """Of each job, what its own code lacks, in sentences."""
    caches: Mapping[Address, tuple[CacheFacts, ...]] = field(default_factory=dict)
    """Of each recorded training cache that could be asked about, its directories: its own, then the team's."""
    options: PlanOptions = PlanOptions()
    lock_readonly: bool = False
    """Whether nobody writes down what unlocked sources resolved to."""
    diagnostics: tuple[Diagnostic, ...] = ()
    unreachable_nodes: frozenset[str] = frozenset()
    """The ids of nodes of which the diagnostics say why they could not be asked."""
    policies: tuple[PlanPolicy, ...] = ()
    starts: Mapping[Address, RerunRequest] = field(default_factory=dict)
    rank_placements: Mapping[Address, tuple[str, ...]] = field(default_factory=dict)
    """Of each job that gets a run, the ids of the nodes that it is likely to get, by rank: worked out while planning."""


@dataclass(frozen=True, slots=True)
class AffectedRun:
    """A run that a change would stop, as the plan shows it."""

    id: str
    number: int
    started_at: float | None
    ranks: int
    gpus: int = 0
    """Of all ranks together; 0 where the job names no accelerator."""


@dataclass(frozen=True)
class Change:
    """What happens to one resource.

    ``before`` and ``after`` are the values side by side; ``after_unknown`` has True where a value is known only
    after apply; ``replace_paths`` are the paths that force a replacement. ``seen`` is the address's version in the
    state when the plan was made. ``note`` is one line for people, such as "changed since run 3".
    """

    address: Address
    action: Action
    provider: str
    reason: ActionReason | None = None
    before: Mapping[str, Any] | None = None
    after: Mapping[str, Any] | None = None
    after_unknown: Mapping[str, Any] = field(default_factory=dict)
    replace_paths: tuple[tuple[str | int, ...], ...] = ()
    depends_on: tuple[Address, ...] = ()
    lifecycle: LifecycleSpec = LifecycleSpec()
    seen: int = 0
    note: str = ""
    stops: AffectedRun | None = None
    outputs: Mapping[str, Any] = field(default_factory=dict)
    outputs_after: Mapping[str, Any] = field(default_factory=dict)
    """Outputs as far as they are known, before and after; ``attributes`` to record are in ``after`` alone."""
    resumes: str | None = None
    """The key of an interrupted attempt at this very change, which apply carries on instead of starting anew."""

    @cached_property
    def job_spec(self) -> JobSpec:
        """Of a job, the values after the change, or before it if it goes."""
        return JobSpec.from_attributes(self.after or self.before or {})


@dataclass(frozen=True, slots=True)
class Drift:
    """A recorded resource that is not as recorded."""

    address: Address
    before: Mapping[str, Any]
    after: Mapping[str, Any] | None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class WeightsRow:
    """One row of the plan's ``weights``; numbers are None when they could not be known."""

    address: Address
    source: str
    revision: str | None
    pin: str | None
    files: int | None
    bytes: int | None
    bytes_mirrored: int | None
    bytes_upstream: int | None
    bytes_through_client: int | None = 0
    """Those of ``bytes_upstream`` that a mirror on a host or in a bucket can't fetch itself."""
    listing: str | None = None
    """What is missing and comes with other weights of the plan, or with another file of its own: it is in none of the others."""
    forecast_seconds: float | None = None

    @property
    def path(self) -> str | None:
        """How what has to be fetched gets into the mirror; None where that isn't known."""
        if self.bytes_upstream is None:
            return None
        if not self.bytes_upstream:
            return "none"
        return "through-client" if self.bytes_through_client else "direct"


@dataclass(frozen=True, slots=True)
class DeliveryRow:
    """One row of the plan's ``deliveries``: what one rank of a job needs of one weights, and how it gets it."""

    job: Address
    rank: int
    node: str | None
    weights: Address
    tiers: TierFacts | None
    path: str
    mount: str
    mount_location: str
    forecast_seconds: float | None
    why: str = ""
    """Why the path is that one; empty for the usual."""
    room: int | None = None
    """Bytes that weights may still take on the node; None where nobody could tell."""
    last_hop_seconds: float | None = None
    """What of the forecast is the delivery itself, as the run's record measures it."""
    source: str = ""
    """What is the same for weights that name one source at one version; empty where nobody told."""

    @property
    def content(self) -> str:
        """What takes room on a node once, however many weights or jobs name it."""
        return self.source or str(self.weights)


@dataclass(frozen=True, slots=True)
class ImageRow:
    """One row of the plan's ``images``: what one rank of a job runs in. ``present`` is None where nobody could tell."""

    job: Address
    rank: int
    node: str | None
    image: str
    engine: str | None
    present: bool | None


@dataclass(frozen=True, slots=True)
class Plan:
    """The difference, in an order in which it can be applied. ``digest`` binds a review to an apply."""

    lineage: str
    serial: int
    manifest_digest: str
    changes: tuple[Change, ...]
    drift: tuple[Drift, ...] = ()
    weights: tuple[WeightsRow, ...] = ()
    deliveries: tuple[DeliveryRow, ...] = ()
    images: tuple[ImageRow, ...] = ()
    resolved: Mapping[Address, ResolvedSource] = field(default_factory=dict)
    code: Mapping[Address, CodeTree] = field(default_factory=dict)
    """Of each job that gets a run, the code it would ship."""
    hourly_cost: float = 0.0
    diagnostics: tuple[Diagnostic, ...] = ()
    options: PlanOptions = PlanOptions()
    digest: str = ""

    @property
    def usable(self) -> bool:
        """Whether it may be applied: no error stands in it."""
        return all(diagnostic.severity is not Severity.ERROR for diagnostic in self.diagnostics)

    @property
    def exit_code(self) -> int:
        """What a command ends with that was to use the plan: 0 where it is usable."""
        wrong = [
            diagnostic for diagnostic in self.diagnostics if diagnostic.severity is Severity.ERROR
        ]
        if any(one.forbids for one in wrong):
            return PermissionDenied.exit_code
        return TrainctlError.exit_code if wrong else 0

    @property
    def has_changes(self) -> bool:
        """Whether applying it does anything."""
        return any(change.action not in (Action.NOOP, Action.READ) for change in self.changes)
