"""Verbs about runs and their logs."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, TypedDict

from trainctl.base.protocol.spec import MadeOf, Order, RunSpec
from trainctl.base.protocol.verb import AtCache, AtRoot, OfRun, Verb

Blame = TypedDict(
    "Blame",
    {"rank": int, "status": str, "exit_code": Optional[int], "error": Optional[str]},
)
"""The rank whose end ended its gang."""

Sync = TypedDict("Sync", {"state": str, "error": Optional[str], "pending": List[str]}, total=False)
"""Upload of a run's checkpoints; empty for a run that keeps none. ``pending``: names of those not uploaded yet."""


class _Report(TypedDict):
    key: str
    status: str
    supervised: bool


class RunReport(_Report, total=False):
    """Status of one rank of a run; no more than the required keys for a run that was never started here. Times are Unix seconds.

    ``status``: a ``TRAINING_JOB_*`` name. ``cause``: kind of the failure that kept it from starting. ``waiting``: what a pending
    run waits for, with its place, or what a deploying run does. ``gpus``: ids of those it claimed. ``loaded``: the checkpoints
    it began with, ``{run, rank, name, step, version}``. ``pid``: of its supervisor.
    """

    id: str
    number: int
    generation: int
    rank: int
    exit_code: Optional[int]
    error: Optional[str]
    cause: Optional[str]
    blame: Optional[Blame]
    created_at: float
    started_at: Optional[float]
    ended_at: Optional[float]
    mount: Optional[str]
    weights_mode: Optional[str]
    retries: Optional[int]
    gpus: Optional[List[str]]
    waiting: Optional[str]
    lane: Optional[str]
    loaded: Optional[List[Dict[str, Any]]]
    sync: Sync
    pid: Optional[int]


Meeting = TypedDict("Meeting", {"port": int, "token": str})
"""Where rank 0 of a gang listens, and what opens it."""


class _Start(AtRoot):
    data: str
    run: RunSpec
    secrets: Mapping[str, str]


class StartRequest(_Start, total=False):
    """``data``: directory of checkpoints. ``secrets``: values by name. ``meeting``: for every rank but 0 of a gang."""

    meeting: Optional[Meeting]


class Started(RunReport):
    """``meeting``: of rank 0 of a gang."""

    meeting: Optional[Meeting]


class SecretsRequest(OfRun):
    """``secrets``: values by name; null: those that the node keeps."""

    data: str
    secrets: Optional[Mapping[str, str]]


class StopRequest(OfRun):
    """``grace_seconds``: how long the job may take to end; null: as its specification says."""

    grace_seconds: Optional[float]


class ReorderRequest(OfRun, Order):
    """A run and its new order."""


class RunInCache(AtCache):
    """``key``: of a run whose weights are leased in ``cache``."""

    key: str


class LinesWanted(TypedDict):
    """Lines of a log. Times: ``{at}`` in Unix seconds or ``{ago}`` in seconds. ``prepare``: of the stage before the job."""

    since: Optional[Mapping[str, float]]
    until: Optional[Mapping[str, float]]
    grep: Optional[str]
    tail: Optional[int]
    prepare: bool


class LinesFrom(LinesWanted):
    """``offset``: in bytes. ``follow``: until the run ends. ``open_end``: with the last line, though it isn't finished."""

    offset: int
    follow: bool
    open_end: bool


class LinesRequest(OfRun, LinesFrom):
    """Lines of one rank's log."""

    rank: int


StatusRequest = TypedDict("StatusRequest", {"root": str, "keys": List[str]})
Statuses = TypedDict("Statuses", {"runs": Dict[str, Optional[RunReport]]})
"""By key; null: not on this node."""

MetricsRequest = TypedDict("MetricsRequest", {"root": str, "key": str, "since": float})
Metrics = TypedDict("Metrics", {"samples": List[Dict[str, Any]]})
"""The oldest first, each with ``time`` in Unix seconds and what was measured."""

Past = TypedDict("Past", {"code": str, "code_present": bool, "made_of": MadeOf})
Removed = TypedDict("Removed", {"removed": bool})
Released = TypedDict("Released", {"released": bool})
"""False if the run was started: its leases end with it."""

START = Verb(
    "start",
    StartRequest,
    Started,
    "Start a run unless it was started before, and wait until it runs, waits or has ended. Events: `{waiting}`.",
)
GIVE_SECRETS = Verb(
    "give_secrets",
    SecretsRequest,
    RunReport,
    "Restart a run that waits for its secrets or to be carried on; leave any other as it is.",
)
STATUS = Verb("status", StatusRequest, Statuses, "Report the status of runs.")
STOP = Verb(
    "stop",
    StopRequest,
    RunReport,
    "End a run and wait for its end; an unknown run can't be started any more. "
    "Events, each second: `{seconds, grace, processes}`, the last how many are left.",
)
REORDER = Verb("reorder", ReorderRequest, RunReport, "Change the order of a run that may wait.")
REMOVE = Verb(
    "remove", RunInCache, Removed, "Remove an ended run and its leases, not its checkpoints."
)
RELEASE = Verb("release", RunInCache, Released, "Drop the leases of a run that was never started.")
PAST = Verb("past", OfRun, Past, "Report what a run was made of.")
METRICS = Verb("metrics", MetricsRequest, Metrics, "Return the samples taken of a run.")
READ_LINES = Verb(
    "read_lines",
    LinesRequest,
    bytes,
    "Return lines of a log as frames: JSON `{time, bytes, next, open}` on a line, then as many bytes.",
)
