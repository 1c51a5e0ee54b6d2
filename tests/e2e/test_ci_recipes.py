"""The recipes of examples/ci, step by step against GitHub and GitLab: what was approved is applied, once."""

from __future__ import annotations

import importlib.resources
import json
import subprocess
import sysconfig
from pathlib import Path

import jsonschema
import pytest

from tests.support.projects.manifest_files import WEIGHTS, job, write_manifest
from tests.support.projects.program import ROOT
from tests.support.projects.project import ProjectHarness
from tests.support.projects.recipes import Runner, git, recipe
from tests.support.servers.reviews import ReviewStub, review_stub

SECRET = "planted-secret-0123456789"


def test_the_recipes_are_valid() -> None:
    """By actionlint, and by the schemas of SchemaStore."""
    program = Path(sysconfig.get_path("scripts")) / "actionlint"
    files = sorted(map(str, (ROOT / "examples" / "ci").glob("github*.yml")))
    linted = subprocess.run(
        [program, "-no-color", *files], capture_output=True, text=True, check=False
    )
    assert linted.returncode == 0, linted.stdout + linted.stderr
    schemas = importlib.resources.files("check_jsonschema") / "builtin_schemas" / "vendor"
    kinds = {
        "github": "github-workflows",
        "github-forks": "github-workflows",
        "gitlab": "gitlab-ci",
    }
    for kind, name in kinds.items():
        schema = json.loads((schemas / f"{name}.json").read_text())
        jsonschema.validate(recipe(kind), schema)


def _commit(project: ProjectHarness, message: str) -> str:
    git(project.directory, "add", "-A")
    git(project.directory, "commit", "-qm", message)
    return git(project.directory, "rev-parse", "HEAD")


def _write(demo: ProjectHarness, rate: float) -> None:
    state = {"url": f"file://{demo.directory.parent}/state"}
    command = f'echo "rate {rate} $TOKEN"; echo $BT_TRAINING_JOB_ID >> {demo.directory.parent}/runs'
    train = job(
        command, weights=["tiny"], runtime={"environment_variables": {"TOKEN": {"secret": "key"}}}
    )
    secrets = {"key": {"from": "env", "name": "PLANTED"}}
    write_manifest(demo, {"train": train}, state=state, weights=WEIGHTS, secrets=secrets)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["github", "gitlab"])
def test_a_change_from_request_to_drift(fresh: ProjectHarness, kind: str) -> None:
    """Open, comment, push (the approval falls), approve, queue, merge, apply, apply again; drift opens one issue."""
    with review_stub(kind) as stub:
        runner = Runner(fresh, stub)
        runner.secrets = {"PLANTED": SECRET}
        git(fresh.directory, "init", "-qb", "main")
        _write(fresh, 0.1)
        stub.head = _commit(fresh, "first")
        runner.run("pull_request", stub.head)
        stub.approve()
        first = [comment["body"] for comment in stub.comments]
        assert len(first) == len(stub.checks) == 1

        _write(fresh, 0.2)
        stub.head = stub.merged = _commit(fresh, "second")
        assert "[not-approved]" in runner.run("merge_group", stub.head, code=11)
        runner.run("pull_request", stub.head)
        runner.run(
            "pull_request", stub.head
        )  # repeated: neither a second comment nor a second check
        assert len(stub.comments) == 1
        assert len(stub.checks) == 2
        assert stub.comments[0]["body"] != first[0]
        assert "before its plan of" in runner.run("push", stub.head, code=11) or kind == "github"
        stub.approve()
        runner.run("merge_group", stub.head)

        git(fresh.directory, "commit", "-q", "--allow-empty", "--amend", "-m", "squashed")
        stub.merged = git(fresh.directory, "rev-parse", "HEAD")
        assert "Apply complete" in runner.run("push", stub.merged)
        fresh.variables.update(runner.secrets)
        _see_no_change(fresh)
        fetched = _weights(fresh)
        assert "already applied" in runner.run("push", stub.merged)
        _see_no_change(fresh)
        assert _weights(fresh) == fetched
        fresh.variables |= runner.variables("push", stub.merged)
        fresh.variables["GITHUB_TOKEN"] = stub.token
        refused = fresh.run("apply", "same.bin", "--expect-check", code=11)
        assert "[not-the-reviewed-plan]" in refused.stderr
        _see_drift(runner, stub)
        texts = [*runner.logs, *(body for _, _, body in stub.seen)]
        for secret in (SECRET, stub.token, "header.claims.signature"):
            assert not [text for text in texts if secret in text]


@pytest.mark.long
def test_the_plan_of_a_fork_becomes_a_comment(fresh: ProjectHarness) -> None:
    """Made without credentials, written by a second workflow, and approved it applies nothing."""
    with review_stub("github") as stub:
        stub.repository = "eve/train"
        runner = Runner(fresh, stub)
        git(fresh.directory, "init", "-qb", "main")
        _write(fresh, 0.1)
        stub.head = stub.merged = _commit(fresh, "first")
        assert "[untrusted-plan]" in runner.run("pull_request", stub.head)
        assert not stub.seen
        runner.run("workflow_run", stub.head)
        assert [stub.head in post["body"] for post in stub.comments] == [True]
        stub.approve()
        assert "[not-approved]" in runner.run("push", stub.head, code=11)


def _see_no_change(project: ProjectHarness) -> None:
    """One run, nothing to do, and no secret in any form of the plan."""
    assert "rate 0.2 (redacted)" in project.run("logs", "train", "--follow").stdout
    assert len((project.directory.parent / "runs").read_text().split()) == 1
    plan = project.json("plan", "--out", "same.bin")
    assert {tuple(row["change"]["actions"]) for row in plan["resource_changes"]} == {("no-op",)}
    for format_ in ("html", "markdown", "json"):
        assert SECRET not in project.run("show", "same.bin", "--format", format_).stdout


def _weights(project: ProjectHarness) -> dict[Path, tuple[int, int]]:
    """Every file with content of the mirror and the nodes, and when it was written."""
    places = [path for top in (project.mirror, project.nodes) for path in top.rglob("*")]
    files = [path for path in places if path.is_file() and path.stat().st_size == 25_600]
    assert files
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}


def _see_drift(runner: Runner, stub: ReviewStub) -> None:
    """One issue while the mirror lacks the weights; closed when they are there again."""
    runner.run("schedule", stub.merged)
    assert not stub.issues
    mirror = runner.project.mirror
    moved = mirror.rename(mirror.parent / "moved")
    for _ in range(2):
        runner.run("schedule", stub.merged)
        assert [issue["state"] for issue in stub.issues] == ["open"]
    moved.rename(mirror)
    runner.run("schedule", stub.merged)
    assert [issue["state"] for issue in stub.issues] == ["closed"]
