"""Weights of a web server, from a manifest to a job that reads them; and the words for what such servers do wrong."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

import pytest

from tests.support.projects.project import ProjectHarness
from tests.support.projects.weights_project import (
    ROOT,
    apply,
    assert_nothing_half_done,
    assert_recovers,
    recorded_waits,
    waits_file,
)
from tests.support.servers.certificate_authority import authority
from tests.support.servers.hub import HttpFault
from tests.support.servers.web_server import MODIFIED, NOTHING, WebServer, serve_web
from tests.support.storage.weights_data import noise
from tests.support.tiers import one_day_in

CHUNK = 16 * 2**20
SMALL = noise(300_000)
DIGEST = hashlib.sha256(SMALL).hexdigest()
MANIFEST = """\
project: {name: demo}
weights:
  model:
    source: "SOURCE"
    mount_location: /app/models/tiny
MORE
jobs:
  sft:
    weights: [model]
    runtime: {start_commands: ["sha256sum /app/models/tiny/model.bin"]}
"""


@pytest.fixture
def web() -> Iterator[WebServer]:
    """A server with one file."""
    with serve_web(authority().server) as running:
        running.put("/model.bin", SMALL)
        yield running


@pytest.fixture
def work(fresh: ProjectHarness, web: WebServer) -> ProjectHarness:
    """A project that wants the file, and a job that reads it."""
    fresh.variables |= {
        "SSL_CERT_FILE": str(authority().certificates),
        "PYTHONPATH": str(ROOT),
        "WAITS": str(waits_file(fresh)),
    }
    wants(fresh, web)
    return fresh


def wants(work: ProjectHarness, web: WebServer, more: str = "") -> None:
    text = MANIFEST.replace("SOURCE", f"{web.url}/model.bin").replace("MORE\n", more)
    work.write({"trainctl.yaml": text})


def run_all(work: ProjectHarness) -> None:
    work.run("apply", "--auto-approve", "--wait")


def test_a_job_reads_what_a_web_server_has(work: ProjectHarness, web: WebServer) -> None:
    """Planned by one HEAD, fetched by one GET, read by the job; the second plan asks once more and does nothing."""
    planned = work.json("plan")
    assert web.asked == ["HEAD /model.bin"]
    (row,) = planned["weights"]
    tag = web.pages["/model.bin"].identity("strong")["ETag"]
    assert (row["revision"], row["files"], row["bytes"]) == (f"etag:{tag}", 1, len(SMALL))
    run_all(work)
    assert work.run("logs", "sft").stdout.split()[0] == DIGEST
    (locked,) = json.loads((work.directory / "trainctl.lock").read_text())["sources"]
    assert (locked["source"], locked["revision"]) == (f"{web.url}/model.bin", f"etag:{tag}")
    assert web.asked == ["HEAD /model.bin", "HEAD /model.bin", "GET /model.bin"]
    web.forget()
    assert work.run("plan", "--detailed-exitcode").stderr == ""
    assert web.asked == ["HEAD /model.bin"]


@one_day_in(5)
def test_declared_content_is_pinned_and_verified(work: ProjectHarness, web: WebServer) -> None:
    """Its digest is the revision whatever the server says; the plan warns of nothing, and nothing moves it."""
    web.tells = NOTHING
    wants(work, web, f"    sha256: {DIGEST.upper()}\n")
    planned = work.json("plan")
    assert (planned["weights"][0]["revision"], planned["diagnostics"]) == (f"sha256:{DIGEST}", [])
    run_all(work)
    web.tells = MODIFIED
    assert work.run("plan", "--detailed-exitcode").stderr == ""


@one_day_in(4)
def test_other_content_than_declared_is_not_kept(work: ProjectHarness, web: WebServer) -> None:
    """A wrong digest fails the apply with both digests; the job is not begun, and nothing half-done stays."""
    wrong = "0" * 64
    wants(work, web, f"    sha256: '{wrong}'\n")
    done = apply(work, 12)
    assert "model.bin differs from the digest declared" in done.stderr
    assert f"{wrong}, got {DIGEST}. The file was not stored" in done.stderr
    assert "job.sft: skipped, as weights.model failed" in done.stdout
    assert_nothing_half_done(work)
    assert list(work.mirror.glob("blobs/*/*/*")) == []
    wants(work, web, f"    sha256: {DIGEST}\n")
    assert_recovers(work, {"model.bin": SMALL})


@one_day_in(5)
def test_a_change_between_plan_and_apply_is_refused(work: ProjectHarness, web: WebServer) -> None:
    """A saved plan is for what was reviewed: the error says what the file was and what it is now."""
    work.run("plan", "--out", "saved.plan")
    before = web.pages["/model.bin"].identity("strong")["ETag"]
    web.put("/model.bin", SMALL + b"more")
    after = web.pages["/model.bin"].identity("strong")["ETag"]
    done = work.run("apply", "saved.plan", code=12)
    assert f"{web.url}/model.bin has changed since the plan was made" in done.stderr
    assert f"It was at etag:{before} and is now at etag:{after}." in done.stderr
    assert "changed: model.bin" in done.stderr
    assert_nothing_half_done(work)


@one_day_in(7)
def test_a_source_that_moved_stays_until_upgrade(work: ProjectHarness, web: WebServer) -> None:
    """The locked version is mirrored: it stays in use, with a warning, until somebody upgrades; unmirrored it is an error."""
    run_all(work)
    web.put("/model.bin", SMALL[::-1])
    kept = work.run("plan", "--detailed-exitcode")
    assert "has changed upstream since it was locked" in kept.stderr
    assert work.actions("--upgrade") == {"weights.model": ["update"]}
    work.run("apply", "--auto-approve", "--upgrade", "--wait")
    assert work.run("plan", "--detailed-exitcode").stderr == ""
    web.put("/model.bin", SMALL)
    for listing in work.mirror.glob("listings/*"):
        listing.unlink()
    lost = work.run("plan", code=1)
    assert "error: weights.model: " in lost.stderr
    assert "pinned in trainctl.lock is no longer available upstream" in lost.stderr


@one_day_in(5)
def test_a_server_that_tells_nothing_is_warned_of(work: ProjectHarness, web: WebServer) -> None:
    """The plan says what can't be noticed and what to declare; it works all the same."""
    web.tells = NOTHING
    done = work.run("plan")
    assert "reports neither ETag nor Last-Modified" in done.stderr
    assert "Declare a sha256" in done.stderr
    run_all(work)
    assert work.run("logs", "sft").stdout.split()[0] == DIGEST


