"""Value types of planning: inputs, changes and the plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from trainctl.base.lazy_dataclass import dataclass, field
from trainctl.base.listing import ResolvedSource
from trainctl.desired.values import DesiredState
from trainctl.errors import PermissionDenied, TrainctlError
from trainctl.ledger.planned_edits import NO_EDITS, StateEdits
from trainctl.ledger.state import State
from trainctl.model.action import Action, ActionReason
from trainctl.model.address import Address
from trainctl.model.contents import ContentDiff
from trainctl.model.delivery import ServingCapability
from trainctl.model.diagnostics import Diagnostic, Severity
from trainctl.model.reports import CacheFacts, RunForecast, UnattendedCost
from trainctl.model.run import ReusedRun, RunRecord
from trainctl.model.specs.checks import JobLifecycle
from trainctl.model.specs.job_spec import JobSpec
from trainctl.model.trust import PlanPolicy, PolicyResult
from trainctl.plugin_api.machines import MachinePlan, Offer
from trainctl.plugin_api.provider import Capabilities, Node, ResourceStatus
from trainctl.plugin_api.scheduler import BatchForecast, PartitionFacts

if TYPE_CHECKING:
    from trainctl.base.protocol.host import Facts, FreeGpu, HostGpuFacts, ImageAvailability
    from trainctl.base.protocol.method import NodeCacheRequest
    from trainctl.base.protocol.weights import CacheQueryResponse

_Gpu = TypeVar("_Gpu", "HostGpuFacts", "FreeGpu")


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """A batch system: its partitions and when each job would start; a ``problem`` if it doesn't respond."""

    partitions: tuple[PartitionFacts, ...] = ()
    forecasts: Mapping[Address, BatchForecast] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A cluster's batch system, and its new runs with the forecast of their start."""

    cluster: Address
    partitions: tuple[PartitionFacts, ...]
    jobs: tuple[tuple[Address, BatchForecast], ...]


@dataclass(frozen=True, slots=True)
class Observation:
    """Observation of a recorded resource, with outputs that change without apply.

    Jobs: outputs are ``run``, the record of the newest run, or ``runs``, several. Clusters: ``unobserved`` are ids of
    nodes without a result, ``recovered_nodes`` and ``missing`` names of nodes that are reachable again, and of those that don't exist. Weights: ``other_mirror`` is the
    mirror that has them, if it isn't the desired one.
    """

    status: ResourceStatus
    outputs: Mapping[str, Any] = field(default_factory=dict)
    detail: str = ""
    recovered_nodes: tuple[str, ...] = ()
    unobserved: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    other_mirror: str = ""


OUTPUT_MARK = "Output of trainctl, not code"
"""In the first line of plans and states in files, which are never code."""


@dataclass(frozen=True, slots=True)
class CodeTree:
    """Source code of a job; ``excluded`` by the built-in list."""

    digest: str
    files: int
    bytes: int
    excluded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WeightsFacts:
    """Facts about weights; ``mirrored`` in bytes, None if the mirror was not queried.

    ``resolved`` is None if upstream was not queried; ``locked_as`` then has ``revision``, ``pin``, ``files`` and
    ``bytes`` of the lock file. ``locked``: in the lock file, or added before apply.
    """

    resolved: ResolvedSource | None
    mirrored: int | None = 0
    relayed_bytes: int = 0
    """Bytes that a remote mirror lacks and only the client can copy there."""
    listing: str | None = None
    locked: bool = False
    locked_as: Mapping[str, Any] | None = None
    unmatched_patterns: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TierFacts:
    """Bytes of weights by tier, seen from a node; the sum is the size of the listing."""

    node: int = 0
    cluster: int = 0
    mirror: int = 0
    upstream: int = 0

    @property
    def total(self) -> int:
        """Size of the listing."""
        return self.node + self.cluster + self.mirror + self.upstream

    @property
    def missing(self) -> int:
        """Bytes that are not on the node."""
        return self.total - self.node


@dataclass(frozen=True, slots=True)
class ImageSelection:
    """An image and the engine for it; None means any that works."""

    image: str
    engine: str | None


