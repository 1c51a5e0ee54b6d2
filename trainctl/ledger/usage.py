"""GPU hours and cost of runs, folded from the entries of a state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from trainctl.base.lazy_dataclass import dataclass, replace
from trainctl.ledger.entries import Entry, OutcomeEntry, RefreshEntry
from trainctl.ledger.reducer import StateReducer
from trainctl.ledger.state import Intent, RecordedResource
from trainctl.model.address import Address, Kind
from trainctl.model.run import RunRecord


@dataclass(frozen=True, slots=True)
class RunUsage:
    """What a run used from ``started`` to ``ended`` (Unix seconds; None: still running).

    ``price_per_hour``: of its nodes together, of a shared node the part for its GPUs; None: a node has no price.
    """

    id: str
    job: Address
    project: str
    labels: Mapping[str, str]
    """Labels of the job, and those of its project that the job doesn't set."""
    user: str
    started: float
    ended: float | None
    nodes: int
    gpus: int
    """On all nodes."""
    price_per_hour: float | None

    def hours(self, since: float, until: float) -> float:
        """Return how long the run ran between two times."""
        end = until if self.ended is None else min(self.ended, until)
        return max(0.0, end - max(self.started, since)) / 3600


@dataclass(frozen=True, slots=True)
class UsageRow:
    """Sums of the runs of a project, label or user.

    ``cost`` is that of the nodes with a price; ``unpriced_hours`` are those of the other nodes.
    """

    name: str
    runs: int
    node_hours: float
    gpu_hours: float
    cost: float
    unpriced_hours: float


GROUPINGS: Mapping[str, Callable[[RunUsage], Iterable[str]]] = {
    "project": lambda run: (run.project,),
    "label": lambda run: [f"{name}={value}" for name, value in run.labels.items()] or ("",),
    "user": lambda run: (run.user,),
    "total": lambda _: ("total",),
}
"""Names of the rows to which a run counts."""


def run_usage(entries: Iterable[Entry]) -> list[RunUsage]:
    """Return the usage of all runs that started, also of removed jobs, in order of their entries."""
    reducer = StateReducer()
    starters: dict[str, str] = {}
    runs: dict[str, RunUsage] = {}
    for entry in entries:
        changed = reducer.apply(entry)
        if isinstance(entry, Intent):
            starters.setdefault(entry.key, entry.holder.actor)
        if not changed or not isinstance(entry, OutcomeEntry | RefreshEntry):
            continue
        job, time = reducer.find_record(entry.address), entry.header.time
        recorded: list[Any] = (job.outputs.get("runs") or []) if job else []
        for raw in recorded:
            known = runs.get(raw["id"])
            if (
                raw.get("started_at") is None
                or raw.get("reused_from")
                or (known and known.ended and raw is not recorded[-1])
            ):
                continue
            run = RunRecord.from_json(raw)
            # A lost run has no end: the time when that was recorded counts.
            ended = None if run.status.live else run.ended_at or (known and known.ended) or time
            assert job is not None  # noqa: S101 (it has the run)
            usage = _usage(run, job, starters.get(run.key, entry.header.actor), reducer)
            # Job, nodes and prices stay those of its first entry.
            gpus = max(usage.gpus, known.gpus if known else 0)
            runs[run.id] = replace(known or usage, ended=ended, gpus=gpus)
        for usage in [] if job else [*runs.values()]:  # a deleted job's runs have ended
            if usage.job == entry.address and usage.ended is None:
                runs[usage.id] = replace(usage, ended=time)
    return list(runs.values())


def usage_rows(runs: Iterable[RunUsage], by: str, since: float, now: float) -> list[UsageRow]:
    """Sum up the usage between two times by a key of ``GROUPINGS``; most GPU hours first."""
    groups: dict[str, list[tuple[RunUsage, float]]] = {}
    for run in runs:
        if (hours := run.hours(since, now)) > 0:
            for name in GROUPINGS[by](run):
                groups.setdefault(name, []).append((run, hours))
    rows = [
        UsageRow(
            name,
            len(group),
            sum(hours * run.nodes for run, hours in group),
            sum(hours * run.gpus for run, hours in group),
            sum(hours * (run.price_per_hour or 0.0) for run, hours in group),
            sum(hours * run.nodes for run, hours in group if run.price_per_hour is None),
        )
        for name, group in groups.items()
    ]
    return sorted(rows, key=lambda row: (-row.gpu_hours, -row.node_hours, row.name))


def _usage(run: RunRecord, job: RecordedResource, user: str, reducer: StateReducer) -> RunUsage:
    spec = job.job_spec
    project = reducer.find_record(Address(Kind.PROJECT, spec.project))
    labels = (project.attributes.get("labels") if project else None) or {}
    gpus = [rank.gpus or spec.compute.gpus or 0 for rank in run.ranks]
    places = zip(run.ranks, gpus, strict=True)
    prices = [_price(reducer, rank.node, count) for rank, count in places]
    return RunUsage(
        id=run.id,
        job=job.address,
        project=spec.project,
        labels={**labels, **spec.labels},
        user=user.partition("@")[0],
        started=run.started_at or 0.0,
        ended=None,
        nodes=len(run.ranks),
        gpus=sum(gpus),
        price_per_hour=None if None in prices else sum(filter(None, prices)),
    )


def _price(reducer: StateReducer, node_id: str, gpus: int) -> float | None:
    """Return the hourly price of a node, or of the part that some of its GPUs are."""
    cluster = reducer.find_record(Address(Kind.CLUSTER, node_id.partition("/")[0]))
    if cluster is None:
        return None
    nodes: Iterable[Mapping[str, Any]] = cluster.outputs.get("nodes") or ()
    node = next((item for item in nodes if f"{item['cluster']}/{item['name']}" == node_id), {})
    price: float | None = node.get("price_per_hour")
    price = cluster.cluster_spec.price_per_hour if price is None else price
    total = node.get("gpus") or 0
    return price * min(1.0, gpus / total) if price is not None and gpus and total else price