@one_day_in(5)
def test_a_transfer_goes_on_from_the_last_good_chunk(work: ProjectHarness, web: WebServer) -> None:
    """What was verified before a cut is asked for no second time by the next apply."""
    big = noise(2 * CHUNK + 54321)
    web.put("/model.bin", big)
    web.faults = [HttpFault("cut", "/model.bin", 999, at=CHUNK + 7_000_000)]
    apply(work, 12)
    assert_nothing_half_done(work)
    web.faults.clear()
    web.forget()
    assert_recovers(work, {"model.bin": big})
    assert web.asked == ["HEAD /model.bin", "GET /model.bin"]
    assert web.seen[-1].headers["Range"] == f"bytes={CHUNK}-"
    assert web.seen[-1].headers["If-Range"] == web.pages["/model.bin"].identity("strong")["ETag"]


@one_day_in(5)
def test_a_busy_server_is_waited_for(work: ProjectHarness, web: WebServer) -> None:
    """A 429 with Retry-After is waited out and said, and then the apply succeeds by itself."""
    refusal = HttpFault("status", "/model.bin", status=429, headers={"Retry-After": "7"})
    web.faults = [refusal]
    done = apply(work, 0)
    (seconds,) = recorded_waits(work)
    assert 7 <= seconds < 9
    assert "(429); retrying in" in done.stderr


def test_a_secret_is_not_sent_to_a_host_that_only_the_manifest_names(
    work: ProjectHarness, web: WebServer
) -> None:
    """plan and apply end with 13 and say why and what is open; the server was asked nothing, and saw no secret."""
    work.variables["CORP_TOKEN"] = web.token
    wants(work, web, "    auth_secret_name: corp\nsecrets: {corp: {from: env, name: CORP_TOKEN}}\n")
    planned = work.run("plan", code=13)
    host = web.url.removeprefix("https://")
    assert f"error: weights.model: secret 'corp' is not sent to {host}" in planned.stderr
    assert f'hosts = ["{host}"]' in planned.stderr
    apply(work, 13)
    work.run("validate")
    assert web.asked == []


@one_day_in(5)
def test_an_unknown_authority_is_explained(work: ProjectHarness, web: WebServer) -> None:
    """A certificate that nothing here vouches for is an error that names the variable to set."""
    del work.variables["SSL_CERT_FILE"]
    done = work.run("plan", code=1)
    assert "the certificate of 127.0.0.1 is not trusted" in done.stderr
    assert "SSL_CERT_FILE" in done.stderr
    work.variables["REQUESTS_CA_BUNDLE"] = str(authority().certificates)
    work.run("plan")
