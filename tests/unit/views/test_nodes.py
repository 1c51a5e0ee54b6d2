"""Machines, for people and for programs: whose the runs on them are."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.views.test_json_forms import problems
from trainctl.model.reports import NodeReport, NodeUsage
from trainctl.views.nodes import node_rows, nodes_json, nodes_lines

MINE = {"address": "job.a", "number": 1, "project": "demo", "lineage": "mine"}
THEIRS = {**MINE, "lineage": "theirs"}
GPU = {"index": 0, "uuid": "GPU-0", "name": "H100", "memory_mib": 81559}
FOUND: dict[str, Any] = {
    "gpus": [{**GPU, "claimed_by": "job.a run 1", "project": "demo", "used_by": None}],
    "cache": {
        "used": 1,
        "listings": [
            {"id": "0", "source": "", "bytes": 1, "leased_by": ["job.a run 1 (abcdefg)"]}
            | {"last_used": None, "projects": ["demo"]}
        ],
    },
    "runs": [MINE, THEIRS],
}


def test_whose_a_run_is_stands_where_it_is_another_projects() -> None:
    """Also where both have one name: it is another state's, which no command here reaches."""
    asked = NodeReport("lab", "gpu-0", "10.0.0.1", "present", found=FOUND, lineage="mine")

    assert nodes_lines([asked])[1].endswith("job.a run 1, job.a run 1 of demo")
    (told,) = nodes_json([asked])["nodes"]
    assert (told["runs"], told["projects"]) == (["job.a run 1"] * 2, ["demo"] * 2)
    assert problems("nodes", nodes_json([asked])) == []


def test_runs_of_a_node_that_is_away_are_the_recorded_ones() -> None:
    """One's own, so that nobody is named for them."""
    away = NodeReport("lab", "gpu-0", "10.0.0.1", "unreachable", runs=(MINE,), lineage="mine")

    assert nodes_lines([away])[1].endswith("job.a run 1")
    assert nodes_json([away])["nodes"][0]["projects"] == ["demo"]
    assert problems("nodes", nodes_json([away])) == []


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "lab/gpu-0: idle, ends itself in 1m 30s"),
        ({"idle_since": None}, ""),
        (
            {"seconds_left": None},
            "lab/gpu-0: warning: its watcher doesn't run, so that it doesn't end itself when idle",
        ),
        (
            {"idle_since": None, "taken_back": 3600.0, "at_risk": 1.0},
            "lab/gpu-0: the platform takes the machine back at 01:00 UTC",
        ),
        (
            {"idle_since": None, "at_risk": 1.0},
            "lab/gpu-0: warning: the platform may take the machine back soon",
        ),
    ],
)
def test_when_a_machine_ends_itself_is_shown(changes: dict[str, Any], line: str) -> None:
    """And what its platform announces."""
    shutdown = {"idle_since": 1.0, "seconds_left": 90.0, "taken_back": None, "at_risk": None}
    found = {**FOUND, "idle_shutdown": {**shutdown, **changes}}
    report = NodeReport("lab", "gpu-0", "10.0.0.1", "present", found=found, lineage="mine")

    assert nodes_lines([report])[2:] == ([line] if line else [])
    assert problems("nodes", nodes_json([report])) == []


def test_quarantine_cost_and_idle_time_are_shown() -> None:
    """A node without a price has a dash; columns without any value are left out."""
    usage = NodeUsage("ECC errors", 100.0, "me@here", 0.0, 2.5, 5.0, 7000.0)
    barred = NodeReport("lab", "gpu-0", "10.0.0.1", "present", found=FOUND, usage=usage)
    free = NodeReport("lab", "gpu-1", "10.0.0.2", "present", found={})

    head, first, second, _, reason = nodes_lines([barred, free], now=7200.0)
    assert head.split() == ["NODE", "STATE", "GPUS", "CLAIMED", "USED", "FREE", "CACHED", "COST", "IDLE", "RUNS"]  # fmt: skip
    assert first.split()[:9] == ["lab/gpu-0", "quarantined", "1", "×", "H100", "1", "0", "0", "1"]
    assert "5.00  3m 20s" in first
    assert second.split() == ["lab/gpu-1", "present", "-"]
    assert reason == "lab/gpu-0 is quarantined: ECC errors"
    assert "COST" not in nodes_lines([free])[0]
    form, other = nodes_json([barred, free])["nodes"]
    assert form["quarantine"] == {
        "reason": "ECC errors", "since": "1970-01-01T00:01:40.000Z", "by": "me@here",
    }  # fmt: skip
    assert (form["cost"], form["idle_since"], other["quarantine"]) == (5.0, "1970-01-01T01:56:40.000Z", None)  # fmt: skip
    assert problems("nodes", nodes_json([barred, free])) == []
    (row, _) = node_rows([barred, free])
    assert (row["gpus_claimed"], row["gpus_used"], row["quarantine"]) == (1, 0, "ECC errors")
