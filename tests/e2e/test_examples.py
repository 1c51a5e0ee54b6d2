"""The examples of ``trainctl init``: each can be planned in an empty home, and is run where that needs no GPU."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.support.machines.sshd import SshUser, require_sshd, sshds
from tests.support.projects.project import ProjectHarness
from tests.support.pytorch import pytorch
from trainctl.operations.manifests.init import EXAMPLES

HOSTS = "hosts: [gpu-01, gpu-02]"


@pytest.mark.parametrize("example", ["", *EXAMPLES])
def test_a_new_project_can_be_planned(fresh: ProjectHarness, example: str) -> None:
    """An example, and the manifest without one, as they are; hosts and the Hub are not asked."""
    fresh.run("init", *(["--example", example] if example else []))
    plan = fresh.json("plan", "--offline")
    assert plan["errored"] is False
    assert plan["summary"]["add"] >= 3
    expected = ["machines-not-planned"] if example == "terraform" else []
    assert [problem["code"] for problem in plan["diagnostics"]] == expected


@pytest.mark.long
def test_two_hosts(tmp_path: Path, fresh: ProjectHarness) -> None:
    """With other hosts than those named in the example."""
    require_sshd()
    user = SshUser(tmp_path / "user")
    fresh.variables.update(user.environment)
    fresh.run("init", "--example", "two-hosts")
    with sshds(tmp_path, user, 2) as hosts:
        user.known_hosts.write_text("".join(host.known for host in hosts))
        edit(fresh, HOSTS, f"hosts: {json.dumps([host.settings for host in hosts])}")
        fresh.run("apply", "--auto-approve", "--wait")
        log = fresh.run("logs", "job.count").stdout
        fresh.run("destroy", "--auto-approve")
    assert "[rank 0] rank 0 of 2: 4 of 7 words" in log
    assert "[rank 1] rank 1 of 2: 3 of 7 words" in log


@pytest.mark.long
def test_lora(fresh: ProjectHarness) -> None:
    """On a model that is made for it; the checkpoints are adapters of it."""
    python = pytorch("transformers", "peft") / "bin" / "python"
    fresh.run("init", "--example", "lora")
    words = [str(python), "tiny_model.py", "model"]
    subprocess.run(words, cwd=fresh.directory, check=True, capture_output=True)
    chosen = ("--var", "base=file:./model", "--var", f"python={python}")
    fresh.run("apply", "--auto-approve", "--wait", *chosen, seconds=600)
    listed = fresh.json("checkpoints", "list", "job.lora")["checkpoints"]
    assert [(entry["step"], entry["type"]) for entry in listed] == [
        (3, "lora"),
        (6, "lora"),
        (9, "lora"),
    ]


def test_sweep(fresh: ProjectHarness) -> None:
    """Train, evaluate each checkpoint, name the best one and write what serves it."""
    fresh.run("init", "--example", "sweep")
    edit(fresh, "lr: [0.1, 0.3, 1.0]", "lr: [0.1]")
    fresh.run("apply", "--auto-approve", "--wait")
    by = ("--by", "evaluate.test_loss")
    listed = fresh.json("checkpoints", "list", "job.fit", *by)["checkpoints"]
    best = listed[0]
    written = fresh.run("checkpoints", "deploy", "job.fit", *by, "--out", "served").stdout
    refused = fresh.run("checkpoints", "deploy", "job.fit", "--checkpoint", "best", code=64).stderr
    assert "Use --by KEY, or set keep_best of checkpoints." in refused
    assert len(listed) == 12
    assert (best["job"], best["step"]) == ('job.fit["lr=0.1,seed=2"]', 200)
    assert "Wrote served/model: checkpoint-200, full, 3 files" in written


def edit(project: ProjectHarness, old: str, new: str) -> None:
    path = project.directory / "trainctl.yaml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