@dataclass(frozen=True, slots=True)
class MirrorProximity:
    """How a node reaches the mirror.

    ``sees``: it has access to the mirror's directory. ``host``: id of the host or URL of the bucket with the mirror; empty
    for the client. ``unserved_reason``: why that host can't serve weights to the node, else empty. ``tls``: whether it
    serves over TLS, because it has no private address.
    """

    sees: bool = True
    host: str = ""
    unserved_reason: str = ""
    tls: bool = False


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a node reported, and what the client knows of it.

    ``cache``: settings of its weights cache. ``claims``: bytes of weights that no live run uses there. ``rates``: recorded
    bytes per second, ``upstream`` into the mirror, else by last hop. ``missing_requirements``: of each job, as sentences.
    """

    id: str
    reported: Facts
    cache: NodeCacheRequest
    declared_gpus: int | None = None
    tiers: Mapping[Address, TierFacts] = field(default_factory=dict)
    claims: Mapping[Address, int] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)
    images: Mapping[ImageSelection, ImageAvailability] = field(default_factory=dict)
    missing_requirements: Mapping[Address, tuple[str, ...]] = field(default_factory=dict)
    mirror: MirrorProximity = MirrorProximity()

    @property
    def cached(self) -> CacheQueryResponse:
        """Return what its weights cache has; ``room`` and ``most`` are absent if unknown."""
        return self.reported["cached"] or {"trees": [], "blobs": []}

    @property
    def limit(self) -> int | None:
        """Return the size limit of its weights cache."""
        settings = self.cache.get("cache")
        return settings["size"] if settings else None

    @property
    def max_rate(self) -> int | None:
        """Return its download limit in bytes per second."""
        return self.cache.get("max_rate")

    @property
    def serving(self) -> ServingCapability:
        """Return how it serves its peers."""
        return ServingCapability(**self.reported["serving"])

    def usable_gpus(self, kind: str = "") -> int:
        """Count the GPUs (of a kind) that jobs may claim; if none is reported, declared ones."""
        if self.reported["gpus_problem"]:
            return 0
        if not (gpus := self.reported["gpus"]):
            return self.declared_gpus or 0
        return len(gpus_of_kind(gpus[: self.declared_gpus], kind))


def gpus_of_kind(gpus: Sequence[_Gpu], kind: str) -> list[_Gpu]:
    """Return the GPUs of a kind, all if it is empty."""
    return [gpu for gpu in gpus if not kind or kind in gpu["is"]]


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Options of the user; ``untrusted`` plans see no state, node or secret, and are never applied."""

    destroy: bool = False
    refresh_only: bool = False
    targets: tuple[Address, ...] = ()
    excludes: tuple[Address, ...] = ()
    replace: tuple[Address, ...] = ()
    upgrade: bool = False
    run: tuple[Address, ...] = ()
    delete_checkpoints: bool = False
    untrusted: bool = False
    edits_state: bool = True
    """Whether to rename and import resources as the manifest says."""
    reuse: bool = True
    """Reuse completed runs of other jobs and states instead of starting equal ones."""
    overrides: tuple[str, ...] = ()
    """The texts of ``--set``."""


@dataclass(frozen=True, slots=True)
class RerunRequest:
    """Request for a run based on an earlier one: ``attributes`` are added, ``as_recorded`` to the recorded ones."""

    attributes: Mapping[str, Any]
    note: str
    as_recorded: bool = False


@dataclass(frozen=True, kw_only=True)
class ClusterFacts:
    """The nodes of clusters and what those that were reached reported."""

    nodes: dict[Address, tuple[NodeFacts, ...]] = field(default_factory=dict)
    """Reachable nodes of each cluster, in rank order."""
    planned_nodes: dict[Address, tuple[Node, ...]] = field(default_factory=dict)
    """Recorded or planned nodes of each cluster, in rank order."""
    capabilities: dict[str, Capabilities] = field(default_factory=dict)
    """Capabilities of the installed providers in use, by name."""
    prices: dict[str, float] = field(default_factory=dict)
    """Prices of nodes by id, if they differ from the cluster's."""
    scheduled: set[Address] = field(default_factory=set)
    """Clusters whose runs are placed by a batch system."""
    unreachable_nodes: set[str] = field(default_factory=set)
    """Ids of unreachable nodes that the diagnostics report."""


