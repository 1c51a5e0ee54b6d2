"""A run that completed in one environment is referenced in another, not repeated."""

from __future__ import annotations

from jsonschema import Draft202012Validator

from tests.support.projects.project import ProjectHarness
from trainctl_schemas import schema

MANIFEST = """\
project: {name: demo}
jobs:
  sft:
    code: ./src
    lifecycle: {rerun_on: [config, code]}
    runtime:
      start_commands: ["mkdir $BT_CHECKPOINT_DIR/checkpoint-1 && cp lr $BT_CHECKPOINT_DIR/checkpoint-1/"]
      checkpointing_config: {enabled: true}
  eval:
    code: ./src
    lifecycle: {rerun_on: [config, code]}
    runtime:
      start_commands: [grep -r . $BT_LOAD_CHECKPOINT_DIR]
      load_checkpoint_config: {enabled: true, checkpoints: [{typ: latest, job_id: sft}]}
"""
APPLY = ("apply", "--auto-approve", "--wait")


def declare(project: ProjectHarness, lr: str) -> None:
    project.write({"trainctl.yaml": MANIFEST, "src/lr": lr})


def runs(project: ProjectHarness, *options: str) -> dict[str, str]:
    """The newest run of each job."""
    return {job["address"]: job["run"] for job in project.json("status", *options)["jobs"]}


def reused(project: ProjectHarness, *options: str) -> dict[str, tuple[list[str], str, str]]:
    """The planned reuse of each job: actions, number and job of the run."""
    plan = project.json("plan", *options)
    assert not list(Draft202012Validator(schema("plan")).iter_errors(plan))
    changes = [change for change in plan["resource_changes"] if change["reuses"]]
    assert plan["summary"]["reuse"] == len(changes)
    assert all(change["action_reason"] == "reuse" for change in changes)
    return {
        change["address"]: (change["change"]["actions"], *map(change["reuses"].get, ("run", "job")))
        for change in changes
    }


def test_what_ran_on_a_branch_runs_no_more_after_the_merge(fresh: ProjectHarness) -> None:
    """The main state takes over both runs; its checkpoints stay usable after the environment's end."""
    declare(fresh, "1\n")
    fresh.run(*APPLY)
    main = runs(fresh)
    assert {*reused(fresh, "--env", "pr-11")} == {"job.sft", "job.eval"}  # nothing changed yet
    declare(fresh, "2\n")
    fresh.run(*APPLY, "--env", "pr-12")
    branch = runs(fresh, "--env", "pr-12")
    assert not {*main.values()} & {*branch.values()}
    assert "/sft/rank-0/checkpoint-1/lr:2" in fresh.run("logs", "eval", "--env", "pr-12").stdout

    expected = {job: (["update"], run, job) for job, run in branch.items()}
    assert reused(fresh) == expected
    assert reused(fresh, "--no-reuse") == {}
    summary = fresh.events(*APPLY)[-1]["data"]
    assert (summary["added"], summary["reused"]) == (0, 2)
    assert runs(fresh) == branch
    assert [job["number"] for job in fresh.json("status")["jobs"]] == [2, 2]
    assert fresh.run("plan").stdout.startswith("No changes")
    assert [row["runs"] for row in fresh.json("usage")["rows"]] == [2]

    fresh.run("destroy", "--env", "pr-12", "--auto-approve")
    place = fresh.run("checkpoints", "download", "sft").stdout.strip()
    assert (fresh.directory / place / "lr").read_text() == "2\n"
    fresh.run("destroy", "--auto-approve", "--delete-checkpoints")
    kept = fresh.directory.parent / "data/trainctl/checkpoints/demo/sft"
    assert [folder.name for folder in kept.iterdir()] == [f"1-{branch['job.sft']}"]


def test_a_run_that_failed_is_not_reused(fresh: ProjectHarness) -> None:
    fresh.write({"trainctl.yaml": MANIFEST.replace("grep -r .", "exit 3;"), "src/lr": "1\n"})
    fresh.run(*APPLY, "--env", "pr-1", code=12)
    assert {*reused(fresh)} == {"job.sft"}
