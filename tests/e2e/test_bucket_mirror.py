"""The mirror in a bucket: one project fills it, nodes read from it, and other projects find it filled."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import pytest

from tests.support.machines.sshd import Sshd, SshUser, require_sshd, sshd
from tests.support.network.ssh_recorder import files_containing, ssh_recorder
from tests.support.projects.project import ProjectHarness, project
from tests.support.servers.bucket_stores import objects_in
from tests.support.servers.buckets import KEY_ID, SECRET, BucketServer, moto, rclone
from tests.support.servers.clouds import ACCOUNT, AzureAccount, azure
from tests.support.servers.google_xml import GoogleXml, google_xml
from tests.support.servers.hub import Hub, serve
from tests.support.storage.mirrors import assert_sound
from tests.support.storage.weights_data import noise
from trainctl.base.listing import CHUNK_BYTES
from trainctl.base.objects import ObjectStore

FILES = {
    "model.safetensors": noise(CHUNK_BYTES + 5),
    **{f"data/{n}.bin": noise(3000, n) for n in range(50)},
    "empty": b"",
}
MANIFEST = """\
project: {name: demo}
mirror: MIRROR
CLUSTERS
weights:
  model: {source: "hf://acme/model"}
jobs:
  sft:
    weights: [model]
    compute: {node_count: NODES}
    runtime: {start_commands: ["cd $TRAINCTL_WEIGHTS_MODEL && find . -type f | xargs sha256sum"]}
"""
KEY = "secrets: {key: {from: env, name: KEY}}\n"
PREFIX = "the team's/50% off #1, a+b"
"""Quoted by URLs, XML and the shell."""
APPLY = ("apply", "--auto-approve")


@dataclass
class Platform:
    """A mirror in a bucket; ``settings`` follow its URL in the manifest."""

    server: BucketServer | GoogleXml | AzureAccount
    url: str
    variables: dict[str, str]
    settings: str = ""
    prefix: str = PREFIX

    @property
    def objects(self) -> ObjectStore:
        return objects_in(self.server, self.prefix)


def s3_platform(server: BucketServer, prefix: str = PREFIX) -> Platform:
    keys = {"AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET}
    variables = {"AWS_ENDPOINT_URL": server.endpoint, **keys}
    return Platform(server, f"s3://models/{prefix}", variables, prefix=prefix)


@pytest.fixture(scope="module")
def bucket() -> Iterator[BucketServer]:
    with moto() as server:
        yield server


MakePlatform = Callable[[Path], AbstractContextManager[Platform]]


@contextmanager
def rclone_s3(work: Path) -> Iterator[Platform]:
    """Checks signatures, and ignores conditions."""
    with rclone(work / "s3") as server:
        yield s3_platform(server)


@contextmanager
def google(work: Path) -> Iterator[Platform]:
    with google_xml() as server:
        variables = {"STORAGE_EMULATOR_HOST": server.url, "KEY": server.document}
        yield Platform(server, f"gs://models/{PREFIX}", variables, ", auth: {auth_secret_name: key}")  # fmt: skip
        assert server.refused == []


@contextmanager
def blobs(work: Path) -> Iterator[Platform]:
    with azure(work) as server:
        variables = {"AZURE_STORAGE_ENDPOINT": server.endpoint, "KEY": server.connection_string}
        url = f"azure://{ACCOUNT}/closed/{PREFIX}"
        yield Platform(server, url, variables, ", auth: {auth_secret_name: key}")


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serve() as running:
        running.add("acme/model", FILES)
        yield running


def write(
    project: ProjectHarness, hub: Hub, platform: Platform, clusters: str = "", nodes: int = 1
) -> ProjectHarness:
    """A manifest whose mirror is in the platform's bucket."""
    project.variables |= {**platform.variables, "HF_ENDPOINT": hub.url}
    text = MANIFEST.replace("MIRROR", f'{{url: "{platform.url}"{platform.settings}}}')
    text = text.replace("CLUSTERS", clusters).replace("NODES", str(nodes))
    project.write({"trainctl.yaml": text + (KEY if platform.settings else "")})
    return project