@dataclass(frozen=True)
class PlanInputs(ClusterFacts):
    """All inputs of planning."""

    desired: DesiredState
    state: State
    observed: Mapping[Address, Observation] = field(default_factory=dict)
    unrecorded_runs: Mapping[Address, tuple[RunRecord, ...]] = field(default_factory=dict)
    """Runs of each job that attempts started without recording them."""
    code: Mapping[Address, CodeTree] = field(default_factory=dict)
    weights: Mapping[Address, WeightsFacts] = field(default_factory=dict)
    offers: Mapping[Address, tuple[Offer, ...]] = field(default_factory=dict)
    """Offers for machines to be created, by cluster, in the order in which they are tried."""
    missing_requirements: Mapping[Address, tuple[str, ...]] = field(default_factory=dict)
    """Missing files in the code of each job, as sentences."""
    caches: Mapping[Address, tuple[CacheFacts, ...]] = field(default_factory=dict)
    """Directories of recorded training caches: the project's, then the team's."""
    edits: StateEdits = NO_EDITS
    """Edits that are applied to ``state`` already."""
    options: PlanOptions = PlanOptions()
    lock_readonly: bool = False
    diagnostics: tuple[Diagnostic, ...] = ()
    quarantined: Mapping[str, str] = field(default_factory=dict)
    """Reasons of quarantined nodes by id."""
    policies: tuple[PlanPolicy, ...] = ()
    starts: Mapping[Address, RerunRequest] = field(default_factory=dict)
    best: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Chosen checkpoints, as RUN/CHECKPOINT, and what they were compared with, by name of the choice."""
    reusable: Mapping[Address, ReusedRun] = field(default_factory=dict)
    """Completed runs that new runs of these jobs would repeat."""
    batch_systems: Mapping[Address, BatchFacts] = field(default_factory=dict)
    rank_placements: Mapping[Address, tuple[str, ...]] = field(default_factory=dict)
    """Node ids of new runs by rank; computed while planning."""


@dataclass(frozen=True, slots=True)
class AffectedRun:
    """A run that a change stops."""

    id: str
    number: int
    started_at: float | None
    ranks: int
    gpus: int = 0
    """Total of all ranks; 0 if the job names no accelerator."""


_IDLE = (Action.NOOP, Action.READ)


@dataclass(frozen=True)
class Change:
    """Change of one resource.

    ``before`` and ``after`` are attributes; ``after_unknown`` has True for values known only after apply;
    ``replace_paths`` force a replacement. ``seen`` is the version of the address in the state when the plan was made.
    ``note`` is a short text such as "changed since run 3".
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
    lifecycle: JobLifecycle = JobLifecycle()
    seen: int = 0
    note: str = ""
    stops: AffectedRun | None = None
    outputs: Mapping[str, Any] = field(default_factory=dict)
    outputs_after: Mapping[str, Any] = field(default_factory=dict)
    """Known outputs after the change; ``outputs`` are those before."""
    waits_for: tuple[Address, ...] = ()
    """Changes to apply before this one, though it doesn't depend on them."""
    covers: Mapping[str, Any] = field(default_factory=dict)
    """What the digest covers in addition: versions of resources that are read, stores, secrets, the image's digest."""
    machines: tuple[MachinePlan, ...] = ()
    """What a cluster's provider does on its platform, with ``key``, which is else made when the change is applied."""
    key: str = ""
    resumes: str | None = None
    """Key of an interrupted attempt at the same change, which apply resumes."""
    approved_in: str = ""
    """Digest of the earlier plan that was approved with this change; empty: this plan."""
    approved_as: str = ""
    """Digest of this change in that plan."""
    reuses: ReusedRun | None = None
    identity: str | None = None
    """Identity of the new run; see ``RunRecord``."""
    edit: str = ""
    """How its record gets there: ``moved from job.sft``; empty if it is there."""
    previous: Address | None = None
    """Its address in the state, if it is moved."""

    @property
    def acts(self) -> bool:
        """Whether the change does anything, if only to the record."""
        return bool(self.edit) or self.action not in _IDLE

    @cached_property
    def job_spec(self) -> JobSpec:
        """The job after the change, or before its removal."""
        return JobSpec.from_attributes(self.after or self.before or {})


