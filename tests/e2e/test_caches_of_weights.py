"""Caches and the mirror as their users look after them, and several projects on the same ones."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.support.node_program.nodes import wait_for
from tests.support.projects.manifest_files import job, sleep_command, write_manifest
from tests.support.projects.project import ProjectHarness
from tests.support.storage.mirrors import stored
from tests.support.tiers import one_day_in
from trainctl_schemas import schema

SIZE = 40_000
APPLY = ("apply", "--auto-approve")


def cluster(made: ProjectHarness, size: str = "100kB") -> dict[str, Any]:
    """A cluster whose nodes cache so much beside the project."""
    place = {"dir": str(made.directory.parent / "nvme"), "size": size}
    return {"lab": {"provider": "local", "cache": {"node": place}}}


def wants(made: ProjectHarness, *names: str, name: str = "demo", command: str = "true") -> None:
    """Declare a job for each of the weights, which have a file of random bytes."""
    for one in names:
        if not (made.directory / one).exists():
            made.write({f"{one}/model.bin": os.urandom(SIZE)})
    weights = {one: {"source": f"file:./{one}", "mount_location": f"w/{one}"} for one in names}
    jobs = {one: job(command, weights=[one], cluster="lab") for one in names}
    write_manifest(made, jobs, weights=weights, clusters=cluster(made), project={"name": name})


def valid(made: ProjectHarness, name: str, *arguments: str, code: int = 0) -> Any:
    """What a command prints as JSON, held against its schema."""
    form = made.json(*arguments, code=code)
    Draft202012Validator(schema(name)).validate(form)
    return form


def holder(root: Path, content: bytes) -> Path:
    """The one file below a directory that holds a content, alone or in a pack."""
    files = (path for path in root.rglob("*") if path.is_file())
    (found,) = (path for path in files if content in path.read_bytes())
    return found


def flip(path: Path, content: bytes) -> None:
    """Change one byte of a content, and no time."""
    times = path.stat()
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[data.index(content) + SIZE // 2] ^= 1
    path.write_bytes(data)
    path.chmod(0o444)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@one_day_in(7)
def test_a_rate_is_planned_with_and_kept_to(fresh: ProjectHarness) -> None:
    """``max_rate`` beside a directory, and alone."""
    wants(fresh, "a")
    for cache in ({**cluster(fresh)["lab"]["cache"], "max_rate": "10MB"}, {"max_rate": "20MB"}):
        manifest = json.loads((fresh.directory / "trainctl.yaml").read_text())
        manifest["clusters"]["lab"]["cache"] = cache
        fresh.write({"trainctl.yaml": json.dumps(manifest)})
        fresh.run("plan")
        fresh.run(*APPLY, "--wait")

    assert fresh.actions() == {}


@one_day_in(5)
def test_a_limit_is_kept(fresh: ProjectHarness) -> None:
    """A third listing takes the place of the one used longest ago; the directory holds no more than it may."""
    wants(fresh, "a", "b")
    fresh.run(*APPLY, "--wait")
    wants(fresh, "a", "b", "c")
    fresh.run(*APPLY, "--wait")
    left = valid(fresh, "cache-evict", "cache", "evict", "lab", "--dry-run")["listings"]

    assert sorted(row["source"] for row in left)[1] == "file:./c"
    assert [row["outcome"] for row in left] == ["evicted", "evicted"]


@one_day_in(5)
def test_what_does_not_fit_is_found_while_planning(fresh: ProjectHarness) -> None:
    """Live runs' weights count; the plan says what there is, of how much, and what is needed: it waits, or where it alone is too much, is refused."""
    wants(fresh, "a", "b", command=sleep_command(300))
    fresh.run(*APPLY)
    wants(fresh, "a", "b", "c", command=sleep_command(300))
    waits = fresh.run("plan")
    fresh.write({"d/model.bin": os.urandom(3 * SIZE)})
    wants(fresh, "a", "b", "d", command=sleep_command(300))
    refused = fresh.run("plan", code=1)
    wants(fresh, "a", "b", "c", command=sleep_command(300))
    held = fresh.run("cache", "evict", "lab", "weights.a", code=1)
    fresh.run("stop", "a", "--grace", "0")
    fresh.run("plan")

    assert (
        "job.c: lab/lab-0 has 20.0 kB of 100 kB free in addition to" in waits.stdout + waits.stderr
    )
    assert "job.d: lab/lab-0 has 20.0 kB of 100 kB free but needs 120 kB for weights" in (
        refused.stdout + refused.stderr
    )
    assert "job.a run 1" in held.stdout
    assert "leased" in held.stdout


