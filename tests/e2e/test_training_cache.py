"""Training caches as users meet them: shared, prepared, moved away from, looked into, cleared, and gone with the last."""

from __future__ import annotations

import csv
import io
import json
import os
import time
from pathlib import Path
from typing import Any

from tests.support.projects.project import ProjectHarness

APPLY = ("apply", "--auto-approve", "--wait")
MANIFEST: dict[str, Any] = {
    "clusters": {"a": {"provider": "local"}, "b": {"provider": "local"}},
    "projects": {"one": {}, "two": {}},
    "caches": {"work": {"project": "one", "cluster": "a", "size": "2kB"}},
}


def job(*commands: str, project: str = "one", cluster: str = "a", **cache: Any) -> dict[str, Any]:
    """A job with a cache."""
    config = {"enabled": True, **cache}
    runtime = {"start_commands": list(commands), "cache_config": config}
    return {"project": project, "cluster": cluster, "runtime": runtime}


def declare(project: ProjectHarness, jobs: dict[str, Any], **more: Any) -> None:
    project.write({"trainctl.yaml": json.dumps({**MANIFEST, **more, "jobs": jobs})})


def codes(project: ProjectHarness, *flags: str) -> list[tuple[str, str]]:
    """What a plan warns of and refuses, about caches."""
    problems = project.json("plan", *flags, code=None)["diagnostics"]
    return [(row["severity"], row["code"]) for row in problems if row["code"].startswith("cache-")]


def test_a_cache_from_the_first_run_to_the_last_project(fresh: ProjectHarness) -> None:
    """Prepared once for two jobs, shared with the team, summarized in every form, too full, cleared, and gone."""
    fetch = "echo fetched; head -c 1500 /dev/zero > $BT_PROJECT_CACHE_DIR/data; echo x >> $BT_TEAM_CACHE_DIR/count"
    jobs = {
        "first": job("cat $BT_TEAM_CACHE_DIR/count", prepare_commands=[fetch]),
        "second": job("cat $BT_TEAM_CACHE_DIR/count", prepare_commands=[fetch]),
        "other": job("echo hub > ~/.cache/huggingface/token", project="two", enable_legacy_hf_mount=True),
    }  # fmt: skip
    declare(fresh, jobs)
    fresh.run(*APPLY)

    assert [fresh.run("logs", name).stdout for name in ("first", "second")] == ["x\n", "x\n"]
    printed = [fresh.run("logs", name, "--prepare").stdout for name in ("first", "second")]
    assert sorted(printed) == ["", "fetched\n"]
    item, other = ("first", "second") if printed[0] else ("second", "first")
    output = fresh.run("logs", other, "--prepare").stderr
    assert f"prepared by run 1 ({fresh.json('status', item)['run']}) of job.{item}" in output
    result = fresh.json("cache", "summarize", "one")
    assert (result["cache"], result["total_files"], result["total_size_bytes"]) == (
        "cache.work",
        1,
        1500,
    )
    assert [file["path"] for file in result["files"]] == ["data"]
    assert "1.50 KB" in fresh.run("cache", "summarize", "one").stdout
    hub = fresh.run("cache", "summarize", "two", "-o", "csv", "--sort", "size", "--order", "desc")
    assert [row[0] for row in csv.reader(io.StringIO(hub.stdout))] == [
        "File Path", "huggingface/token", "huggingface"
    ]  # fmt: skip
    assert fresh.json("cache", "summarize", "two", "--team")["total_files"] == 1
    assert codes(fresh) == []

    cache = Path(result["directory"])
    (cache / "old").write_bytes(b"x" * 1000)
    os.utime(cache / "old", (time.time() - 40 * 86_400,) * 2)
    summary = fresh.run("cache", "summarize", "one")
    assert (
        "cache.work contains 2.50 KB, more than its size limit of 2.00 KB [cache-too-full]"
        in summary.stderr
    )
    assert codes(fresh) == [("warning", "cache-too-full")]
    assert "more than its size limit of 2kB" in fresh.run("status").stderr
    fresh.run("cache", "clear", "one", code=64)
    done = fresh.json("cache", "clear", "one", "--older-than", "30d", "--auto-approve")
    assert (done["files"], done["bytes"]) == (1, 1000)
    assert codes(fresh) == []

    plan = fresh.run("plan", "--destroy").stdout
    assert f"{cache} is deleted with 1.5 kB in 1 file" in plan
    assert ".team is deleted with 2 B in 1 file" in plan
    fresh.run("destroy", "--auto-approve")
    assert not fresh.nodes.exists() or list(fresh.nodes.iterdir()) == []


def test_a_team_cache_of_two_states(fresh: ProjectHarness) -> None:
    """A declared directory that two states share stays until the second lets go; a project without one is told so."""
    shared = fresh.directory.parent / "shared"
    caches = {"all": {"scope": "team", "cluster": "a", "dir": str(shared)}}
    declare(fresh, {"sft": job("touch $BT_TEAM_CACHE_DIR/data")}, caches=caches)
    fresh.run(*APPLY)
    fresh.run("--state", f"file://{fresh.directory.parent}/second", *APPLY)

    assert (shared / "data").exists()
    assert (
        "two has no training cache yet [no-training-cache]"
        in fresh.run("cache", "summarize", "two").stderr
    )
    assert "is kept for 1 other" in fresh.run("plan", "--destroy").stdout
    fresh.run("destroy", "--auto-approve")
    assert (shared / "data").exists()
    fresh.run("--state", f"file://{fresh.directory.parent}/second", "destroy", "--auto-approve")
    assert not shared.exists()
