"""Everything that runs report, after their nodes are gone."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.node_program.nodes import all_text_below, wait_for
from tests.support.projects.project import ProjectHarness, processes
from tests.support.servers.buckets import BucketServer, rclone

MANIFEST = """\
project: {name: demo}
secrets:
  key: {from: env, name: PASSPHRASE}
  bucket: {from: env, name: BUCKET}
state: {url: "STATE", encryption: {keys: [{id: k1, secret: key}]}}
MORE
jobs:
  fit:
    code: ./src
    matrix: {lr: [1, 2]}
    runtime:
      start_commands: ["python3 train.py ${{ matrix.lr }}"]
      checkpointing_config: {enabled: ENABLED}
"""
TRAIN = """\
import json, os, sys

with open(os.environ["TRAINCTL_PROGRESS"], "a") as file:
    for step in range(1, 1001):
        print(json.dumps({"step": step, "loss": int(sys.argv[1]) / step}), file=file)
        if step % 100 == 0:
            print(json.dumps({"a key of nobody's": step, "time": 1.7e9 + step}), file=file)
"""


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BucketServer]:
    """A bucket of rclone."""
    with rclone(tmp_path_factory.mktemp("s3") / "root") as server:
        yield server


def write(fresh: ProjectHarness, enabled: str = "false", more: str = "") -> None:
    fresh.variables["PASSPHRASE"] = "a passphrase of the state"
    manifest = MANIFEST.replace("MORE", more).replace("ENABLED", enabled)
    manifest = manifest.replace("STATE", (fresh.directory / "state").as_uri(), 1)
    fresh.write({"trainctl.yaml": manifest, "src/train.py": TRAIN})
    fresh.trust('secret = "bucket"\nhosts = ["127.0.0.1"]')


def assert_complete(runs: list[dict[str, Any]]) -> None:
    """Each point of both runs, in its order."""
    assert [run["matrix"]["lr"] for run in runs] == ["1", "2"]
    for run, factor in zip(runs, (1, 2), strict=True):
        loss, other = (run["points"][key] for key in ("loss", "a key of nobody's"))
        assert loss["values"] == [factor / step for step in range(1, 1001)]
        assert loss["steps"] == [*range(1, 1001)]
        assert loss["times"] == sorted(loss["times"])
        assert other["values"] == other["steps"] == [*range(100, 1001, 100)]
        assert other["times"] == [1.7e9 + step for step in range(100, 1001, 100)]
        assert math.isclose(run["results"]["loss"]["min"]["value"], factor / 1000)


def test_points_of_a_plain_script_outlive_its_nodes(fresh: ProjectHarness) -> None:
    """Kept by the command that sees the end, encrypted as the state is, and wherever it moves to."""
    write(fresh)
    fresh.run("apply", "--auto-approve", "--wait")
    shutil.rmtree(fresh.nodes)
    assert_complete(fresh.json("results", "fit")["runs"])
    assert b"of nobody" not in all_text_below(fresh.directory / "state")
    moved = (fresh.directory / "moved").as_uri()
    fresh.run("state", "migrate", moved)
    shutil.rmtree(fresh.directory / "state")
    assert_complete(fresh.json("results", "fit", "--state", moved)["runs"])


def test_points_are_uploaded_with_checkpoints(fresh: ProjectHarness, bucket: BucketServer) -> None:
    """Those of nodes that are gone before any command sees the end."""
    fresh.variables["BUCKET"] = json.dumps(bucket.credential)
    place = f"checkpoints: {{url: s3://models/points, endpoint_url: '{bucket.endpoint}', auth: {{auth_secret_name: bucket}}}}"
    write(fresh, "true", place)
    fresh.run("apply", "--auto-approve")
    wait_for(lambda: not processes(str(fresh.nodes)))  # the runs have ended
    shutil.rmtree(fresh.nodes)
    assert_complete(fresh.json("results", "fit")["runs"])
    assert "0.001" in fresh.run("results", "fit").stdout


def test_a_sweep_in_logs_and_plots(fresh: ProjectHarness) -> None:
    """Lines of all runs by time, a plot for each; the same at its end and while it is watched."""
    write(fresh)
    script = (
        TRAIN
        + """
import time

for number in range(3):
    time.sleep(1.1 + int(sys.argv[1]) * 0.5 * (number == 0))
    print("line", number, flush=True)
"""
    )
    fresh.write({"src/train.py": script})
    fresh.run("apply", "--auto-approve")
    followed = fresh.run("logs", "fit", "--follow").stdout.splitlines()
    watched = fresh.run("status", "fit", "--watch").stdout.strip().split("\n\n\n")[-1]
    lines = [f"[lr={lr}] line {number}" for lr in (1, 2) for number in range(3)]
    assert sorted(followed) == lines
    assert sorted(fresh.run("logs", "fit").stdout.splitlines()) == lines
    last = fresh.run("logs", "fit", "--tail", "1").stdout.splitlines()
    assert sorted(last) == [lines[2], lines[5]]
    events = fresh.events("logs", "fit", "--format", "json")[:-1]
    assert [event["time"] for event in events] == sorted(event["time"] for event in events)
    for lr in (1, 2):
        own = [event["message"] for event in events if f"lr={lr}" in event["address"]]
        assert own == ["line 0", "line 1", "line 2"]

    assert watched.strip() == fresh.run("status", "fit").stdout.strip()
    plots = fresh.run("metrics", "fit", "--key", "loss", "--plot").stdout.splitlines()
    assert plots[0] == "loss"
    assert [line.split()[0] for line in plots[1:3]] == ["lr=1", "lr=2"]
    assert plots[1].endswith("0.001 to 1, last 0.001")
    assert "a key of nobody's" in fresh.run("metrics", "fit", "--follow").stdout
    assert "Did you mean loss?" in fresh.run("metrics", "fit", "--key", "los", code=64).stderr
    single = fresh.run("metrics", 'fit["lr=2"]', "--plot", "--follow").stdout
    assert "0.002 to 2, last 0.002" in single
    assert "CPU (cores)" in single
    again = fresh.run("run", "fit", "--auto-approve", "--follow").stdout.splitlines()
    assert sorted(line for line in again if line.startswith("[lr=")) == lines