def in_turn(made: ProjectHarness) -> Path:
    """Declare three jobs that follow one another, each with weights of its own, of which the cache holds one; what they wait for."""
    names, gate = ("a", "b", "c"), made.directory.parent / "gate"
    wants(made, *names)
    weights = {one: {"source": f"file:./{one}", "mount_location": f"w/{one}"} for one in names}
    command = f"test -s w/*/model.bin; while ! test -e {gate}; do sleep 0.1; done"
    jobs = {one: job(command, weights=[one], cluster="lab") for one in names}
    jobs["b"]["depends_on"], jobs["c"]["depends_on"] = ["job.a"], ["job.b"]
    write_manifest(made, jobs, weights=weights, clusters=cluster(made, "50kB"))
    return gate


def is_completed(made: ProjectHarness, address: str) -> bool:
    """Whether a job's newest run is."""
    jobs = {one["address"]: one["status"] for one in made.json("status")["jobs"]}
    return jobs.get(address) == "TRAINING_JOB_COMPLETED"


@one_day_in(5)
def test_jobs_whose_weights_exceed_the_cache_together_go_one_after_another(
    fresh: ProjectHarness,
) -> None:
    """Nothing fails: whoever finds no room waits, and is carried on when the one before has ended."""
    gate = in_turn(fresh)

    applying = fresh.start(*APPLY, "--wait")
    wait_for(lambda: "waits" in [one["status"] for one in fresh.json("history")["entries"]], 60)
    gate.touch()
    said, _ = applying.communicate(timeout=120)

    assert applying.returncode == 0
    assert all(is_completed(fresh, address) for address in ("job.a", "job.b", "job.c"))
    assert "job.b: waits: node lab/lab-0: no space for the weights while job.a run 1" in said
    assert "failed" not in [one["status"] for one in fresh.json("history")["entries"]]
    assert fresh.actions() == {}


@one_day_in(7)
def test_a_watch_carries_on_what_waits_for_room(fresh: ProjectHarness) -> None:
    """An apply that doesn't wait leaves it, and says so; a look while there is no room starts nothing and leaves no trace."""
    gate = in_turn(fresh)

    left = fresh.events(*APPLY, "--format", "json", code=12)
    before = fresh.json("history")["entries"]
    fresh.run("reconcile", "--once")
    after = fresh.json("history")["entries"]
    waiting = valid(fresh, "status", "status")["pending_jobs"]
    told = fresh.run("status").stdout
    gate.touch()
    wait_for(lambda: is_completed(fresh, "job.a"), 60)
    fresh.run("reconcile", "--once")
    wait_for(lambda: is_completed(fresh, "job.b"), 60)
    fresh.run("reconcile", "--once")
    wait_for(lambda: is_completed(fresh, "job.c"), 60)

    assert [(one["address"], one["reason"]) for one in left[-1]["data"]["left_alone"]] == [
        ("job.b", "waits")
    ]
    assert after == before
    assert waiting == ["job.b", "job.c"]
    assert "Approved, not started yet (2): job.b, job.c" in told
    assert valid(fresh, "status", "status")["pending_jobs"] == []
    assert fresh.actions() == {}


@one_day_in(7)
def test_a_run_that_is_asked_for_while_there_is_no_room_lapses(fresh: ProjectHarness) -> None:
    """It is told how to have it; nothing promises that it comes by itself, and nothing does it."""
    gate = in_turn(fresh)
    gate.touch()
    fresh.run(*APPLY, "--wait")
    gate.unlink()
    fresh.run("run", "a", "--auto-approve")

    said = fresh.run("run", "c", "--auto-approve", code=12)

    assert "[waiting-for-disk-space]" in said.stderr
    assert "Run it again when other runs have ended." in said.stderr
    assert "job.c: not started. Run the command again when nothing blocks it." in said.stdout
    assert "trainctl reconcile" not in said.stdout + said.stderr
    assert valid(fresh, "status", "status")["pending_jobs"] == []


def test_flipped_bits_are_found_and_mended(fresh: ProjectHarness) -> None:
    """What is corrupt is deleted, in the mirror and in the node's cache; the plan sees the gap, and the next apply fills it."""
    wants(fresh, "a")
    fresh.run(*APPLY, "--wait")
    content = (fresh.directory / "a" / "model.bin").read_bytes()
    cached = holder(fresh.directory.parent / "nvme" / "blobs", content)
    for path in (holder(fresh.mirror, content), cached):
        flip(path, content)

    told = valid(fresh, "mirror-verify", "mirror", "verify", code=1)
    removed = valid(fresh, "mirror-verify", "mirror", "verify", "--repair", code=1)
    cache = valid(fresh, "cache-verify", "cache", "verify", "lab")
    again = fresh.run("cache", "verify", "lab", "--node", "lab-0", "--format", "csv").stdout
    actions = fresh.actions()
    fresh.run(*APPLY)

    assert ([one["outcome"] for one in told["findings"]], told["ok"]) == (["corrupt"], False)
    assert [one["outcome"] for one in removed["findings"]] == ["removed"]
    assert [(one["outcome"], one["corrupt_files"]) for one in cache["listings"]] == [
        ("evicted", ["model.bin"])
    ]
    assert not cached.exists()
    assert list(csv.DictReader(io.StringIO(again))) == []
    assert "weights.a" in actions
    assert valid(fresh, "mirror-verify", "mirror", "verify")["ok"]
    assert holder(fresh.mirror, content).is_file()


