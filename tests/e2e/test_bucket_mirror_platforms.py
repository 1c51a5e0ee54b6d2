"""A mirror in a bucket of Google's and of Azure's, from an empty one to a job, another project, care and collection."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import pytest

from tests.support.projects.project import ProjectHarness, project
from tests.support.servers.bucket_stores import objects_in
from tests.support.servers.clouds import ACCOUNT, AzureAccount, azure
from tests.support.servers.google_xml import GoogleXml, google_xml
from tests.support.servers.hub import Hub, serve
from tests.support.storage.mirrors import assert_sound
from tests.support.storage.weights_data import noise
from tests.support.tiers import one_day_in, sample
from trainctl.base.listing import CHUNK_BYTES

FILES = {"model.safetensors": noise(CHUNK_BYTES + 5), "a/config.json": b"{}", "empty": b""}
MANIFEST = """\
project: {name: demo}
mirror: {url: "URL", auth: {auth_secret_name: bucket}}
secrets: {bucket: {from: env, name: OPENS_BUCKET}}
weights:
  model: {source: "hf://acme/model"}
jobs:
  sft:
    weights: [model]
    runtime: {start_commands: ["cd $TRAINCTL_WEIGHTS_MODEL && find . -type f | xargs sha256sum"]}
"""


TEAM = "the team's/50% off #1, a+b"
"""A prefix with what is somebody's syntax."""


@dataclass
class Platform:
    """A mirror that a manifest names, and what the environment says to reach and open it."""

    server: GoogleXml | AzureAccount
    url: str
    variables: dict[str, str]


@contextmanager
def google(work: Path) -> Iterator[Platform]:
    with google_xml() as server:
        variables = {"STORAGE_EMULATOR_HOST": server.url, "OPENS_BUCKET": server.document}
        yield Platform(server, f"gs://models/{TEAM}", variables)
        assert server.refused == []


@contextmanager
def blobs(work: Path) -> Iterator[Platform]:
    with azure(work) as server:
        variables = {
            "AZURE_STORAGE_ENDPOINT": server.endpoint,
            "OPENS_BUCKET": server.connection_string,
        }
        yield Platform(server, f"azure://{ACCOUNT}/closed/{TEAM}", variables)


@pytest.fixture(params=sample([google, blobs], fixed=0, rotating=1), ids=lambda one: one.__name__)
def platform(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Platform]:
    with request.param(tmp_path) as one:
        yield one


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serve() as running:
        running.add("acme/model", FILES)
        yield running


def filled(made: ProjectHarness, platform: Platform, hub: Hub) -> ProjectHarness:
    made.variables |= {**platform.variables, "HF_ENDPOINT": hub.url}
    made.write({"trainctl.yaml": MANIFEST.replace("URL", platform.url)})
    return made


def read(made: ProjectHarness) -> set[str]:
    """What the job read, as ``sha256  path``."""
    return set(made.run("logs", "job.sft").stdout.splitlines())


def kill_while_it_mirrors(made: ProjectHarness) -> None:
    process = made.start("apply", "--auto-approve", "--format", "json")
    assert process.stdout is not None
    next(line for line in process.stdout if '"done"' in line or '"summary"' in line)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@one_day_in(7)
def test_a_mirror_lives_in_any_platforms_bucket(
    fresh: ProjectHarness, platform: Platform, hub: Hub, tmp_path: Path
) -> None:
    """A killed apply goes on; the job reads by links; another project fetches nothing; a flipped byte is fetched again; what is let go is collected."""
    mine = filled(fresh, platform, hub)
    objects = objects_in(platform.server, TEAM)
    wanted = {f"{sha256(data).hexdigest()}  ./{name}" for name, data in FILES.items()}

    kill_while_it_mirrors(mine)
    assert_sound(objects)
    mine.run("apply", "--auto-approve", "--wait")
    assert read(mine) == wanted
    assert mine.actions() == {}

    hub.seen.clear()
    (tmp_path / "second").mkdir()
    with project(tmp_path / "second") as other:
        filled(other, platform, hub).run("apply", "--auto-approve", "--wait")
        assert read(other) == wanted
        assert [one.path for one in hub.seen if "/resolve/" in one.path] == []
        other.run("destroy", "--auto-approve")

    chunk = next(one for one in objects.list("blobs/sha256") if one.size > 10**7)
    data = objects.get(chunk.key) or b""
    objects.put(chunk.key, data[:-1] + bytes([data[-1] ^ 1]))
    assert "changed" in mine.run("mirror", "verify", code=1).stdout
    assert "1 removed" in mine.run("mirror", "verify", "--repair", code=1).stdout
    mine.run("apply", "--auto-approve", "--target", "weights.model")
    assert objects.get(chunk.key) == data

    assert [one.key for one in objects.list("listings")] != []
    mine.run("destroy", "--auto-approve")
    mine.run("mirror", "gc")
    assert [one.key for one in objects.list("blobs/sha256")] == []