def assert_read(project: ProjectHarness) -> None:
    """The job read every file as it is upstream."""
    expected = {f"{sha256(data).hexdigest()}  ./{name}" for name, data in FILES.items()}
    assert {*project.run("logs", "job.sft").stdout.splitlines()} == expected


@pytest.mark.parametrize(
    "make",
    [None, *(pytest.param(make, marks=pytest.mark.long) for make in (rclone_s3, google, blobs))],
)
def test_a_mirror_is_kept_in_a_bucket_of_each_platform(
    fresh: ProjectHarness, hub: Hub, bucket: BucketServer, tmp_path: Path, make: MakePlatform | None
) -> None:
    """From a killed apply to a job, another project, a repair and a collection."""
    with make(tmp_path) if make else nullcontext(s3_platform(bucket)) as platform:
        write(fresh, hub, platform)
        (row,) = fresh.json("plan")["deliveries"]
        assert (row["path"], platform.url in row["path_reason"]) == ("mirror-to-node", True)
        process = fresh.start(*APPLY, "--format", "json")
        assert process.stdout is not None
        next(line for line in process.stdout if '"done"' in line or '"summary"' in line)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        assert_sound(platform.objects)
        fresh.run(*APPLY, "--wait")
        assert_read(fresh)
        assert fresh.actions() == {}
        assert not fresh.mirror.exists()
        assert_filled_for_others(hub, platform, tmp_path)

        blob = next(item for item in platform.objects.list("blobs/sha256") if item.size > 10**7)
        data = platform.objects.get(blob.key) or b""
        platform.objects.put(blob.key, data[:-1] + bytes([data[-1] ^ 1]))
        assert "changed" in fresh.run("mirror", "verify", code=1).stdout
        assert "1 removed" in fresh.run("mirror", "verify", "--repair", code=1).stdout
        fresh.run(*APPLY, "--target", "weights.model")
        assert platform.objects.get(blob.key) == data
        destroyed = fresh.run("destroy", "--auto-approve")
        assert platform.url in destroyed.stdout + destroyed.stderr
        fresh.run("mirror", "gc")
        assert [*platform.objects.list("blobs/sha256")] == []


def assert_filled_for_others(hub: Hub, platform: Platform, tmp_path: Path) -> None:
    """Another project fetches no file."""
    hub.seen.clear()
    (tmp_path / "second").mkdir()
    with project(tmp_path / "second") as other:
        write(other, hub, platform)
        assert other.json("plan")["weights"][0]["bytes_upstream"] == 0
        other.run(*APPLY, "--wait")
        assert_read(other)
        assert [request.path for request in hub.seen if "/resolve/" in request.path] == []
        other.run("destroy", "--auto-approve")


@pytest.mark.long
def test_another_server_under_the_same_url_is_another_mirror(
    fresh: ProjectHarness, hub: Hub, bucket: BucketServer
) -> None:
    """The new server gets everything; the old one is collected by its address."""
    old = bucket
    with moto() as new:
        hosts = [server.endpoint.partition("//")[2] for server in (old, new)]
        fresh.trust(f'secret = "key"\nhosts = {json.dumps(hosts)}\n')

        def place(server: BucketServer) -> Platform:
            settings = f', endpoint_url: "{server.endpoint}/", auth: {{auth_secret_name: key}}'
            variables = {"KEY": json.dumps(old.credential)}
            return Platform(server, "s3://models/moved", variables, settings, "moved")

        write(fresh, hub, place(old)).run(*APPLY, "--target", "weights.model")
        write(fresh, hub, place(new))
        planned = fresh.run("plan", "--target", "weights.model").stdout
        fresh.run(*APPLY, "--target", "weights.model")
        assert fresh.actions("--target", "weights.model") == {}
        references = [len([*place(server).objects.list("references")]) for server in (old, new)]
        former = ("--url", place(old).url, "--endpoint-url", old.endpoint)
        time.sleep(1)  # unused for longer than that
        fresh.run("mirror", "gc", *former, "--drop-unused", "1s")
        blobs_left = [*place(old).objects.list("blobs")]

    assert "will be updated in place: the mirror has changed" in planned
    assert f"the mirror was s3://models/moved at {old.endpoint}" in planned
    assert "outside of trainctl" not in planned
    assert references == [1, 1]
    assert blobs_left == []


