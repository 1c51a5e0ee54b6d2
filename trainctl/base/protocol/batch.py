"""Runs that a batch system starts, such as Slurm. See resources/DESIGN.md, "Batch runs"."""

from __future__ import annotations

from typing import List, Mapping, Optional, TypedDict

from trainctl.base.protocol.method import EmptyResponse, Method, RunRequest
from trainctl.base.protocol.spec import RunSpec

WAITING_EXIT_CODE = 99
"""Exit code of a rank that was interrupted: the batch system decides whether it starts again."""


def rank_root(root: str, rank: int) -> str:
    """Return the root directory of one rank: all ranks of a batch run share a file system."""
    return f"{root}/ranks/{rank}" if rank else root


class CreateBatchRunRequest(RunRequest):
    """``runs``: the specification of each rank. ``secrets``: values by name, stored until the run ends."""

    runs: List[RunSpec]
    secrets: Mapping[str, str]


class RunRankRequest(RunRequest):
    """``rank``, ``restarts``, ``gpus``, ``host``: environment variables of the batch system.

    ``forwarded``: prefixes of the variables that the job gets. ``node_cache``: directory on the node's own disk, may have
    variables; empty: none.
    """

    data: str
    rank: str
    restarts: str
    gpus: str
    host: str
    forwarded: List[str]
    node_cache: str


class ExpectStopRequest(RunRequest):
    """A run of ``ranks`` ranks is about to be stopped, with ``grace_seconds`` for its processes."""

    ranks: int
    grace_seconds: float


class EndBatchRunRequest(RunRequest):
    """Ends ranks that have no outcome, with a ``status`` and ``error``."""

    ranks: int
    status: str
    error: Optional[str]


RankResponse = TypedDict("RankResponse", {"status": str})

CREATE_BATCH_RUN = Method(
    "create_batch_run",
    CreateBatchRunRequest,
    EmptyResponse,
    "Create the directories of a batch run's ranks; idempotent.",
)
RUN_RANK = Method(
    "run_rank",
    RunRankRequest,
    RankResponse,
    "Run one rank in this process, called by the batch system.",
)
EXPECT_STOP = Method(
    "expect_stop",
    ExpectStopRequest,
    EmptyResponse,
    "Record that the batch run is about to be stopped.",
)
END_BATCH_RUN = Method(
    "end_batch_run",
    EndBatchRunRequest,
    EmptyResponse,
    "Record the end of a batch run whose job has ended.",
)
