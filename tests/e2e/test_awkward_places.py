"""Places whose names hold spaces and other characters that are somebody's syntax: mirror, checkpoints and state, in a bucket, a directory and on a host."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import boto3
import pytest

from tests.support.machines.sshd import SshUser, require_sshd, sshd
from tests.support.projects.project import ProjectHarness
from tests.support.servers.buckets import KEY_ID, SECRET, BucketServer, moto
from tests.support.tiers import one_day_in

AWKWARD = "my models/50% off #1 (ü), a+b & c=d; ~'?"
MANIFEST = """\
project: {name: demo}
CLUSTERS
mirror: {url: MIRROR}
checkpoints: {url: CHECKPOINTS}
STATE
weights: {model: {source: "file:./weights"}}
jobs:
  sft:
    weights: [model]
    compute: {node_count: NODES}
    runtime:
      start_commands: ["cat $TRAINCTL_WEIGHTS_MODEL/word; mkdir $BT_CHECKPOINT_DIR/step-1; echo saved > $BT_CHECKPOINT_DIR/step-1/model"]
      checkpointing_config: {enabled: true}
"""


def write(
    made: ProjectHarness,
    mirror: str,
    checkpoints: str,
    state: str = "",
    clusters: str = "",
    nodes: int = 1,
) -> None:
    """A project that keeps things there."""
    text = MANIFEST.replace("CLUSTERS", clusters).replace("NODES", str(nodes))
    text = text.replace("MIRROR", json.dumps(mirror)).replace(
        "CHECKPOINTS", json.dumps(checkpoints)
    )
    text = text.replace("STATE", f"state: {{url: {json.dumps(state)}}}" if state else "")
    made.write({"trainctl.yaml": text})
    if not (made.directory / "weights").exists():
        made.write({"weights/word": "read\n"})


def lives(made: ProjectHarness, nodes: int = 1) -> None:
    """From a plan to what is left, each command that asks one of the places."""
    made.run("apply", "--auto-approve", "--wait")
    logs = made.run("logs", "sft").stdout
    again = made.run("plan", "--detailed-exitcode").stdout
    made.run("mirror", "verify")
    made.run("mirror", "gc")
    (row,) = made.json("mirror", "list")["sources"]
    found = made.json("checkpoints", "list", "sft")["checkpoints"]
    place = made.run("checkpoints", "download", "sft").stdout.strip()
    addresses = made.json("checkpoints", "url", "sft")["checkpoint_artifacts"]

    assert logs.count("read\n") == nodes
    assert "No changes" in again
    assert row["files"] == 1
    assert {one["state"] for one in found} == {"complete"}
    assert (made.directory / place / "model").read_text() == "saved\n"
    for one in addresses:
        with urllib.request.urlopen(one["url"]) as answer:
            assert answer.read() == b"saved\n"


@pytest.fixture
def bucket() -> Iterator[BucketServer]:
    with moto() as one:
        yield one


@one_day_in(7)
def test_a_prefix_of_a_bucket(fresh: ProjectHarness, bucket: BucketServer) -> None:
    """What is written is the prefix of every key, as it is."""
    fresh.variables |= {
        "AWS_ENDPOINT_URL": bucket.endpoint,
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
    }
    write(fresh, f"s3://models/{AWKWARD}/mirror", f"s3://models/{AWKWARD}/%41")
    lives(fresh)
    client = boto3.client(
        "s3",
        endpoint_url=bucket.endpoint,
        aws_access_key_id=KEY_ID,
        aws_secret_access_key=SECRET,
        region_name="us-east-1",
    )
    keys = [one["Key"] for one in client.list_objects_v2(Bucket="models")["Contents"]]
    places = {key.removeprefix(f"{AWKWARD}/").partition("/")[0] for key in keys}
    assert places == {"mirror", "%41"}


@one_day_in(7)
def test_a_directory(fresh: ProjectHarness, tmp_path: Path) -> None:
    """Nothing is put beside it; what pathlib quotes is the same place as what people write."""
    place = tmp_path / "kept" / AWKWARD
    write(fresh, f"file://{place}/mirror", f"file://{place}/runs", f"file://{place}/state")
    lives(fresh)
    here = {one.name for one in place.iterdir()}
    mirror, runs, state = ((place / one).as_uri() for one in ("mirror", "runs", "state"))
    write(fresh, mirror, runs, state)
    same = fresh.run("plan", "--detailed-exitcode").stdout
    assert here == {"mirror", "runs", "state"}
    assert [one.name for one in (tmp_path / "kept").rglob("*") if one.name == "mirror"] == [
        "mirror"
    ]
    assert "No changes" in same


@one_day_in(10)
def test_a_directory_of_a_host(fresh: ProjectHarness, tmp_path: Path) -> None:
    """The host keeps the mirror there and serves it to the other; checkpoints lie in a directory of each."""
    require_sshd()
    user = SshUser(tmp_path / "user")
    with ExitStack() as stack:
        hosts = []
        for n in range(2):
            (tmp_path / f"gpu-{n}").mkdir()
            one = sshd(tmp_path / f"gpu-{n}", user, address=f"127.0.0.{n + 2}")
            hosts.append(stack.enter_context(one))
        user.known_hosts.write_text("".join(host.known for host in hosts))
        fresh.variables |= user.environment
        place = hosts[0].home / AWKWARD
        named = json.dumps([host.settings for host in hosts])
        clusters = f"clusters: {{lab: {{provider: ssh, hosts: {named}}}}}"
        runs = f"file://{tmp_path}/runs/{AWKWARD}"
        write(fresh, f"node://lab{place}", runs, clusters=clusters, nodes=2)
        lives(fresh, nodes=2)
        assert (place / "references").is_dir()
