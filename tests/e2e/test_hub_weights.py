"""Weights of the Hub, from a manifest to jobs that read them, and to a new revision."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from tests.support.projects.project import ProjectHarness
from tests.support.projects.weights_project import JOB, SMALL, write_weights_manifest
from tests.support.servers.hub import HttpFault, Hub

SECOND = JOB.replace("jobs:\n", "").replace("sft", "second")
MOVED = {**SMALL, "config.json": b'{"layers": 3}', "extra.py": b"1"}


@pytest.fixture
def work(work: ProjectHarness) -> ProjectHarness:
    """A project with the repository's weights and a job that reads them."""
    write_weights_manifest(work, "hf://acme/model", JOB)
    return work


def requested_files(hub: Hub) -> Counter[str]:
    """How often each file was requested since the last call."""
    paths = [request.path.partition("/resolve/")[2].partition("/")[2] for request in hub.seen]
    hub.seen.clear()
    return Counter(filter(None, paths))


def locked_revision(work: ProjectHarness) -> str:
    (row,) = json.loads((work.directory / "trainctl.lock").read_text())["sources"]
    assert row["source"] == "hf://acme/model"
    return str(row["revision"])


def test_a_file_is_fetched_once_until_its_revision_changes(work: ProjectHarness, hub: Hub) -> None:
    """A plan requests metadata only, a second job and a moved branch nothing, an upgrade what changed."""
    size = sum(map(len, SMALL.values()))
    planned = work.json("plan")
    (row,) = planned["weights"]
    (delivery,) = planned["deliveries"]
    assert (row["files"], row["bytes"], row["bytes_upstream"]) == (len(SMALL), size, size)
    assert delivery["bytes_by_tier"]["upstream"] == size
    assert requested_files(hub) == {}

    work.run("apply", "--auto-approve", "--wait")
    assert work.run("logs", "sft").stdout == '{"hidden_size": 8}\n'
    assert requested_files(hub) == dict.fromkeys(SMALL, 1)
    assert locked_revision(work) == row["revision"]
    (mirrored,) = work.json("mirror", "list")["sources"]
    assert (mirrored["revision"], mirrored["bytes"]) == (row["revision"], size)

    write_weights_manifest(work, "hf://acme/model", JOB + SECOND)
    moved = hub.add("acme/model", MOVED, title="Add")
    (planned,) = work.json("plan")["deliveries"]
    assert (planned["job"], planned["bytes_by_tier"]["node"]) == ("job.second", size)
    work.run("apply", "--auto-approve", "--wait")
    assert work.run("logs", "second").stdout == '{"hidden_size": 8}\n'
    assert requested_files(hub) == {}

    upgraded = work.json("plan", "--upgrade")
    changes = {change["address"]: change for change in upgraded["resource_changes"]}
    assert changes["weights.model"]["change"]["before"]["revision"] == row["revision"]
    assert changes["weights.model"]["change"]["after"]["revision"] == moved
    assert changes["job.sft"]["change"]["actions"] == ["no-op"]
    assert changes["job.sft"]["action_reason"] == "weights_changed"
    work.run("apply", "--auto-approve", "--upgrade", "--wait")
    assert "model.safetensors" not in requested_files(hub)
    assert locked_revision(work) == moved
    assert work.actions() == {}


def test_a_new_revision_is_described(work: ProjectHarness, hub: Hub) -> None:
    """The plan names what changed inside; a saved one does so without the Hub; a failure leaves the plan as it is."""
    write_weights_manifest(work, "hf://acme/model")
    work.run("apply", "--auto-approve")
    hub.add("acme/model", MOVED, title="Add")
    offline = work.json("plan", "--upgrade", "--offline")
    (repo,) = hub.repos.values()
    hub.faults = [HttpFault("status", f"/tree/{repo.history[1]['id']}")]
    noted = work.json("plan", "--upgrade")
    text = work.run("plan", "--upgrade", "--out", "p.bin").stdout
    hub.faults = [HttpFault("status", "", times=999)]
    shown = work.json("show", "p.bin")

    assert offline["contents"] == []
    (diff,) = noted["contents"]
    assert (diff["groups"], len(diff["notes"])) == ([], 1)
    assert noted["plan_digest"] == shown["plan_digest"]
    (diff,) = shown["contents"]
    assert diff["notes"] == []
    assert diff["alerts"] == {"added Python code": "extra.py"}
    assert [group["title"] for group in diff["groups"]] == ["commits", "files", "config.json"]
    assert work.run("show", "p.bin").stdout == text
    assert "Review in weights:" in text
