"""A plan that changes the revision of weights."""

from __future__ import annotations

from tests.support.projects.project import ProjectHarness
from tests.support.projects.weights_project import SMALL, connect, write_weights_manifest
from tests.support.servers.hub import HttpFault, serve


def test_a_new_revision_is_described(fresh: ProjectHarness) -> None:
    """The plan names what changed inside; a saved one does so without the Hub; a failure leaves the plan as it is."""
    with serve() as hub:
        connect(fresh, hub)
        hub.add("acme/model", SMALL)
        write_weights_manifest(fresh, "hf://acme/model")
        fresh.run("apply", "--auto-approve")
        after = {**SMALL, "config.json": b'{"layers": 3}', "extra.py": b"1"}
        hub.add("acme/model", after, title="Add")
        offline = fresh.json("plan", "--upgrade", "--offline")
        (repo,) = hub.repos.values()
        hub.faults = [HttpFault("status", f"/tree/{repo.history[1]['id']}")]
        noted = fresh.json("plan", "--upgrade")
        text = fresh.run("plan", "--upgrade", "--out", "p.bin").stdout
    shown = fresh.json("show", "p.bin")

    assert offline["contents"] == []
    (diff,) = noted["contents"]
    assert (diff["groups"], len(diff["notes"])) == ([], 1)
    assert noted["plan_digest"] == shown["plan_digest"]
    (diff,) = shown["contents"]
    assert diff["notes"] == []
    assert diff["alerts"] == {"added Python code": "extra.py"}
    assert [group["title"] for group in diff["groups"]] == ["commits", "files", "config.json"]
    assert fresh.run("show", "p.bin").stdout == text
    assert "Review in weights:" in text
