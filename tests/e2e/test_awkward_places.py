"""Places whose names hold spaces and characters of URLs: mirror and checkpoints in a bucket, state in a directory."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import boto3

from tests.support.projects.project import ProjectHarness
from tests.support.servers.buckets import KEY_ID, SECRET, moto

AWKWARD = "my models/50% off #1 (ü), a+b & c=d; ~'?"
MANIFEST = """\
project: {name: demo}
mirror: {url: MIRROR}
checkpoints: {url: CHECKPOINTS}
state: {url: STATE}
weights: {model: {source: "file:./weights"}}
jobs:
  sft:
    weights: [model]
    runtime:
      start_commands: ["cat $TRAINCTL_WEIGHTS_MODEL/word; mkdir $BT_CHECKPOINT_DIR/step-1; echo saved > $BT_CHECKPOINT_DIR/step-1/model"]
      checkpointing_config: {enabled: true}
"""


def test_awkward_names_are_taken_as_they_are(fresh: ProjectHarness, tmp_path: Path) -> None:
    """From a plan to the downloaded checkpoint; each name is the prefix of the keys and the directory, unchanged."""
    place = tmp_path / "kept" / AWKWARD
    places = {
        "MIRROR": f"s3://models/{AWKWARD}/mirror",
        "CHECKPOINTS": f"s3://models/{AWKWARD}/%41",
        "STATE": f"file://{place}/state",
    }
    text = MANIFEST
    for word, url in places.items():
        text = text.replace(word, json.dumps(url))
    fresh.write({"trainctl.yaml": text, "weights/word": "read\n"})
    with moto() as bucket:
        fresh.variables |= {
            "AWS_ENDPOINT_URL": bucket.endpoint,
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }
        fresh.run("apply", "--auto-approve", "--wait")
        assert fresh.run("logs", "sft").stdout == "read\n"
        assert "No changes" in fresh.run("plan", "--detailed-exitcode").stdout
        fresh.run("mirror", "verify")
        fresh.run("mirror", "gc")
        (row,) = fresh.json("mirror", "list")["sources"]
        assert row["files"] == 1
        checkpoint = fresh.run("checkpoints", "download", "sft").stdout.strip()
        assert (fresh.directory / checkpoint / "model").read_text() == "saved\n"
        (artifact,) = fresh.json("checkpoints", "url", "sft")["checkpoint_artifacts"]
        with urllib.request.urlopen(artifact["url"]) as answer:
            assert answer.read() == b"saved\n"
        client = boto3.client(
            "s3",
            endpoint_url=bucket.endpoint,
            aws_access_key_id=KEY_ID,
            aws_secret_access_key=SECRET,
            region_name="us-east-1",
        )
        keys = [row["Key"] for row in client.list_objects_v2(Bucket="models")["Contents"]]
    assert {key.removeprefix(f"{AWKWARD}/").partition("/")[0] for key in keys} == {"mirror", "%41"}
    assert [path.name for path in place.iterdir()] == ["state"]
