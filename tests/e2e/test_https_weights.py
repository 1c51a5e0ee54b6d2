"""Weights of a web server, from a manifest to a job that reads them."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator

import pytest

from tests.support.projects.project import ProjectHarness
from tests.support.projects.weights_project import JOB, assert_nothing_half_done
from tests.support.servers.certificate_authority import authority
from tests.support.servers.hub import FaultyHandler, listen
from tests.support.servers.web_server import MODIFIED, NOTHING, WebServer, serve_web
from tests.support.storage.weights_data import noise

CONTENT = noise(300_000)
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def web() -> Iterator[WebServer]:
    with serve_web(authority().server) as running:
        running.put("/model.bin", CONTENT)
        yield running


@pytest.fixture
def work(fresh: ProjectHarness, web: WebServer) -> ProjectHarness:
    """A project with the file, and a job that reads it."""
    fresh.variables["SSL_CERT_FILE"] = str(authority().certificates)
    write_manifest(fresh, web)
    return fresh


def write_manifest(work: ProjectHarness, web: WebServer, more: str = "") -> None:
    source = f'  model:\n    source: "{web.url}/model.bin"\n    mount_location: /app/models/tiny\n'
    job = JOB.replace("cat", "sha256sum").replace("config.json", "model.bin")
    work.write({"trainctl.yaml": f"project: {{name: demo}}\nweights:\n{source}{more}{job}"})


def run_all(work: ProjectHarness) -> None:
    work.run("apply", "--auto-approve", "--wait")


def test_a_job_reads_a_file_of_a_web_server(work: ProjectHarness, web: WebServer) -> None:
    """One HEAD plans it, one GET fetches it; the second plan sends a HEAD and has no changes."""
    (row,) = work.json("plan")["weights"]
    assert web.asked == ["HEAD /model.bin"]
    tag = web.pages["/model.bin"].identity("strong")["ETag"]
    assert (row["revision"], row["files"], row["bytes"]) == (f"etag:{tag}", 1, len(CONTENT))
    run_all(work)
    assert work.run("logs", "sft").stdout.split()[0] == DIGEST
    (locked,) = json.loads((work.directory / "trainctl.lock").read_text())["sources"]
    assert (locked["source"], locked["revision"]) == (f"{web.url}/model.bin", f"etag:{tag}")
    assert web.asked == ["HEAD /model.bin", "HEAD /model.bin", "GET /model.bin"]
    web.forget()
    assert work.run("plan", "--detailed-exitcode").stderr == ""
    assert web.asked == ["HEAD /model.bin"]


def test_many_sources_are_asked_at_once(fresh: ProjectHarness) -> None:
    """None is answered before 32 are asked; ``--parallelism`` is for hosts."""
    together = threading.Barrier(32)

    class Handler(FaultyHandler):
        def do_HEAD(self) -> None:  # noqa: N802  the name is the library's
            together.wait(20)
            self.answer(200, b"x")

    fresh.variables["SSL_CERT_FILE"] = str(authority().certificates)
    with listen(Handler, authority().server) as url:
        weights = {f"w{number}": {"source": f"{url}/{number}.bin"} for number in range(32)}
        document = {"project": {"name": "demo"}, "weights": weights}
        fresh.write({"trainctl.yaml": json.dumps(document)})
        assert len(fresh.json("plan", "--parallelism", "1")["weights"]) == 32


def test_declared_content_is_pinned_and_verified(work: ProjectHarness, web: WebServer) -> None:
    """The digest is the revision whatever the server reports, a size or none; other content fails the apply."""
    write_manifest(work, web, f"    sha256: '{'0' * 64}'\n")
    refused = work.run("apply", "--auto-approve", code=12)
    assert "model.bin differs from the digest declared" in refused.stderr
    assert f"got {DIGEST}. The file was not stored" in refused.stderr
    assert "job.sft: skipped, as weights.model failed" in refused.stdout
    assert_nothing_half_done(work)

    web.tells = NOTHING
    write_manifest(work, web, f"    sha256: {DIGEST.upper()}\n")
    planned = work.json("plan")
    assert (planned["weights"][0]["revision"], planned["diagnostics"]) == (f"sha256:{DIGEST}", [])
    web.tells_length = False
    planned = work.json("plan")
    assert planned["weights"][0]["bytes"] is None
    assert "unknown" in work.run("plan").stdout
    run_all(work)
    assert work.run("logs", "sft").stdout.split()[0] == DIGEST
    assert work.run("plan", "--detailed-exitcode").stderr == ""
    web.tells, web.tells_length = MODIFIED, True
    assert work.run("plan", "--detailed-exitcode").stderr == ""


def test_a_change_between_plan_and_apply_is_refused(work: ProjectHarness, web: WebServer) -> None:
    """The error names both revisions; the refused plan leaves the lock file as it is."""
    lock = work.directory / "trainctl.lock"
    work.run("plan", "--out", "first.plan")
    before = web.pages["/model.bin"].identity("strong")["ETag"]
    web.put("/model.bin", CONTENT + b"more")
    after = web.pages["/model.bin"].identity("strong")["ETag"]
    refused = work.run("apply", "first.plan", code=12).stderr
    assert f"{web.url}/model.bin has changed since the plan was made" in refused
    assert f"It was at etag:{before} and is now at etag:{after}." in refused
    assert "changed: model.bin" in refused
    assert_nothing_half_done(work)
    assert not lock.exists()

    run_all(work)
    locked = lock.read_text()
    web.put("/model.bin", CONTENT)
    work.run("plan", "--upgrade", "--out", "second.plan")
    web.put("/model.bin", CONTENT[::-1])
    assert "has changed since" in work.run("apply", "second.plan", code=None).stderr
    assert lock.read_text() == locked
