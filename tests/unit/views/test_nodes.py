"""Machines, for people and for programs: whose the runs on them are."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.views.test_json_forms import problems
from trainctl.model.reports import NodeReport
from trainctl.views.nodes import nodes_json, nodes_lines

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
