"""How a job stands, as values."""

from __future__ import annotations

from dataclasses import dataclass

from trainctl.model.address import Address
from trainctl.model.run import RunRecord


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One checkpoint of one rank.

    ``run`` is the run's id, ``url`` says where it lies; ``step`` where its name ends in one; ``created_at`` in Unix seconds.
    """

    name: str
    run: str
    rank: int
    step: int | None
    bytes: int
    files: int
    complete: bool
    created_at: float
    url: str


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job's run with its checkpoints. ``stale`` says why its nodes could not be asked, if they couldn't.

    ``matrix`` has the values of a job of a matrix, as written and in the order declared.
    """

    address: Address
    run: RunRecord
    checkpoints: tuple[Checkpoint, ...] = ()
    stale: str = ""
    matrix: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Remain:
    """A data directory that outlives a destroy. ``what`` is ``mirror`` or ``checkpoints``; ``place`` says where."""

    what: str
    place: str
    bytes: int