@one_day_in(7)
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("cache", "verify", "nowhere"), "cluster nowhere is not in the state"),
        (("cache", "evict", "lab", "weights.x"), "weights.x is not in the state"),
        (("cache", "evict", "lab", "--node", "x"), "cluster.lab has no node x"),
        (("mirror", "gc", "--drop-unused", "soon"), "--drop-unused: 'soon' is not a duration"),
    ],
)
def test_what_is_not_there_is_said(
    fresh: ProjectHarness, arguments: tuple[str, ...], said: str
) -> None:
    """Wrong names are wrong usage."""
    wants(fresh, "a")
    fresh.run(*APPLY, "--target", "cluster.lab")

    assert said in fresh.run(*arguments, code=64).stderr


def second(fresh: ProjectHarness) -> ProjectHarness:
    """Another project, with another state, beside the first."""
    other = ProjectHarness(fresh.directory.parent / "other", fresh.variables)
    other.directory.mkdir()
    return other


def end(*processes: subprocess.Popen[str]) -> None:
    """Wait for processes, all of which must succeed."""
    for process in processes:
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, out + err


@one_day_in(5)
def test_one_project_leaves_while_another_comes(fresh: ProjectHarness) -> None:
    """Destroy and gc of one beside apply of the other, on one mirror and one cache: the other is whole; together they leave nothing."""
    other = second(fresh)
    wants(fresh, "a", "b")
    fresh.run(*APPLY, "--wait")
    same = {
        f"{one}/model.bin": (fresh.directory / one / "model.bin").read_bytes() for one in ("a", "b")
    }
    other.write(same)
    wants(other, "a", "b", name="other", command="cat w/*/model.bin | sha256sum")
    end(
        fresh.start("destroy", "--auto-approve"),
        other.start(*APPLY, "--wait"),
        fresh.start("mirror", "gc"),
    )
    fresh.run("mirror", "gc")
    kept = valid(other, "mirror-gc", "mirror", "gc", "--dry-run")

    assert {one["project"] for one in kept["kept"]} == {"other"}
    assert valid(other, "mirror-verify", "mirror", "verify")["ok"]
    rows = valid(other, "cache-verify", "cache", "verify", "lab")["listings"]
    assert [row["outcome"] for row in rows] == ["ok", "ok"]
    other.run("destroy", "--auto-approve")
    freed = valid(other, "mirror-gc", "mirror", "gc")["freed"]
    assert freed["bytes"] == 2 * SIZE
    assert list((fresh.directory.parent / "nvme").iterdir()) == []
    assert list(fresh.nodes.iterdir()) == []
    assert stored(fresh.mirror) == {}


@one_day_in(7)
def test_a_node_that_fails_hides_no_other(fresh: ProjectHarness) -> None:
    """The others' caches are looked after and shown, it is named, and the exit code is 1; where nobody answers it is an error."""
    wants(fresh, "a")
    two = {"lab": {"provider": "local", "nodes": 2}}
    jobs = {"a": job("true", weights=["a"], cluster="lab")}
    weights = {"a": {"source": "file:./a", "mount_location": "w/a"}}
    write_manifest(fresh, jobs, weights=weights, clusters=two, project={"name": "demo"})
    fresh.run(*APPLY, "--wait")
    (fresh.nodes / "lab-1" / "cache" / "complete" / f"{'0' * 64}.json").mkdir(parents=True)
    verified = valid(fresh, "cache-verify", "cache", "verify", "lab", code=1)
    text = fresh.run("cache", "verify", "lab", code=1)
    evicted = valid(fresh, "cache-evict", "cache", "evict", "lab", code=1)
    alone = fresh.run("cache", "verify", "lab", "--node", "lab-1", code=1)

    assert [(one["node"], one["outcome"]) for one in verified["listings"]] == [("lab/lab-0", "ok")]
    assert [one["node"] for one in verified["unreachable"]] == ["lab/lab-1"]
    assert "1 listing verified" in text.stdout
    assert "Warning: lab/lab-1 is unreachable: " in text.stderr
    assert [one["outcome"] for one in evicted["listings"]] == ["evicted"]
    assert alone.stdout == ""
