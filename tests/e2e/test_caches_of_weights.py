"""Node caches and the mirror: limits, damage, and several projects that share them."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.support.node_program.nodes import wait_for
from tests.support.projects.manifest_files import job, write_manifest
from tests.support.projects.project import ProjectHarness
from tests.support.storage.mirrors import stored
from trainctl_schemas import schema

SIZE = 40_000
APPLY = ("apply", "--auto-approve")


def write(
    created: ProjectHarness,
    *names: str,
    project: str = "demo",
    command: str = "true",
    size: str = "100kB",
    in_order: bool = False,
) -> None:
    """Declare weights of ``SIZE`` random bytes each, a job for each, and the size of the node's cache."""
    for name in names:
        if not (created.directory / name).exists():
            created.write({f"{name}/model.bin": os.urandom(SIZE)})
    weights = {name: {"source": f"file:./{name}", "mount_location": f"w/{name}"} for name in names}
    jobs = {name: job(command, weights=[name], cluster="lab") for name in names}
    for earlier, later in zip(names, names[1:] if in_order else (), strict=False):
        jobs[later]["depends_on"] = [f"job.{earlier}"]
    cache = {"node": {"dir": str(created.directory.parent / "nvme"), "size": size}}
    clusters = {"lab": {"provider": "local", "cache": cache}}
    write_manifest(created, jobs, weights=weights, clusters=clusters, project={"name": project})


def valid(project: ProjectHarness, name: str, *arguments: str, code: int = 0) -> Any:
    """The JSON that a command prints, validated against its schema."""
    document = project.json(*arguments, code=code)
    Draft202012Validator(schema(name)).validate(document)
    return document


@pytest.fixture
def gate(fresh: ProjectHarness) -> Path:
    """Three jobs in order, whose weights fill the cache each; a file for whose existence they wait."""
    gate = fresh.directory.parent / "gate"
    command = f"test -s w/*/model.bin; while ! test -e {gate}; do sleep 0.1; done"
    write(fresh, "a", "b", "c", command=command, size="50kB", in_order=True)
    return gate


def is_completed(project: ProjectHarness, address: str) -> bool:
    jobs = {row["address"]: row["status"] for row in project.json("status")["jobs"]}
    return jobs.get(address) == "TRAINING_JOB_COMPLETED"


def test_jobs_whose_weights_exceed_the_cache_together_run_one_after_another(
    fresh: ProjectHarness, gate: Path
) -> None:
    applying = fresh.start(*APPLY, "--wait")
    wait_for(lambda: "waits" in [row["status"] for row in fresh.json("history")["entries"]], 120)
    gate.touch()
    output, _ = applying.communicate(timeout=300)

    assert applying.returncode == 0
    assert all(is_completed(fresh, address) for address in ("job.a", "job.b", "job.c"))
    assert "job.b: waits: node lab/lab-0: no space for the weights while job.a run 1" in output
    assert "failed" not in [row["status"] for row in fresh.json("history")["entries"]]
    assert fresh.actions() == {}


def file_with(root: Path, content: bytes) -> Path:
    """The file that holds a blob, alone or in a pack."""
    files = (path for path in root.rglob("*") if path.is_file())
    (result,) = (path for path in files if content in path.read_bytes())
    return result


