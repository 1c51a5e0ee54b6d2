"""Status and record of a run. Status values are those of Baseten's API."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from trainctl.base.lazy_dataclass import dataclass, field
from trainctl.base.protocol import INTERRUPTED
from trainctl.base.protocol.runs import RunDetails, RunMoment
from trainctl.model.json_codec import OMIT_EMPTY, JsonSerializable


class RunStatus(StrEnum):
    """Status of a run. LOST is our own: the supervisor died before the run ended."""

    PENDING = "TRAINING_JOB_PENDING"
    CREATED = "TRAINING_JOB_CREATED"
    DEPLOYING = "TRAINING_JOB_DEPLOYING"
    RUNNING = "TRAINING_JOB_RUNNING"
    COMPLETED = "TRAINING_JOB_COMPLETED"
    FAILED = "TRAINING_JOB_FAILED"
    DEPLOY_FAILED = "TRAINING_JOB_DEPLOY_FAILED"
    STOPPED = "TRAINING_JOB_STOPPED"
    LOST = "TRAINING_JOB_LOST"

    @property
    def live(self) -> bool:
        """Whether the run has not ended."""
        return self in _LIVE

    @property
    def words(self) -> str:
        """The status in words: ``completed``, ``deploy failed``."""
        return self.value.removeprefix("TRAINING_JOB_").lower().replace("_", " ")


LIVE_FIRST = (
    RunStatus.RUNNING,
    RunStatus.DEPLOYING,
    RunStatus.CREATED,
    RunStatus.PENDING,
    RunStatus.FAILED,
    RunStatus.DEPLOY_FAILED,
    RunStatus.LOST,
    RunStatus.STOPPED,
    RunStatus.COMPLETED,
)
"""A run is live while any rank is; then it has the status of its worst rank."""

_LIVE = frozenset({RunStatus.PENDING, RunStatus.CREATED, RunStatus.DEPLOYING, RunStatus.RUNNING})


@dataclass(frozen=True, slots=True)
class RankRecord:
    """One rank of a run; ``node`` is ``cluster/name``.

    ``error`` is set if it differs from that of the run.
    """

    rank: int
    node: str
    status: RunStatus
    exit_code: int | None = None
    error: str | None = None
    host: str | None = field(default=None, metadata=OMIT_EMPTY)
    """Machine that a batch system chose; empty before it has."""
    gpus: int = field(default=0, metadata=OMIT_EMPTY)
    """Number of GPUs that it claimed."""

    @property
    def place(self) -> str:
        """Return where it runs, ``cluster/machine``; ``cluster`` while a batch system has not chosen."""
        if self.host is None:
            return self.node
        return "/".join(filter(None, (self.node.partition("/")[0], self.host)))


@dataclass(frozen=True, slots=True)
class RunRecord(JsonSerializable):
    """One execution of a job, as stored in the state. Times are Unix seconds.

    ``phases``: duration of each in seconds. ``delivered``: bytes transferred to its nodes.
    ``store``: location of its checkpoints, ``{url, endpoint_url, secret, prefix}``; url None is the nodes' data directory.
    ``code``: digest of its code; ``code_archive``: sha256 of the archive sent to the nodes.
    ``rerun_of``: id of the repeated run.
    """

    id: str
    number: int
    key: str
    generation: int = 1
    status: RunStatus = RunStatus.CREATED
    ranks: tuple[RankRecord, ...] = ()
    created_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    error: str | None = None
    delivered: int = 0
    deliveries: tuple[Mapping[str, Any], ...] = ()
    """A ``DeliveryRecord`` for each rank and weights."""
    mirrored: tuple[Mapping[str, Any], ...] = ()
    """A ``MirroringRecord`` and the name, ``weights``, for each of its weights that the same apply mirrored."""
    phases: Mapping[str, float] = field(default_factory=dict)
    reported: RunDetails = field(default_factory=RunDetails)
    """Details that its nodes report, of the first rank that reports each."""
    now: RunMoment = field(default_factory=RunMoment, compare=False)
    """Details that its nodes have just reported, and that are not recorded."""
    store: Mapping[str, Any] | None = None
    image_digest: str | None = None
    """Digest of the container image in its registry; None on the host."""
    code: str | None = None
    code_archive: str | None = None
    rerun_of: str | None = None
    commit: str | None = field(default=None, metadata=OMIT_EMPTY)
    """Commit that was checked out when it was started; its code may differ."""
    blamed: int | None = None
    """The rank whose failure or loss ended the run, if there are several ranks."""
    max_duration_seconds: float | None = field(default=None, metadata=OMIT_EMPTY)
    """Its time limit; a later change of the job's limit doesn't apply to it."""
    stop_requested: bool = field(default=False, metadata=OMIT_EMPTY)
    """Whether a user stopped it; then it is never restarted."""
    identity: str | None = field(default=None, metadata=OMIT_EMPTY)
    """Digest of all that its result depends on; None if something is unknown."""
    reused_from: Mapping[str, str] | None = field(default=None, metadata=OMIT_EMPTY)
    """The ``job`` and the URL of the ``state`` that own it, if not those that record it."""

    @property
    def words(self) -> str:
        """The status in words; ``in session`` while it keeps its place after its commands."""
        return (
            "in session" if self.reported.get("session") and self.status.live else self.status.words
        )

    @property
    def checkpoint_prefix(self) -> str:
        """Name of its directory of checkpoints, which stays if the job is renamed."""
        return str((self.store or {}).get("prefix", f"{self.number}-{self.id}"))

    @property
    def interrupted(self) -> bool:
        """Whether the run was lost because the platform took a machine back."""
        return self.status is RunStatus.LOST and INTERRUPTED in (self.error or "")

    def running_seconds(self, now: float) -> float | None:
        """Return how long its commands ran, until ``now`` if it is live; None if that is unknown."""
        if "running" not in self.phases and self.started_at is not None and self.status.live:
            return max(0.0, now - self.started_at)
        return self.phases.get("running")

    @property
    def exit_code(self) -> int | None:
        """Exit code of the rank that ended the run, else of the first rank that has one."""
        codes = {rank.rank: rank.exit_code for rank in self.ranks}
        if self.blamed is not None:
            return codes.get(self.blamed)
        return next((code for code in codes.values() if code is not None), None)


@dataclass(frozen=True, slots=True)
class ReusedRun:
    """A completed run to record for another job or in another state; ``origin`` says which and where."""

    run: RunRecord
    origin: str


def run_id(key: str) -> str:
    """Derive the id of a run from its idempotency key: 7 characters of base32."""
    return base64.b32encode(hashlib.sha256(key.encode()).digest()).decode().lower()[:7]
