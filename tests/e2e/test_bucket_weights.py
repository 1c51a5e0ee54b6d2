"""Weights of buckets, from a manifest to a job that reads them; on this machine, and on a host that is handed links."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.machines.sshd import Sshd, SshUser, require_sshd, sshd
from tests.support.network.ssh_recorder import ssh_recorder
from tests.support.node_program.nodes import python38
from tests.support.projects.project import ProjectHarness
from tests.support.servers.bucket_stores import SERVERS, Server, place_in
from tests.support.servers.buckets import KEY_ID, SECRET
from tests.support.storage.weights_data import noise
from tests.support.tiers import sample
from trainctl.buckets.bucket import Bucket
from trainctl.buckets.location import parse_bucket_location
from trainctl.plugin_api.sources import SourceCredential

CHUNK = 16 * 2**20
MODEL = noise(CHUNK + 300_000)
CONFIG = b'{"hidden_size": 8}\n'
MANIFEST = """\
project: {name: demo}
CLUSTERS
secrets: {bucket: {from: env, name: OPENS_BUCKET}}
weights:
  model:
    source: "SOURCE"
    auth_secret_name: bucket
jobs:
  sft:
    weights: [model]
    runtime: {start_commands: ["cd $TRAINCTL_WEIGHTS_MODEL && sha256sum model.bin deep/config.json && find . -type f | wc -l"]}
"""


@dataclass
class Cloud:
    """A platform: source, environment, and endpoint of a bucket with a model."""

    source: str
    variables: dict[str, str]
    endpoint: str


@contextmanager
def filled(platform: str, work: Path) -> Iterator[Cloud]:
    """A bucket with a model below ``My Data/llm/``, and an object next to that prefix."""
    work = work / "server"
    work.mkdir()
    with SERVERS[platform](work) as server:
        source, environ, credential = place_in(server, "My Data/llm")
        for prefix, key, data in (
            ("llm", "model.bin", MODEL),
            ("llm", "deep/config.json", CONFIG),
            ("llm-other", "model.bin", b"other"),
        ):
            put(server, f"My Data/{prefix}", key, data)
        variables = {**environ, "OPENS_BUCKET": credential}
        yield Cloud(source, variables, next(iter(environ.values())))


def put(server: Server, prefix: str, key: str, data: bytes) -> None:
    url, environ, value = place_in(server, prefix)
    location = parse_bucket_location(url, None, environ)
    Bucket(location, SourceCredential(value, "the test"), environ).put(key, data)


def write_manifest(project: ProjectHarness, cloud: Cloud, clusters: str = "") -> None:
    text = MANIFEST.replace("SOURCE", cloud.source)
    project.write({"trainctl.yaml": text.replace("CLUSTERS\n", clusters)})
    project.variables |= cloud.variables


EXPECTED = [
    f"{hashlib.sha256(MODEL).hexdigest()}  model.bin",
    f"{hashlib.sha256(CONFIG).hexdigest()}  deep/config.json",
    "2",
]


@pytest.mark.parametrize("platform", sample(["rclone", "google", "azure"], 1))
def test_a_job_reads_weights_of_a_bucket(
    fresh: ProjectHarness, tmp_path: Path, platform: str
) -> None:
    """Planned by metadata, locked, mirrored once, read by the job; no file holds the secret."""
    with filled(platform, tmp_path) as cloud:
        write_manifest(fresh, cloud)
        (row,) = fresh.json("plan")["weights"]
        fresh.run("apply", "--auto-approve", "--wait")
        logs = fresh.run("logs", "sft").stdout.splitlines()
        again = fresh.run("plan", "--detailed-exitcode")

    (locked,) = json.loads((fresh.directory / "trainctl.lock").read_text())["sources"]
    assert (row["files"], row["bytes"]) == (2, len(MODEL) + len(CONFIG))
    assert (row["bytes_mirrored"], row["bytes_upstream"]) == (0, row["bytes"])
    assert logs == EXPECTED
    assert "No changes" in again.stdout
    assert (locked["source"], locked["revision"]) == (cloud.source, row["revision"])
    assert_kept_nowhere(fresh, cloud.variables["OPENS_BUCKET"], SECRET)


def assert_kept_nowhere(work: ProjectHarness, *secrets: str) -> None:
    for path in work.directory.parent.rglob("*"):
        if path.is_file() and "rclone" not in str(path):
            data = path.read_bytes()
            assert [secret for secret in secrets if secret.encode() in data] == [], path


def test_the_default_credentials_open_a_bucket(fresh: ProjectHarness, tmp_path: Path) -> None:
    """A source without ``auth`` uses them, but not at an endpoint that only the manifest names (13)."""
    with filled("rclone", tmp_path) as cloud:
        write_manifest(fresh, cloud)
        text = (fresh.directory / "trainctl.yaml").read_text()
        plain = text.replace("    auth_secret_name: bucket\n", "")
        fresh.write({"trainctl.yaml": plain})
        fresh.variables |= {"AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET}
        (row,) = fresh.json("plan")["weights"]
        source = f'"{cloud.source}"\n'
        fresh.write(
            {
                "trainctl.yaml": plain.replace(
                    source, f'{source}    endpoint_url: "{cloud.endpoint}/"\n'
                )
            }
        )
        (repeated,) = fresh.json("plan")["weights"]
        del fresh.variables["AWS_ENDPOINT_URL"]
        refused = fresh.run("plan", code=13).stderr
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            del fresh.variables[name]
        nothing = fresh.run("plan", code=1).stderr

    assert (row["files"], repeated["files"]) == (2, 2)
    assert "the credential of AWS_ACCESS_KEY_ID is not sent to http://127.0.0.1" in refused
    assert "AWS_ENDPOINT_URL_S3" in refused
    assert "declare a secret" in nothing


@pytest.mark.long
@pytest.mark.parametrize("platform", sample(["s3", "google", "azure"], 1))
def test_a_host_fetches_from_the_bucket_by_presigned_urls(
    fresh: ProjectHarness, tmp_path: Path, platform: str
) -> None:
    """No weights go through this machine, and the credential is in nothing that reaches the host."""
    require_sshd()
    user = SshUser(tmp_path / "user")
    (tmp_path / "gpu-0").mkdir()
    heard = ssh_recorder(tmp_path / "gpu-0")
    with (
        filled(platform, tmp_path) as cloud,
        sshd(tmp_path / "gpu-0", user, f"ForceCommand {heard}", address="127.0.0.2") as host,
    ):
        user.known_hosts.write_text(host.known)
        fresh.variables |= user.environment
        write_manifest(
            fresh, cloud, f"clusters: {{lab: {{provider: ssh, hosts: {_hosts(host)}}}}}\n"
        )
        plan = fresh.json("plan")
        fresh.run("apply", "--auto-approve", "--wait")
        logs = fresh.run("logs", "sft").stdout.splitlines()

    assert plan["weights"][0]["bytes_through_client"] == 0
    assert logs == EXPECTED
    assert not fresh.mirror.exists()
    came = (tmp_path / "gpu-0" / "heard").read_bytes()
    assert cloud.source.encode() in came
    assert [
        text for text in (cloud.variables["OPENS_BUCKET"], SECRET) if text.encode() in came
    ] == []


def _hosts(host: Sshd) -> str:
    oldest = {"python": result} if (result := python38()) else {}
    return json.dumps([{**host.settings, **oldest}])
