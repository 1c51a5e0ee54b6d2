"""Screens of nodes, orphaned machines and training caches."""

from __future__ import annotations

import csv
from dataclasses import asdict, replace
from typing import Any

from syrupy.assertion import SnapshotAssertion

from tests.golden.screens import text
from tests.unit.views.test_json import problems
from trainctl.model.reports import CacheClearResult, CachedFile, CacheUsage, NodeReport, NodeUsage
from trainctl.plugin_api.machines import Machine
from trainctl.plugin_api.provider import Node
from trainctl.resources.clusters import OrphanedMachine, cost_since
from trainctl.views.caches import cache_csv, cache_json, cache_lines
from trainctl.views.nodes import (
    MACHINE_COLUMNS,
    ended_lines,
    machine_row,
    machines_lines,
    node_rows,
    nodes_json,
    nodes_lines,
)
from trainctl.views.terminal.text import csv_text

MINE = {"address": "job.a", "number": 1, "project": "demo", "lineage": "mine"}
THEIRS = {**MINE, "lineage": "theirs"}
GPU = {"index": 0, "uuid": "GPU-0", "name": "H100", "memory_mib": 81559}
LISTING = {
    "id": "0", "source": "", "bytes": 1, "leased_by": ["job.a run 1 (abcdefg)"], "last_used": None,
    "projects": ["demo"],
}  # fmt: skip
INSPECTED: dict[str, Any] = {
    "gpus": [{**GPU, "claimed_by": "job.a run 1", "project": "demo", "used_by": None}],
    "cache": {"used": 1, "listings": [LISTING]},
    "runs": [MINE, THEIRS],
}
NODE = NodeReport("lab", "gpu-0", "10.0.0.1", "present", found=INSPECTED, lineage="mine")


def test_nodes(screen: SnapshotAssertion) -> None:
    """Runs of other states, recorded runs of an unreachable node, quarantine, cost and idle time."""
    unreachable = replace(NODE, status="unreachable", found=None, runs=(MINE,))
    usage = NodeUsage("ECC errors", 100.0, "me@here", 0.0, 2.5, 5.0, 7000.0)
    quarantined = replace(NODE, lineage="", usage=usage)
    free = NodeReport("lab", "gpu-1", "10.0.0.2", "present", found={})
    reports = [[NODE], [unreachable], [quarantined, free], [free]]
    assert text(*(nodes_lines(nodes, now=7200.0) for nodes in reports)) == screen
    documents = [nodes_json(nodes) for nodes in reports]
    assert [problems("nodes", document) for document in documents] == [[]] * 4
    assert [node["projects"] for document in documents[:2] for node in document["nodes"]] == [
        ["demo"] * 2, ["demo"],
    ]  # fmt: skip
    (first, second) = documents[2]["nodes"]
    assert (first["cost"], second["quarantine"]) == (5.0, None)
    (row, _) = node_rows(nodes_json([quarantined, free]))
    assert (row["gpus_claimed"], row["gpus_used"], row["quarantine"]) == (1, 0, "ECC errors")


def test_when_a_machine_ends(screen: SnapshotAssertion) -> None:
    """By itself when it is idle, or because its platform announces that."""
    shutdown = {"idle_since": 1.0, "seconds_left": 90.0, "taken_back": None, "at_risk": None}
    nodes = [
        replace(NODE, found={**INSPECTED, "idle_shutdown": {**shutdown, **changes}})
        for changes in (
            {},
            {"idle_since": None},
            {"seconds_left": None},
            {"idle_since": None, "taken_back": 3600.0, "at_risk": 1.0},
            {"idle_since": None, "at_risk": 1.0},
        )
    ]
    assert text(*(nodes_lines([node])[2:] for node in nodes)) == screen
    assert problems("nodes", nodes_json(nodes)) == []


def test_orphaned_machines(screen: SnapshotAssertion) -> None:
    """A machine of another state is marked, as that state may use it."""
    node = Node("lab", "lab-0", key="mine/k/lab-0", price_per_hour=0.5)
    ours = Machine(node, "i-1", "mine", "running", "small", "a", 3600.0)
    lost = Machine(Node("burst", "burst-0", key="theirs/k/burst-0"), "i-2", "theirs", "stopped")
    costs = [
        cost_since(each.launched_at, each.node.price_per_hour, 10800.0) for each in (ours, lost)
    ]
    orphans = [
        OrphanedMachine("rented", ours, of_this_state=True, cost=costs[0]),
        OrphanedMachine("rented", lost, of_this_state=False, cost=costs[1]),
    ]
    failed = [orphans[0], replace(orphans[1], error="access denied")]
    screens = [machines_lines(orphans, 10800.0), ended_lines(failed), machines_lines([], 0.0)]
    assert text(*screens) == screen
    rows = [machine_row(orphan) for orphan in orphans]
    assert problems("machines", {"machines": rows}) == []
    assert set(rows[0]) == set(MACHINE_COLUMNS)


FILES = (
    CachedFile("hub", 1_520_000_000, 1.7e9, 0o040755),
    CachedFile("hub/model.bin", 1_520_000_000, 1.6e9, 0o100644),
    CachedFile("a,b\n.txt", 0, 1e30, 0o100600),
    CachedFile("link", 0, 1.5e9, 0o120777),
)
CACHE = CacheUsage("cache.demo-lab", "lab/gpu-0", "/caches/demo", 1.75e9, 3, 1_520_000_000, FILES)


def test_training_cache(screen: SnapshotAssertion) -> None:
    """The table, and the hosted service's CSV, in which a path is one cell of one line."""
    table = cache_lines(CACHE, "abcdefg", "size", descending=True, width=None)
    documents = [
        cache_json(usage, "abcdefg", "filepath", descending=False) for usage in (CACHE, None)
    ]
    lines, empty = (csv_text(*cache_csv(document)).splitlines() for document in documents)
    assert text(table, lines, empty) == screen
    assert len(list(csv.reader(lines))) == 5


def test_a_cache_as_json() -> None:
    """Timestamp, project, totals and files in each order of the service; totals of nothing; a clear."""

    def order(sort: str, *, descending: bool = False) -> list[str]:
        files = cache_json(CACHE, "abcdefg", sort, descending=descending)["files"]
        return [file["path"] for file in files]

    full = cache_json(CACHE, "abcdefg", "size", descending=True)
    empty = cache_json(None, "abcdefg", "size", descending=True)
    cleared = CacheClearResult("/caches/demo", 1, 2, 0, dry_run=True)
    assert [problems("cache", value) for value in (full, empty, asdict(cleared))] == [[]] * 3
    assert (full["total_files"], full["total_size_human_readable"]) == (3, "1.52 GB")
    assert (empty["timestamp"], empty["files"]) == (None, [])
    assert order("filepath") == ["a,b\n.txt", "hub", "hub/model.bin", "link"]
    assert order("size", descending=True) == ["hub/model.bin", "hub", "link", "a,b\n.txt"]
    assert order("modified")[0] == "link"
    assert order("type") == ["hub", "a,b\n.txt", "hub/model.bin", "link"]
    assert order("permissions")[0] == "a,b\n.txt"
