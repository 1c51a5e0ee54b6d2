"""The mirror in a bucket: one project fills it, nodes read from it by themselves, and others find it filled."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import pytest

from tests.support.machines.sshd import Sshd, SshUser, require_sshd, sshd
from tests.support.network.ssh_recorder import files_containing, ssh_recorder
from tests.support.projects.project import ProjectHarness, project
from tests.support.servers.bucket_stores import objects_in
from tests.support.servers.buckets import KEY_ID, SECRET, BucketServer, moto, rclone
from tests.support.servers.hub import Hub, serve
from tests.support.storage.mirrors import assert_sound
from tests.support.storage.weights_data import noise
from tests.support.tiers import one_day_in
from trainctl.base.listing import CHUNK_BYTES
from trainctl.objects.bucket_client import Bucket as Store
from trainctl.objects.credentials import AwsKeys
from trainctl.objects.location import parse_bucket_location

LARGE = noise(2 * CHUNK_BYTES + 5)
FILES = {
    "model.safetensors": LARGE,
    **{f"data/{n}.bin": noise(3000, n) for n in range(150)},
    "empty": b"",
}
MANIFEST = """\
project: {name: demo}
mirror: {url: "s3://models/PREFIX"}
CLUSTERS
weights:
  model: {source: "hf://acme/model"}
jobs:
  sft:
    weights: [model]
    compute: {node_count: NODES}
    runtime: {start_commands: ["cd $TRAINCTL_WEIGHTS_MODEL && find . -type f | sort | xargs sha256sum"]}
