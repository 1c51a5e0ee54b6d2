"""Two jobs that name one source: it comes once, lies on a node once, and a plan says so."""

from __future__ import annotations

import json
import os

import pytest

from tests.support.projects.project import ProjectHarness
from tests.support.tiers import one_day_in

pytestmark = one_day_in(4)

SIZE = 400_000
BOX = {
    "provider": "local",
    "cache": {"node": {"size": "600kB"}},
}


@pytest.fixture
def twice(fresh: ProjectHarness) -> ProjectHarness:
    """Room for one copy, not for two."""
    job = {"code": "./src", "weights": ["file:./w"], "runtime": {"start_commands": ["cat */m* | wc -c"]}}  # fmt: skip
    manifest = {"project": {"name": "twice"}, "clusters": {"box": BOX}, "jobs": {"a": job, "b": job}}  # fmt: skip
    fresh.write({"trainctl.yaml": json.dumps(manifest), "w/m.bin": os.urandom(SIZE), "src/x": ""})
    return fresh


def test_a_plan_counts_what_two_jobs_name_once(twice: ProjectHarness) -> None:
    """In what its node gets; a node with room for it is not too small."""
    plan = twice.json("plan", "--format", "json")

    assert [one["summary"] for one in plan["diagnostics"] if one["code"] != "no-gpus"] == []
    assert "box/box-0: 400 kB to transfer, 600 kB free." in twice.run("plan").stdout


def test_only_who_brought_it_is_credited(twice: ProjectHarness) -> None:
    """By ``status`` and ``history``, and in the rate by which forecasts go."""
    twice.run("apply", "--auto-approve", "--wait")

    told = twice.json("status", "--format", "json")["jobs"]
    mirrored = [row["bytes"] for job in told for row in job["mirrored"]]
    delivered = [sum(row["bytes_by_tier"].values()) - row["bytes_by_tier"]["node"] for job in told for row in job["deliveries"]]  # fmt: skip
    assert (sorted(mirrored), sorted(delivered)) == ([0, SIZE], [0, SIZE])
