"""Two hosts, two trainings of 12 checkpoints, nobody logged in, and supervisors that are killed at random moments.

Each complete checkpoint is evaluated once: none twice, none forgotten, no unfinished one.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.machines.hosts import FakeHost, HostLab, client_project, host_lab
from tests.support.node_program.nodes import wait_for

MANIFEST = """\
project: {name: demo}
clusters: {lab: {provider: ssh, hosts: HOSTS}}
jobs:
  fit:
    code: ./src
    compute: {accelerator: none}
    matrix: {seed: [1, 2]}
    runtime:
      start_commands: ["python3 fit.py ${{ matrix.seed }}"]
      checkpointing_config: {enabled: true}
  eval:
    code: ./src
    compute: {accelerator: none}
    matrix: {seed: [1, 2]}
    for_each_checkpoint: {job: fit}
    runtime: {start_commands: ["python3 eval.py"]}
"""
FIT = """\
import os, pathlib, time

for step in range(10, 130, 10):
    target = pathlib.Path(os.environ["BT_CHECKPOINT_DIR"], f"checkpoint-{step}")
    target.mkdir()
    (target / "model.bin").write_text(str(step))
    time.sleep(PAUSE)
"""
EVAL = """\
import glob, json, os, time

(path,) = glob.glob(os.environ["BT_LOAD_CHECKPOINT_DIR"] + "/*/rank-0/*/model.bin")
step = int(open(path).read())
with open(os.path.expanduser("~/evaluated"), "a") as file:
    file.write(f"{step}\\n")
time.sleep(0.3)
with open(os.environ["TRAINCTL_PROGRESS"], "a") as file:
    file.write(json.dumps({"accuracy": 1 - abs(step - 70) / 1000}) + "\\n")
"""


def runs(host: FakeHost, job: str) -> list[dict[str, Any]]:
    """What the host has recorded of the runs of a sweep, with the process that has claimed each."""
    found = []
    for spec in host.home.glob(".cache/trainctl/runs/*/spec.json"):
        claims = sorted(spec.parent.glob("claim.*"), key=lambda path: int(path.suffix[1:]))
        if json.loads(spec.read_bytes())["address"].startswith(f"job.{job}[") and claims:
            record = json.loads(spec.with_name("run.json").read_bytes())
            found.append({**record, "pid": json.loads(claims[-1].read_bytes())["pid"]})
    return found


def evaluated(host: FakeHost) -> Counter[int]:
    """How often an evaluation of each step has begun."""
    path = host.home / "evaluated"
    return Counter(map(int, path.read_text().split())) if path.exists() else Counter()


def complete(host: FakeHost) -> set[int]:
    manifests = host.home.glob(".local/share/trainctl/checkpoints/demo/*/*/.complete/rank-0/*.json")
    return {json.loads(path.read_bytes())["step"] for path in manifests}


def kill_some(lab: HostLab, chance: random.Random, kills: int) -> None:
    """Kill supervisors of evaluations at random moments, and once that of the second training."""
    training = chance.randrange(kills)
    for number in range(kills):
        time.sleep(chance.uniform(0.1, 0.9))
        host = lab.hosts[1] if number == training else chance.choice(lab.hosts)
        for run in runs(host, "fit" if number == training else "eval"):
            if not run.get("ended_at"):
                host.do("sh", "-c", f"kill -9 {run['pid']} 2>/dev/null || true")


@pytest.mark.parametrize(
    "kills", [6, pytest.param(50, marks=pytest.mark.long)], ids=["short", "long"]
)
def test_each_checkpoint_is_evaluated_once(tmp_path: Path, kills: int) -> None:
    """Each evaluation begins once; one that was running when its supervisor was killed is shown as interrupted."""
    with host_lab(tmp_path / "lab", 2) as lab, client_project(lab, tmp_path) as project:
        hosts = json.dumps([host.settings for host in lab.hosts])
        files = {
            "trainctl.yaml": MANIFEST.replace("HOSTS", hosts),
            "src/fit.py": FIT.replace("PAUSE", "0.3" if kills < 10 else "2"),
            "src/eval.py": EVAL,
        }
        project.write(files)
        project.run("apply", "--auto-approve")
        kill_some(lab, random.Random(kills), kills)
        wait_for(lambda: all(run.get("ended_at") for host in lab.hosts for run in runs(host, "eval")), 90)  # fmt: skip
        statuses = project.json("status")["jobs"]
        listed = project.json("checkpoints", "list", "fit", "--by", "eval.accuracy:max")
        of_hosts = [(complete(host), evaluated(host)) for host in lab.hosts]
        project.run("destroy", "--auto-approve")

    assert of_hosts[0][0] == set(range(10, 130, 10))
    for saved, begun in of_hosts:
        assert saved >= begun.keys()
        assert not begun or max(begun.values()) == 1
    rows = [row for status in statuses for row in status["evaluations"] or ()]
    assert len(rows) == sum(len(saved) for saved, _ in of_hosts)
    completed = [row for row in rows if row["status"] == "completed"]
    assert {row["status"] for row in rows} <= {"completed", "interrupted"}
    assert len(rows) - len(completed) <= kills
    assert len(completed) <= sum(begun.total() for _, begun in of_hosts)
    by_value = sorted((-row["values"]["accuracy"], row["step"]) for row in completed)
    best = [row["step"] for row in listed["checkpoints"] if row["value"] is not None]
    assert best == [step for _, step in by_value]