@dataclass(frozen=True, slots=True)
class Drift:
    """Difference between an observed and a recorded resource."""

    address: Address
    before: Mapping[str, Any]
    after: Mapping[str, Any] | None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class WeightsRow:
    """Row of the plan's ``weights``; None means unknown."""

    address: Address
    source: str
    revision: str | None
    pin: str | None
    files: int | None
    bytes: int | None
    bytes_mirrored: int | None
    bytes_upstream: int | None
    bytes_through_client: int | None = 0
    """Part of ``bytes_upstream`` that a remote mirror can't download itself."""
    listing: str | None = None
    forecast_seconds: float | None = None

    @property
    def path(self) -> str | None:
        """Route of missing bytes into the mirror, None if unknown."""
        if self.bytes_upstream is None:
            return None
        if not self.bytes_upstream:
            return "none"
        return "through-client" if self.bytes_through_client else "direct"


@dataclass(frozen=True, slots=True)
class DeliveryRow:
    """Row of the plan's ``deliveries``: one rank and weights; ``path`` is the route."""

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
    """Reason for the route; empty for the default."""
    weights_space: int | None = None
    """Bytes available for weights on the node; None if unknown."""
    last_hop_seconds: float | None = None
    """Part of the forecast for the delivery itself, as measured in the run's record."""
    source: str = ""
    """Key that is equal for weights with the same content; empty if unknown."""

    @property
    def content(self) -> str:
        """Key of the content, which takes disk space on a node once."""
        return self.source or str(self.weights)


@dataclass(frozen=True, slots=True)
class ImageRow:
    """Row of the plan's ``images``: one rank; ``digest`` None: known by name, ``rdma``: gets RDMA devices; None: unknown."""

    job: Address
    rank: int
    node: str | None
    image: str
    engine: str | None
    present: bool | None
    digest: str | None = None
    unresolved_reason: str = ""
    rdma: bool | None = None


@dataclass(frozen=True)
class Plan:
    """A plan; ``changes`` are in order of apply, ``digest`` covers no ``contents``; ``code`` is of new runs."""

    lineage: str
    serial: int
    manifest_digest: str
    changes: tuple[Change, ...]
    drift: tuple[Drift, ...] = ()
    weights: tuple[WeightsRow, ...] = ()
    deliveries: tuple[DeliveryRow, ...] = ()
    images: tuple[ImageRow, ...] = ()
    offers: Mapping[Address, tuple[Offer, ...]] = field(default_factory=dict)
    """Offers for the machines of each new or changed cluster."""
    batch_systems: tuple[BatchRow, ...] = ()
    resolved: Mapping[Address, ResolvedSource] = field(default_factory=dict)
    code: Mapping[Address, CodeTree] = field(default_factory=dict)
    code_files: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Files of each code tree, by its digest, so that changes can be named; not of large trees."""
    contents: tuple[ContentDiff, ...] = ()
    var_files: tuple[str, ...] = ()
    """Files of variables, which are not code."""
    hourly_cost: float = 0.0
    unattended: tuple[UnattendedCost, ...] = ()
    runs: Mapping[Address, RunForecast] = field(default_factory=dict)
    diagnostics: tuple[Diagnostic, ...] = ()
    edits: StateEdits = NO_EDITS
    options: PlanOptions = PlanOptions()
    policies: str = ""
    """Digest of its mandatory policies; empty without any."""
    policy_results: tuple[PolicyResult, ...] = ()
    digest: str = ""
    author: str = ""
    """Who made it, from the ``commit`` that was checked out, at ``created_at`` (Unix seconds)."""
    commit: str | None = None
    created_at: float | None = None

    @property
    def usable(self) -> bool:
        """Whether the plan has no errors."""
        return not self.exit_code

    @property
    def exit_code(self) -> int:
        """Exit code of commands with this plan: 0 if it has no errors."""
        errors = [each for each in self.diagnostics if each.severity is Severity.ERROR]
        if any(problem.forbids for problem in errors):
            return PermissionDenied.exit_code
        return TrainctlError.exit_code if errors else 0

    @cached_property
    def acting(self) -> tuple[Change, ...]:
        """The changes that do anything."""
        # As ``Change.acts``, without a call for each of many no-ops.
        return tuple(each for each in self.changes if each.edit or each.action not in _IDLE)

    @property
    def has_changes(self) -> bool:
        """Whether an apply does anything."""
        return bool(self.acting)