@pytest.fixture
def hosts(tmp_path: Path, fresh: ProjectHarness) -> Iterator[list[Sshd]]:
    """Two hosts that record all that they get over SSH."""
    require_sshd()
    user = SshUser(tmp_path / "user")
    started = []
    with ExitStack() as stack:
        for number in range(2):
            place = tmp_path / f"gpu-{number}"
            place.mkdir()
            command = f"ForceCommand {ssh_recorder(place)}"
            host = sshd(place, user, command, address=f"127.0.0.{number + 2}")
            started.append(stack.enter_context(host))
        user.known_hosts.write_text("".join(host.known for host in started))
        fresh.variables |= user.environment
        yield started


def test_hosts_read_from_the_bucket_and_no_credential_reaches_them(
    fresh: ProjectHarness, hub: Hub, bucket: BucketServer, hosts: list[Sshd]
) -> None:
    """They get presigned URLs; nothing that came to them, or is stored there, has the secret key."""
    named = json.dumps([host.settings for host in hosts])
    clusters = f"clusters: {{lab: {{provider: ssh, hosts: {named}}}}}"
    write(fresh, hub, s3_platform(bucket, "hosts"), clusters, nodes=2)
    plan = fresh.json("plan")
    fresh.run(*APPLY, "--wait")
    logs = fresh.run("logs", "job.sft").stdout

    assert {row["path"] for row in plan["deliveries"]} == {"peers"}
    digests = [f"{sha256(data).hexdigest()}  ./{name}" for name, data in FILES.items()]
    assert {*logs.splitlines()} == {f"[rank {n}] {line}" for n in range(2) for line in digests}
    places = [host.home.parent for host in hosts]
    assert all(files_containing(place, "X-Amz-Signature") for place in places)
    assert [path for place in places for path in files_containing(place, SECRET)] == []


def test_a_server_that_only_the_manifest_names_gets_no_credential(
    fresh: ProjectHarness, hub: Hub, tmp_path: Path
) -> None:
    """Neither a declared secret nor that of the environment, unless the trust file or the environment names the server."""
    with rclone(tmp_path / "s3") as bucket:
        endpoint = f', endpoint_url: "{bucket.endpoint}"'
        platform = s3_platform(bucket)
        platform.variables |= {"KEY": json.dumps(bucket.credential)}
        del platform.variables["AWS_ENDPOINT_URL"]
        platform.settings = f"{endpoint}, auth: {{auth_secret_name: key}}"
        write(fresh, hub, platform)
        trust = tmp_path / "trust.toml"
        host = bucket.endpoint.partition("//")[2]
        trust.write_text(f'[[allow]]\nsecret = "key"\nhosts = ["{host}"]\n')
        for command in (["plan"], *(["mirror", verb] for verb in ("list", "verify", "gc"))):
            refused = fresh.run(*command, code=13).stderr
            assert "secret 'key' is not sent to 127.0.0.1" in refused
            assert "[[allow]]" in refused
            fresh.run(*command, "--trust", str(trust))

        platform.settings = endpoint
        write(fresh, hub, platform)
        for command in (["plan"], ["mirror", "list"]):
            refused = fresh.run(*command, code=13).stderr
            assert "the credential of AWS_ACCESS_KEY_ID is not sent to http://127.0.0.1" in refused
            assert "mirror s3://models/" in refused
        fresh.variables["AWS_ENDPOINT_URL_S3"] = bucket.endpoint
        fresh.run("plan")
        fresh.variables["AWS_SECRET_ACCESS_KEY"] = "wrong" * 8
        denied = fresh.run("plan", code=1).stderr

    summary = next(line for line in denied.splitlines() if line.startswith("error"))
    assert "mirror s3://models/" in summary
    assert "permission denied by" in summary
    assert "AWS_ACCESS_KEY_ID" in denied
