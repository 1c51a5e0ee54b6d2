"""Hosts without a common directory, where rank 0 saves: every rank resumes, wherever the run's record says that its checkpoints are."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.support.machines.sshd import SshUser, require_sshd, sshds
from tests.support.projects.project import ProjectHarness

MANIFEST = """\
project: {name: demo}
clusters: {lab: {provider: ssh, hosts: HOSTS}}
jobs:
  ddp:
    code: ./src
    compute: {node_count: 3}
    runtime:
      start_commands: [python3 train.py]
      checkpointing_config: {enabled: true}
"""
TRAIN = """\
import os, pathlib, random

loaded = pathlib.Path(os.environ.get("BT_LOAD_CHECKPOINT_DIR", "/nowhere")).glob("ddp/rank-0/*/model.bin")
print([(path.parent.name, sum(path.read_bytes())) for path in loaded], flush=True)
if os.environ["BT_NODE_RANK"] == "0":
    target = pathlib.Path(os.environ["BT_CHECKPOINT_DIR"], "checkpoint-60")
    target.mkdir()
    (target / "a.bin").write_bytes(random.Random(7).randbytes(2**24 + 5000))
    (target / "model.bin").symlink_to("a.bin")
"""
RESUME = ("run", "ddp", "--resume", "--auto-approve")


def loaded(project: ProjectHarness) -> list[str]:
    """What each rank of the newest run says it began with."""
    return sorted(project.run("logs", "ddp").stdout.splitlines())


def test_what_rank_0_saved_reaches_every_rank(fresh: ProjectHarness, tmp_path: Path) -> None:
    """Each byte leaves its host once. A resume that failed stays one, also with another store, which then has a group's modes."""
    require_sshd()
    user, store = SshUser(tmp_path / "user"), tmp_path / "store"
    fresh.variables.update(user.environment)
    with sshds(tmp_path, user, 3) as hosts:
        user.known_hosts.write_text("".join(host.known for host in hosts))
        text = MANIFEST.replace("HOSTS", json.dumps([host.settings for host in hosts]))
        fresh.write({"trainctl.yaml": text, "src/train.py": TRAIN})
        fresh.run("apply", "--auto-approve", "--wait")
        (saved,) = hosts[0].home.rglob("checkpoint-60/model.bin")
        good, times = saved.read_bytes(), saved.stat()
        saved.write_bytes(b"x" * len(good))
        os.utime(saved, ns=(times.st_atime_ns, times.st_mtime_ns))
        failed = fresh.run(*RESUME, code=1)
        saved.write_bytes(good)
        os.utime(saved, ns=(times.st_atime_ns, times.st_mtime_ns))
        store.mkdir()
        store.chmod(0o2770)
        fresh.write({"trainctl.yaml": f"checkpoints: {{url: 'file://{store}'}}\n{text}"})
        changed = fresh.run("plan").stdout
        fresh.run("apply", "--auto-approve", "--wait")
        status, second = fresh.json("status", "ddp"), loaded(fresh)
        fresh.run("destroy", "--auto-approve")
        kept = fresh.json("checkpoints", "list", "--kept")["checkpoints"]
        download = ("checkpoints", "download", "ddp", "--kept", "--run", "1")
        place = fresh.run(*download, "--output-dir", "src/out")

    assert "digest mismatch" in failed.stderr
    assert "resumes; to start from the beginning: trainctl run job.ddp" in changed
    assert f'+ checkpoint_store = "file://{store}"' in changed
    begun = f"[('checkpoint-60', {sum(good)})]"
    assert second == [f"[rank {rank}] {begun}" for rank in range(3)]
    tiers = [row["bytes_by_tier"] for row in status["deliveries"]]
    size = tiers[0]["mirror"] + tiers[0]["peers"]
    assert sum(tier["mirror"] for tier in tiers) == sum(tier["peers"] for tier in tiers) == size
    assert {path.stat().st_mode & 0o7777 for path in store.rglob("*")} == {0o2770, 0o660}
    assert [row["name"] for row in kept] == ["checkpoint-60"] * 2
    assert (fresh.directory / place.stdout.strip() / "model.bin").read_bytes() == good
    assert "left out of the code" in place.stderr
