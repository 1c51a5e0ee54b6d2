"""Weights that are locked and mirrored, while whoever has what opens their source doesn't give it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.projects.project import ProjectHarness
from tests.support.servers.buckets import KEY_ID, SECRET, moto
from trainctl.buckets.bucket import Bucket as Store
from trainctl.buckets.location import parse_bucket_location
from trainctl.plugin_api.sources import SourceCredential

MANIFEST = """\
project: {name: demo}
secrets: {bucket: {from: command, command: [VAULT]}}
weights:
  model:
    source: "s3://models/llm"
    auth: AUTH
jobs:
  sft:
    weights: [model]
    runtime: {start_commands: ["cat $TRAINCTL_WEIGHTS_MODEL/config.json"]}
"""


@pytest.fixture
def work(fresh: ProjectHarness) -> Iterator[ProjectHarness]:
    """A project that finds a model in a bucket, and everything that could open it."""
    with moto() as bucket:
        keys = SourceCredential(json.dumps(bucket.credential), "the test")
        store = Store(parse_bucket_location("s3://models", bucket.endpoint, {}), keys, environ={})
        store.put("llm/config.json", b"{}")
        fresh.variables |= {
            "AWS_ENDPOINT_URL": bucket.endpoint,
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }
        fresh.trust('secret = "bucket"\ncommands = true')
        says(fresh, f"echo '{json.dumps(bucket.credential)}'")
        yield fresh


def vault_of(work: ProjectHarness) -> Path:
    """Not in the project: what came with a manifest isn't run."""
    return work.directory.parent / "vault"


def wants(work: ProjectHarness, auth: str) -> None:
    text = MANIFEST.replace("VAULT", str(vault_of(work))).replace(
        "AUTH", f"{{auth_method: {auth}}}"
    )
    work.write({"trainctl.yaml": text})


def says(work: ProjectHarness, vault: str) -> None:
    """Where the secret is kept behaves like that from now on."""
    program = vault_of(work)
    program.write_text(f"#!/bin/sh\n{vault}\n")
    program.chmod(0o755)


def test_a_secret_that_its_keeper_does_not_give_stops_nobody_who_has_it_all(
    work: ProjectHarness,
) -> None:
    """The same, of a command; a program that isn't there is ours to mend, and the error as ever."""
    wants(work, "CUSTOM_SECRET, auth_secret_name: bucket")
    work.run("apply", "--auto-approve", "--target", "weights.model")
    vault_of(work).rename(work.directory / "elsewhere")
    lost = work.run("plan", code=1).stderr
    says(work, "exit 7")
    used, refused = _stands_in(work, "secret-unavailable")
    assert "exited with 7" in used
    assert "exited with 7" in refused
    assert "vault: No such file or directory" in lost


def _stands_in(work: ProjectHarness, code: str) -> tuple[str, str]:
    """What is said where the mirror stands in, and where nothing is mirrored."""
    plan = work.json("plan")
    (diagnostic,) = [problem for problem in plan["diagnostics"] if problem["code"] == code]
    lock = (work.directory / "trainctl.lock").read_text()
    shutil.rmtree(work.directory / ".trainctl")
    work.run("apply", "--auto-approve", "--wait")
    logs = work.run("logs", "sft").stdout
    kept = (work.directory / "trainctl.lock").read_text()
    (work.directory / "trainctl.lock").unlink()
    unlocked = work.run("plan", code=1).stderr
    work.clear()
    work.write({"trainctl.lock": lock})
    unmirrored = work.run("plan", code=1).stderr

    assert diagnostic["severity"] == "warning"
    assert plan["weights"][0]["bytes_upstream"] == 0
    assert logs == "{}\n"
    assert kept == lock
    assert "The source is in trainctl.lock" not in unlocked
    assert (
        "The source is in trainctl.lock. The mirror doesn't contain the locked version."
        in unmirrored
    )
    return diagnostic["detail"], unmirrored
