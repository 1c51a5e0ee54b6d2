"""GPU hours and cost of runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.support.memory_log import MemoryLog
from tests.support.storage.ledgers import SFT, FakeClock, begin, elsewhere, ledger_on
from trainctl.ledger.ledger import Ledger
from trainctl.ledger.state import RecordedResource
from trainctl.ledger.usage import RunUsage, UsageRow, run_usage, usage_rows
from trainctl.model.address import Address

HOUR = 3600.0
CLUSTER, PROJECT = Address.parse("cluster.lab"), Address.parse("project.llm")
COMPLETED, RUNNING = "TRAINING_JOB_COMPLETED", "TRAINING_JOB_RUNNING"


def run(name: str, start: float | None, end: float | None = None, **more: Any) -> dict[str, Any]:
    """A run of two ranks."""
    status = RUNNING if end is None else COMPLETED
    ranks = [
        {"rank": rank, "node": f"lab/n{rank}", "status": status, **more.pop("rank", {})}
        for rank in (0, 1)
    ]
    return {
        "id": name, "number": 1, "key": f"key-{name}", "status": status, "ranks": ranks,
        "started_at": start, "ended_at": end, **more,
    }  # fmt: skip


def job(*runs: dict[str, Any], **compute: Any) -> RecordedResource:
    attributes = {
        "project": "llm", "cluster": "lab", "labels": {"kind": "sft"},
        "compute": {"node_count": 2, **compute}, "runtime": {"start_commands": ["true"]},
    }  # fmt: skip
    return RecordedResource(SFT, "local", attributes, {"runs": list(runs)})


def ledger_with_prices(clock: FakeClock, who: str = "ann") -> Ledger:
    """A state with a project and a cluster of a node with 8 GPUs for 4.0 and one of unknown GPUs for 1.0."""
    ledger = ledger_on(MemoryLog(), clock, holder=elsewhere(who))
    nodes = [
        {"cluster": "lab", "name": "n0", "gpus": 8, "price_per_hour": 4.0},
        {"cluster": "lab", "name": "n1", "gpus": None, "price_per_hour": None},
    ]
    ledger.finish(
        begin(ledger, CLUSTER),
        RecordedResource(
            CLUSTER, "local", {"provider": "local", "price_per_hour": 1.0}, {"nodes": nodes}
        ),
    )
    labels = {"labels": {"team": "nlp", "kind": "other"}}
    ledger.finish(
        begin(ledger, PROJECT), RecordedResource(PROJECT, "trainctl", {"name": "llm", **labels}, {})
    )
    return ledger


def test_a_run_counts_from_start_to_end_with_its_gpus_and_prices() -> None:
    """Of a shared node the part of its GPUs is paid; the user is the one who started it."""
    ledger = ledger_with_prices(FakeClock())
    ledger.finish(begin(ledger, key="key-a"), job(run("a", 0.0), accelerator="H100:2"))
    ledger.observe(SFT, {"run": run("a", 0.0, 2 * HOUR)})

    (used,) = run_usage(ledger.entries())

    assert (used.project, used.user, used.labels) == ("llm", "ann", {"team": "nlp", "kind": "sft"})
    (row,) = usage_rows([used], "user", 0.0, 9 * HOUR)
    assert row == UsageRow("ann", 1, 4.0, 8.0, 2 * (4.0 * 2 / 8 + 1.0), 0.0)
    assert [row.name for row in usage_rows([used], "label", 0.0, 9 * HOUR)] == [
        "kind=sft",
        "team=nlp",
    ]


def test_only_the_period_counts() -> None:
    """A live run counts until now; one that never started and one that ended before not at all."""
    ledger = ledger_with_prices(FakeClock())
    runs = [run("a", 0.0, HOUR), run("b", 2 * HOUR), run("c", None)]
    ledger.finish(begin(ledger), job(*runs, accelerator="H100"))
    rows = usage_rows(run_usage(ledger.entries()), "total", 3 * HOUR, 5 * HOUR)
    assert [(row.runs, row.node_hours, row.gpu_hours) for row in rows] == [(1, 4.0, 4.0)]
    assert usage_rows(run_usage(ledger.entries()), "total", 6 * HOUR, 5 * HOUR) == []


def test_claimed_gpus_count_where_none_are_declared() -> None:
    """All GPUs of a node is what the node says; a later job doesn't change an earlier run."""
    ledger = ledger_with_prices(FakeClock())
    ledger.finish(begin(ledger), job(run("a", 0.0)))
    ended = run("a", 0.0, HOUR)
    ended["ranks"][0]["gpus"] = ended["ranks"][1]["gpus"] = 8
    ledger.observe(SFT, {"run": ended})
    ledger.finish(begin(ledger), job(ended, run("b", HOUR, 2 * HOUR), accelerator="H100"))
    assert [(used.id, used.gpus) for used in run_usage(ledger.entries())] == [("a", 16), ("b", 2)]


def test_runs_of_deleted_jobs_count_until_then() -> None:
    """Also a lost run: until that was recorded."""
    clock = FakeClock(0.0)
    ledger = ledger_with_prices(clock)
    lost = {**run("a", 0.0), "status": "TRAINING_JOB_LOST"}
    clock.at = HOUR
    ledger.finish(begin(ledger), job(lost, run("b", HOUR)))
    clock.at = 2 * HOUR
    ledger.finish(begin(ledger), None)
    assert [(used.id, used.ended) for used in run_usage(ledger.entries())] == [
        ("a", HOUR),
        ("b", 2 * HOUR),
    ]


def test_nodes_without_a_price_are_told() -> None:
    priced = RunUsage("a", SFT, "llm", {}, "ann", 0.0, HOUR, 2, 16, 3.0)
    free = replace(priced, id="b", nodes=1, gpus=8, price_per_hour=None)
    assert usage_rows([priced, free], "label", 0.0, HOUR) == [UsageRow("", 2, 3.0, 24.0, 3.0, 1.0)]


def test_rows_take_time_by_runs_not_by_runs_times_rows() -> None:
    """A sweep with a label by seed has a row for each run."""
    compared = []

    class User(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            compared.append(other)
            return super().__eq__(other)

    runs = [
        RunUsage(f"r{at}", SFT, "llm", {}, User(f"u{at}"), 0.0, HOUR, 1, at, None)
        for at in range(50)
    ]
    assert len(usage_rows(runs, "user", 0.0, HOUR)) == 50
    assert len(compared) <= 100
