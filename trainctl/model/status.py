"""How a job stands, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trainctl.model.address import Address
from trainctl.model.run import RunRecord


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One checkpoint of one rank.

    ``job`` is the job's address, ``run`` the run's id, ``url`` says where it lies; ``state`` is ``complete``, ``uploading`` or ``incomplete``;
    ``created_at`` in Unix seconds. What files say of it is known once it is complete: ``type`` is ``lora``, ``full``,
    ``whisper`` or ``other``; ``parameters`` counts those of its safetensors files, by type in ``dtypes``. ``left_out`` counts
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
    left_out: int = 0
    tensors: int = 0
    parameters: int = 0
    dtypes: Mapping[str, int] = field(default_factory=dict)
    job: str = ""

    @property
    def complete(self) -> bool:
        """Whether all of it can be had."""
        return self.state == "complete"


@dataclass(frozen=True, slots=True)
class Artifact:
    """One file of a checkpoint: ``path`` from the rank's directory on, ``modified`` in Unix seconds."""

    url: str
    path: str
    rank: int
    bytes: int
    modified: float


@dataclass(frozen=True, slots=True)
class Beginner:
    """Whose apply begins a run that is not recorded yet, since when in Unix seconds, and whether it was interrupted; where
    nobody here can tell, it wasn't."""

    who: str
    since: float
    interrupted: bool


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job's run with its checkpoints. ``stale`` says why its nodes could not be asked, if they couldn't.

    ``matrix`` has the values of a job of a matrix, as written and in the order declared.
    ``deadline`` is when a live run is ended, in Unix seconds; ``forecast`` how long its phases should take, in seconds: as long as
    those of ``like``, the newest run before it that completed. ``work`` has the working directories on the nodes, by rank.
    ``apply`` is whose apply begins it, as long as nobody has recorded the run.
    """

    address: Address
    run: RunRecord
    checkpoints: tuple[Checkpoint, ...] = ()
    stale: str = ""
    matrix: tuple[tuple[str, str], ...] = ()
    deadline: float | None = None
    forecast: Mapping[str, float] = field(default_factory=dict)
    like: int | None = None
    work: Mapping[int, str] = field(default_factory=dict)
    apply: Beginner | None = None


@dataclass(frozen=True, slots=True)
class Remain:
    """A data directory that outlives a destroy. ``what`` is ``mirror`` or ``checkpoints``; ``place`` says where."""

    what: str
    place: str
    bytes: int
