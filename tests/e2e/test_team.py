"""A team's projects in one repository: a shared file, states of all, usage."""

from __future__ import annotations

import csv
import shutil

import pytest
from jsonschema import Draft202012Validator

from tests.support.projects.project import ProjectHarness
from trainctl_schemas import schema

pytestmark = pytest.mark.integration

SHARED = "clusters: {lab: {provider: local, price_per_hour: 3.6}, spare: {provider: local}}\n"
MANIFEST = """\
extends: ../shared/defaults.yaml
project: {name: NAME, labels: {team: nlp}}
jobs: {train: {cluster: lab, runtime: {start_commands: [sleep 0.2]}}}
"""
APPLY = ("apply", "--auto-approve", "--wait")


def test_projects_of_a_team(fresh: ProjectHarness) -> None:
    """Two projects share a cluster; their jobs, nodes and usage are listed together, also after one was removed."""
    fresh.write({"shared/defaults.yaml": SHARED, ".git/HEAD": ""})
    for name in ("sft", "eval"):
        fresh.write({f"{name}/trainctl.yaml": MANIFEST.replace("NAME", name)})
        fresh.run("-C", name, *APPLY)
    assert fresh.run("-C", "sft", "plan", "--detailed-exitcode").stdout.startswith("No changes")

    status = fresh.json("status", "--all")
    assert not list(Draft202012Validator(schema("status")).iter_errors(status))
    jobs = status["jobs"]
    states = [
        f"{(fresh.directory / name / '.trainctl/state').as_uri()}" for name in ("eval", "sft")
    ]
    assert [job["state"] for job in jobs] == states
    below = fresh.directory.as_uri()
    assert {job["state"] for job in fresh.json("--state", below, "status", "--all")["jobs"]} == set(
        states
    )
    assert [node["name"] for node in fresh.json("nodes", "--all")["nodes"]] == ["lab-0"]

    usage = fresh.json("usage", "--all", "--by", "label", "--since", "1d")
    assert not list(Draft202012Validator(schema("usage")).iter_errors(usage))
    assert [(row["name"], row["runs"]) for row in usage["rows"]] == [("team=nlp", 2)]
    assert usage["total"]["cost"] == pytest.approx(usage["total"]["node_hours"] * 3.6, abs=1e-3)
    rows = csv.DictReader(fresh.run("usage", "--all", "--format", "csv").stdout.splitlines())
    assert sorted(row["name"] for row in rows) == ["eval", "sft"]
    assert "No runs" in fresh.run("usage", "--all", "--since", "0s").stdout

    (fresh.directory / "eval/.trainctl/state/log/000000000000.json").write_text("{}")
    broken = fresh.run("status", "--all", code=1)
    assert "state-corrupt" in broken.stderr
    assert "job.train" in broken.stdout
    shutil.rmtree(fresh.directory / "eval")
    assert len(fresh.json("status", "--all")["jobs"]) == 1
