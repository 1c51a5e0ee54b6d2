"""A state in a bucket as a user has it: with a secret for its server, encrypted there, on a server that throttles, on one that can't decide."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.projects.manifest_files import job, write_manifest
from tests.support.projects.project import ProjectHarness
from tests.support.sealed import KEY
from tests.support.servers.bucket_states import Cloud, clouds
from tests.support.servers.buckets import KEY_ID, SECRET

APPLY = ("apply", "--auto-approve")


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Cloud]:
    with clouds("s3", tmp_path) as cloud:
        yield cloud


def in_environment(fresh: ProjectHarness, endpoint: str) -> None:
    """A server and a credential in the environment."""
    fresh.variables |= {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
    }


def test_a_server_and_a_secret_of_the_manifest(fresh: ProjectHarness, cloud: Cloud) -> None:
    """The secret needs trust for that host. Each object is written encrypted; a server that throttles is asked again."""
    fresh.variables["STATE_KEY"] = cloud.credential
    write_manifest(
        fresh,
        {"a": job("true")},
        secrets={"states": {"from": "env", "name": "STATE_KEY"}},
        state={
            "url": "s3://models/team/a",
            "endpoint_url": cloud.proxy.url,
            "auth": {"auth_method": "CUSTOM_SECRET", "auth_secret_name": "states"},
            "server_side_encryption": "aws:kms",
            "kms_key_id": "alias/states",
        },
    )
    refused = fresh.run(*APPLY, code=13)
    assert "state s3://models/team/a: " in refused.stderr
    assert not cloud.proxy.requests

    host = cloud.proxy.url.removeprefix("http://")
    fresh.trust(f'secret = "states"\nhosts = ["{host}"]')
    cloud.proxy.faults.extend(["503", "503", "409", "lost", "429"])
    fresh.run(*APPLY, "--wait")
    fresh.run("plan", "--detailed-exitcode")
    assert set(cloud.proxy.encryption) == {"aws:kms"}
    assert not cloud.proxy.faults


def test_what_is_encrypted_in_a_bucket(fresh: ProjectHarness, cloud: Cloud) -> None:
    """A state that was plain, and a saved plan: unreadable from then on, and no older copy is taken for it."""
    in_environment(fresh, cloud.proxy.url)
    state: dict[str, object] = {"url": "s3://models/team/a"}
    write_manifest(fresh, {"a": job("true")}, state=state)
    fresh.run(*APPLY, "--wait")
    objects = cloud.objects("team/a")
    plain = {key for prefix in ("log", "snapshots") for key, *_ in objects.list(prefix)}
    assert b"job.a" in b"".join(objects.get(key) or b"" for key in plain)

    fresh.variables["STATE_KEY"] = KEY
    state["encryption"] = {"keys": [{"id": "k1", "secret": "key"}]}
    secrets = {"key": {"from": "env", "name": "STATE_KEY"}}
    write_manifest(
        fresh, {"a": job("true"), "b": job("false || true")}, secrets=secrets, state=state
    )
    assert "state-not-encrypted" in fresh.run("plan", code=1).stderr
    fresh.run("state", "rekey")
    fresh.run("plan", "--out", "plan.bin")
    assert "job.b" not in (fresh.directory / "plan.bin").read_text()
    fresh.run("apply", "plan.bin", "--wait")
    added = {key for prefix in ("log", "snapshots") for key, *_ in objects.list(prefix)} - plain
    stored = b"".join(objects.get(key) or b"" for key in [*added, "tail.json"])
    assert b"sealed" in stored
    assert [word for word in (b"job.a", b"job.b", b"|| true", b"local") if word in stored] == []
    del fresh.variables["STATE_KEY"]
    assert "missing-secret" in fresh.run("state", "list", code=1).stderr

    fresh.variables["STATE_KEY"] = KEY
    objects.delete([max(key for key in added if key.startswith("log")), "tail.json"])
    assert "state-rolled-back" in fresh.run("state", "list", code=1).stderr
    fresh.run("state", "rekey", "--accept-older")
    assert "job.b" in fresh.run("state", "list").stdout