"""


@pytest.fixture(scope="module")
def bucket() -> Iterator[BucketServer]:
    with moto() as one:
        yield one


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serve() as running:
        running.add("acme/model", FILES)
        yield running


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    """A place in the bucket that nobody else has."""
    return f"{tmp_path.parent.name}/{tmp_path.name}"


@pytest.fixture
def mine(fresh: ProjectHarness, bucket: BucketServer, hub: Hub, prefix: str) -> ProjectHarness:
    """A project with a job on this machine."""
    return filled(fresh, bucket, hub, prefix)


def filled(
    made: ProjectHarness,
    bucket: BucketServer,
    hub: Hub,
    prefix: str,
    clusters: str = "",
    nodes: int = 1,
) -> ProjectHarness:
    made.variables |= {
        "AWS_ENDPOINT_URL": bucket.endpoint,
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "HF_ENDPOINT": hub.url,
    }
    text = MANIFEST.replace("PREFIX", prefix).replace("CLUSTERS", clusters)
    made.write({"trainctl.yaml": text.replace("NODES", str(nodes))})
    return made


def right(logs: str) -> bool:
    """Whether a job read every file as it is upstream."""
    wanted = {f"{sha256(data).hexdigest()}  ./{name}" for name, data in FILES.items()}
    return wanted == {line.partition("] ")[2] or line for line in logs.splitlines()}


def test_a_job_reads_what_the_bucket_keeps(mine: ProjectHarness, hub: Hub) -> None:
    """The plan says the way and what is upstream; the job has every file; this machine keeps no mirror; the next plan changes nothing."""
    plan = mine.json("plan")
    mine.run("apply", "--auto-approve", "--wait")
    again = mine.json("plan")

    (weights,), (delivery,) = plan["weights"], plan["deliveries"]
    assert weights["bytes_upstream"] == weights["bytes_through_client"] == weights["bytes"]
    assert delivery["path"] == "mirror-to-node"
    assert "s3://models/" in delivery["path_reason"]
    assert right(mine.run("logs", "job.sft").stdout)
    assert again["weights"][0]["bytes_mirrored"] == again["weights"][0]["bytes"]
    assert not mine.mirror.exists()
    assert mine.actions() == {}


@one_day_in(7)
def test_what_is_mirrored_is_never_fetched_again(
    mine: ProjectHarness, bucket: BucketServer, hub: Hub, prefix: str, tmp_path: Path
) -> None:
    """Neither a second apply nor another project with the same source asks upstream for a file; the list names both."""
    mine.run("apply", "--auto-approve", "--wait")
    hub.seen.clear()
    mine.run("apply", "--auto-approve")
    (tmp_path / "second").mkdir()
    with project(tmp_path / "second") as other:
        filled(other, bucket, hub, prefix)
        plan = other.json("plan")
        other.run("apply", "--auto-approve", "--wait")
        logs = other.run("logs", "job.sft").stdout
        (row,) = other.json("mirror", "list")["sources"]

    assert plan["weights"][0]["bytes_upstream"] == 0
    assert right(logs)
    assert [one.path for one in hub.seen if "/resolve/" in one.path] == []
    assert row["files"] == len(FILES)


@one_day_in(7)
def test_a_killed_apply_goes_on_where_it_was(
    mine: ProjectHarness, bucket: BucketServer, hub: Hub, prefix: str
) -> None:
    """Killed while it mirrors, at several moments one after another; what holds of the bucket holds then, and at last the job runs."""
    for bytes_done in (1, CHUNK_BYTES, 2 * CHUNK_BYTES):
        process = mine.start("apply", "--auto-approve", "--format", "json")
        assert process.stdout is not None
        for line in process.stdout:
            event = json.loads(line)
            if event.get("done", 0) >= bytes_done or event.get("type") == "summary":
                break
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        assert_sound(objects_in(bucket, prefix))

    mine.run("apply", "--auto-approve", "--wait")

    assert right(mine.run("logs", "job.sft").stdout)
    assert_sound(objects_in(bucket, prefix))


@one_day_in(7)
def test_a_mirror_that_is_moved_leaves_nothing_behind(
    mine: ProjectHarness, bucket: BucketServer, prefix: str
) -> None:
    """From one prefix to another: the old one is told that nobody wants what it has."""
    store = Store(
        parse_bucket_location(f"s3://models/{prefix}", bucket.endpoint, {}), AwsKeys(KEY_ID, SECRET)
    )
    mine.run("apply", "--auto-approve", "--target", "weights.model")
    before = [one.key for one in store.list("references")]
    text = (mine.directory / "trainctl.yaml").read_text()
    mine.write({"trainctl.yaml": text.replace(f"models/{prefix}", f"models/{prefix}/new")})
    mine.run("apply", "--auto-approve", "--target", "weights.model")
    after = [one.key for one in store.list("references")]
    there = [one.key for one in store.list("new/references")]

    assert len(before) == len(there) == 1
    assert after == []


@one_day_in(10)
def test_a_mirror_that_is_moved_to_another_server_leaves_nothing_behind(
    mine: ProjectHarness, bucket: BucketServer, prefix: str
) -> None:
    """Under the same URL it is another place: the plan says so, the new server gets everything, the old one is told that nobody wants it."""
    text = (mine.directory / "trainctl.yaml").read_text()
    text += "secrets: {key: {from: env, name: KEY}}\n"
    url = f'url: "s3://models/{prefix}"'

    def at(server: BucketServer) -> dict[str, str]:
        opened = f'endpoint_url: "{server.endpoint}/", auth: {{auth_secret_name: key}}'
        return {"trainctl.yaml": text.replace(url, f"{url}, {opened}")}

    def count(server: BucketServer, kind: str = "references") -> int:
        place = parse_bucket_location(f"s3://models/{prefix}", server.endpoint, {})
        return len([*Store(place, AwsKeys(KEY_ID, SECRET)).list(kind)])

    with moto() as other:
        mine.variables["KEY"] = json.dumps(bucket.credential)
        del mine.variables["AWS_ENDPOINT_URL"]
        hosts = [one.endpoint.partition("//")[2] for one in (bucket, other)]
        mine.trust(f'secret = "key"\nhosts = {json.dumps(hosts)}\n')
        mine.write(at(bucket))
        mine.run("apply", "--auto-approve", "--target", "weights.model")
        before = count(bucket)
        mine.write(at(other))
        planned = mine.run("plan", "--target", "weights.model").stdout
        unasked = mine.run("plan", "--refresh=false", "--target", "weights.model").stdout
        mine.run("apply", "--auto-approve", "--target", "weights.model")
        again = mine.run("plan", "--target", "weights.model", "--detailed-exitcode").stdout
        after = count(bucket), count(other)
        old = ("--url", f"s3://models/{prefix}", "--endpoint-url", bucket.endpoint)
        mine.run("mirror", "gc", *old)
        left = count(bucket, "blobs")
        listed = mine.run("mirror", "list").stdout

    assert before == 1
    assert "will be updated in place: the mirror has changed" in planned
    assert f"the mirror was s3://models/{prefix} at {bucket.endpoint}" in planned
    assert f"the mirror was s3://models/{prefix} at {bucket.endpoint}" in unasked
    assert "outside of trainctl" not in planned
    assert after == (0, 1)
    assert "No changes" in again
    assert left == 0
    assert "hf://acme/model" in listed


@one_day_in(7)
def test_care_of_a_bucket_needs_no_other_words(
    mine: ProjectHarness, bucket: BucketServer, prefix: str
) -> None:
    """A flipped byte is found and deleted, and comes from the hub again; what is let go of is collected; destroy names the bucket."""
    mine.run("apply", "--auto-approve", "--wait")
    objects = objects_in(bucket, prefix)
    chunk = next(one for one in objects.list("blobs/sha256") if one.size > 10**7)
    data = objects.get(chunk.key) or b""
    objects.put(chunk.key, data[:-1] + bytes([data[-1] ^ 1]))

    found = mine.run("mirror", "verify", code=1).stdout
    repaired = mine.run("mirror", "verify", "--repair", code=1).stdout
    mine.run("apply", "--auto-approve", "--target", "weights.model")
    whole = mine.run("mirror", "verify").stdout
    left = mine.run("destroy", "--auto-approve")
    preview = mine.run("mirror", "gc", "--dry-run").stdout

    assert "changed" in found
    assert "1 removed" in repaired
    assert "no problems found" in whole
    assert f"s3://models/{prefix}" in left.stdout + left.stderr
    assert "1 listing" in preview
    assert objects.get(chunk.key) == data


@dataclass
class Lab:
    """Hosts, and what an operator's environment needs to reach them."""

    hosts: list[Sshd]
    environment: dict[str, str]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """Two hosts that write down all that comes to them over SSH."""
    require_sshd()
    user = SshUser(tmp_path / "user")
    made = []
    with ExitStack() as stack:
        for n in range(2):
            place = tmp_path / f"gpu-{n}"
            place.mkdir()
            heard = ssh_recorder(place)
            one = sshd(place, user, f"ForceCommand {heard}", address=f"127.0.0.{n + 2}")
            made.append(stack.enter_context(one))
        user.known_hosts.write_text("".join(host.known for host in made))
        yield Lab(made, user.environment)