def flip(path: Path, content: bytes) -> None:
    """Change one byte of a blob, and no time."""
    times = path.stat()
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[data.index(content) + SIZE // 2] ^= 1
    path.write_bytes(data)
    path.chmod(0o444)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_corrupt_blobs_are_deleted_and_the_next_apply_restores_them(fresh: ProjectHarness) -> None:
    """In the mirror and in the node's cache."""
    write(fresh, "a")
    fresh.run(*APPLY, "--wait")
    content = (fresh.directory / "a" / "model.bin").read_bytes()
    cached = file_with(fresh.directory.parent / "nvme" / "blobs", content)
    for path in (file_with(fresh.mirror, content), cached):
        flip(path, content)

    verified = valid(fresh, "mirror-verify", "mirror", "verify", code=1)
    repaired = valid(fresh, "mirror-verify", "mirror", "verify", "--repair", code=1)
    cache = valid(fresh, "cache-verify", "cache", "verify", "lab")
    again = fresh.run("cache", "verify", "lab", "--node", "lab-0", "--format", "csv").stdout
    actions = fresh.actions()
    fresh.run(*APPLY)

    assert [row["outcome"] for row in verified["findings"]] == ["corrupt"]
    assert [row["outcome"] for row in repaired["findings"]] == ["removed"]
    rows = [(row["outcome"], row["corrupt_files"]) for row in cache["listings"]]
    assert rows == [("evicted", ["model.bin"])]
    assert not cached.exists()
    assert list(csv.DictReader(io.StringIO(again))) == []
    assert "weights.a" in actions
    assert valid(fresh, "mirror-verify", "mirror", "verify")["ok"]
    assert file_with(fresh.mirror, content).is_file()


def test_one_project_is_destroyed_while_another_is_applied(fresh: ProjectHarness) -> None:
    """With a collection at the same time, on one mirror and one cache: the other project's weights stay complete."""
    other = ProjectHarness(fresh.directory.parent / "other", fresh.variables)
    other.directory.mkdir()
    write(fresh, "a", "b")
    fresh.run(*APPLY, "--wait")
    for name in ("a", "b"):
        other.write({f"{name}/model.bin": (fresh.directory / name / "model.bin").read_bytes()})
    write(other, "a", "b", project="other", command="cat w/*/model.bin | sha256sum")
    processes = [
        fresh.start("destroy", "--auto-approve"),
        other.start(*APPLY, "--wait"),
        fresh.start("mirror", "gc"),
    ]
    for process in processes:
        output, errors = process.communicate(timeout=300)
        assert process.returncode == 0, output + errors
    fresh.run("mirror", "gc")
    kept = valid(other, "mirror-gc", "mirror", "gc", "--dry-run")["kept"]

    assert {row["project"] for row in kept} == {"other"}
    assert valid(other, "mirror-verify", "mirror", "verify")["ok"]
    rows = valid(other, "cache-verify", "cache", "verify", "lab")["listings"]
    assert [row["outcome"] for row in rows] == ["ok", "ok"]
    other.run("destroy", "--auto-approve")
    assert valid(other, "mirror-gc", "mirror", "gc")["freed"]["bytes"] == 2 * SIZE
    assert list((fresh.directory.parent / "nvme").iterdir()) == []
    assert list(fresh.nodes.iterdir()) == []
    assert stored(fresh.mirror) == {}


def test_a_source_of_two_jobs_is_counted_and_delivered_once(fresh: ProjectHarness) -> None:
    """By ``plan``, ``status`` and ``history``; the cache has space for one copy."""
    jobs = {name: job("cat */m* | wc -c", weights=["file:./a"]) for name in ("x", "y")}
    fresh.write({"a/model.bin": os.urandom(SIZE)})
    clusters = {"box": {"provider": "local", "cache": {"node": {"size": "60kB"}}}}
    write_manifest(fresh, jobs, clusters=clusters, project={"name": "demo"})

    plan = fresh.json("plan")
    text = fresh.run("plan").stdout
    fresh.run(*APPLY, "--wait")
    rows = fresh.json("status")["jobs"]

    assert [row["code"] for row in plan["diagnostics"] if row["code"] != "no-gpus"] == []
    assert "box/box-0: 40.0 kB to transfer, 60.0 kB free." in text
    assert sorted(entry["bytes"] for row in rows for entry in row["mirrored"]) == [0, SIZE]
    tiers = [entry["bytes_by_tier"] for row in rows for entry in row["deliveries"]]
    assert sorted(sum(tier.values()) - tier["node"] for tier in tiers) == [0, SIZE]
