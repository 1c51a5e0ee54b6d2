"""Runs: the states of a training job, as the hosted service names them, and one run's record."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from trainctl.model.json_codec import OMIT_EMPTY, JsonSerializable


class RunStatus(StrEnum):
    """The state of a run. LOST is ours: its supervisor is gone and it never ended."""

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
        """Whether the run may still do something by itself."""
        return self in _LIVE

    @property
    def words(self) -> str:
        """For people: ``completed``, ``deploy failed``."""
        return self.value.removeprefix("TRAINING_JOB_").lower().replace("_", " ")


_LIVE = frozenset({RunStatus.PENDING, RunStatus.CREATED, RunStatus.DEPLOYING, RunStatus.RUNNING})


@dataclass(frozen=True, slots=True)
class RankRecord:
    """One rank of a run; ``node`` is ``cluster/name``. ``error`` says why it ended, if that differs from why the run did."""

    rank: int
    node: str
    status: RunStatus
    exit_code: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class RunRecord(JsonSerializable):
    """One execution of a job, as the state keeps it. Times are Unix seconds; ``phases`` are seconds each took.

    ``waiting`` says what a pending run waits for, or a deploying one is at, in words; it changes by itself and is never recorded.

    ``cause`` is the kind of error that kept a run from starting, and is not recorded either.

    ``delivered`` are the bytes that moved onto its nodes; ``retries`` says how often it was tried again.
    ``store`` is where its checkpoints are kept, ``{url, endpoint_url, secret, prefix}``, url None being its nodes' data
    directory; ``loaded`` the checkpoints it began with, ``sync`` how its upload stands: ``{state, error, pending}``.
    ``code`` is the digest of its code and ``code_archive`` the sha256 of the archive that its nodes unpacked; ``rerun_of`` is the id
    of the run that it repeats.
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
    """Of each rank and its weights what ``Delivered`` says."""
    mirrored: tuple[Mapping[str, Any], ...] = ()
    """Of each of its weights that the same apply mirrored what ``Mirrored`` says, and which: ``weights``."""
    phases: Mapping[str, float] = field(default_factory=dict)
    retries: int = 0
    waiting: str | None = field(default=None, compare=False)
    cause: str | None = field(default=None, compare=False)
    store: Mapping[str, Any] | None = None
    loaded: tuple[Mapping[str, Any], ...] = ()
    sync: Mapping[str, Any] = field(default_factory=dict)
    image_digest: str | None = None
    """Of the container image that it runs in, as its registry names it; None on the host."""
    code: str | None = None
    code_archive: str | None = None
    rerun_of: str | None = None
    blamed: int | None = None
    """Of several ranks the one whose failure or loss ended the run."""
    stop_requested: bool = field(default=False, metadata=OMIT_EMPTY)
    """Whether a user asked for its end: then it is never started again."""

    @property
    def exit_code(self) -> int | None:
        """That of the rank that is blamed, else of the first one that has any."""
        codes = {rank.rank: rank.exit_code for rank in self.ranks}
        if self.blamed is not None:
            return codes.get(self.blamed)
        return next((code for code in codes.values() if code is not None), None)


def run_id(key: str) -> str:
    """The short id users type, from a run's idempotency key: seven characters of base32, lower case."""
    return base64.b32encode(hashlib.sha256(key.encode()).digest()).decode().lower()[:7]