@one_day_in(7)
def test_hosts_read_from_the_bucket_and_no_credential_reaches_them(
    fresh: ProjectHarness, bucket: BucketServer, hub: Hub, prefix: str, lab: Lab
) -> None:
    """Two hosts, as peers, have every file; of all that came to them, or lies there, nothing holds the secret key."""
    named = json.dumps([host.settings for host in lab.hosts])
    clusters = f"clusters: {{lab: {{provider: ssh, hosts: {named}}}}}"
    fresh.variables |= lab.environment
    filled(fresh, bucket, hub, prefix, clusters, nodes=2)

    plan = fresh.json("plan")
    fresh.run("apply", "--auto-approve", "--wait")
    status = fresh.json("status", "job.sft")

    assert {row["path"] for row in plan["deliveries"]} == {"peers"}
    assert status["status"] == "TRAINING_JOB_COMPLETED"
    for rank in range(2):
        assert right(fresh.run("logs", "job.sft", "--rank", str(rank)).stdout)
    places = [host.home.parent for host in lab.hosts]
    assert all(files_containing(place, "X-Amz-Signature") for place in places)
    assert [path for place in places for path in files_containing(place, SECRET)] == []


@one_day_in(5)
def test_a_credential_that_is_refused_is_one_line(mine: ProjectHarness, tmp_path: Path) -> None:
    """What is wrong, with which mirror, stands in the first line; then where the credential came from."""
    with rclone(tmp_path / "s3") as strict:
        mine.variables["AWS_ENDPOINT_URL"] = strict.endpoint
        mine.variables["AWS_SECRET_ACCESS_KEY"] = "wrong" * 8

        failed = mine.run("plan", code=1)

    found = next(line for line in failed.stderr.splitlines() if line.startswith("error"))
    assert "mirror s3://models/" in found
    assert "permission denied by" in found
    assert "AWS_ACCESS_KEY_ID" in failed.stderr


@one_day_in(5)
def test_a_server_that_only_the_manifest_names_gets_no_credential(
    mine: ProjectHarness, bucket: BucketServer, prefix: str
) -> None:
    """With an endpoint of the manifest's own, a declared secret isn't sent, and that is said (13), unless the user's trust or the environment names it."""
    del mine.variables["AWS_ENDPOINT_URL"]
    text = (mine.directory / "trainctl.yaml").read_text()
    place = f'{{url: "s3://models/{prefix}", endpoint_url: "{bucket.endpoint}", auth: {{auth_secret_name: key}}}}'
    text = text.replace(f'{{url: "s3://models/{prefix}"}}', place)
    mine.write({"trainctl.yaml": text + "secrets: {key: {from: env, name: KEY}}\n"})
    mine.variables["KEY"] = json.dumps(bucket.credential)

    trust = mine.directory.parent / "trust.toml"
    trust.write_text(
        f'[[allow]]\nsecret = "key"\nhosts = ["{bucket.endpoint.partition("//")[2]}"]\n'
    )

    refused = mine.run("plan", code=13)
    mine.run("plan", "--trust", str(trust))
    for words in (["list"], ["verify", "--repair"], ["gc"]):
        mine.run("mirror", *words, code=13)
        mine.run("mirror", *words, "--trust", str(trust))

    assert "secret 'key' is not sent to 127.0.0.1" in refused.stderr
    assert "[[allow]]" in refused.stderr
    mine.variables["AWS_ENDPOINT_URL_S3"] = bucket.endpoint
    mine.run("plan")


@one_day_in(5)
def test_nor_does_it_get_what_lies_in_usual_places(
    mine: ProjectHarness, prefix: str, tmp_path: Path
) -> None:
    """The environment's credential isn't sent to such a server either, and that is said (13), until the environment names it too."""
    del mine.variables["AWS_ENDPOINT_URL"]
    text = (mine.directory / "trainctl.yaml").read_text()
    with rclone(tmp_path / "s3") as strict:
        place = f'{{url: "s3://models/{prefix}", endpoint_url: "{strict.endpoint}"}}'
        mine.write({"trainctl.yaml": text.replace(f'{{url: "s3://models/{prefix}"}}', place)})

        refused = mine.run("plan", code=13)
        listed = mine.run("mirror", "list", code=13)
        mine.variables["AWS_ENDPOINT_URL_S3"] = strict.endpoint
        mine.run("plan")
        mine.run("mirror", "list")

    for told in (refused.stderr, listed.stderr):
        assert "the credential of AWS_ACCESS_KEY_ID is not sent to http://127.0.0.1" in told
        assert "mirror s3://models/" in told


@one_day_in(6)
def test_a_store_that_ignores_conditions_does_as_well(
    fresh: ProjectHarness, hub: Hub, prefix: str, tmp_path: Path
) -> None:
    """Nothing rests on conditional writes, and its links are looked at closely: the job has every file."""
    with rclone(tmp_path / "s3") as strict:
        filled(fresh, strict, hub, prefix).run("apply", "--auto-approve", "--wait")
        logs = fresh.run("logs", "job.sft").stdout

    assert right(logs)
