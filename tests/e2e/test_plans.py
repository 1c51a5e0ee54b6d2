"""Saved plans, selections, drift and what a plan must never show."""

from __future__ import annotations

import json
import shutil
import stat
from pathlib import Path

from tests.support.projects.manifest_files import WEIGHTS, job, write_manifest
from tests.support.projects.project import ProjectHarness

APPLY = ("apply", "--auto-approve", "--wait")


def log(project: ProjectHarness, name: str) -> list[str]:
    """What the newest run of a job printed."""
    return project.run("logs", name).stdout.splitlines()


def test_a_plan_file_is_applied_as_it_was_reviewed(fresh: ProjectHarness) -> None:
    """It holds its manifest: later edits don't matter; nobody is asked; only its owner can read it; it shows as it was."""
    write_manifest(fresh, {"a": job("echo reviewed", weights=["tiny"])}, weights=WEIGHTS)
    planned = fresh.run("plan", "-out=p.bin")
    reviewed = fresh.json("show", "p.bin")
    write_manifest(fresh, {"a": job("echo edited"), "b": job("echo more")})
    (fresh.directory / "trainctl.toml").write_text("this is no manifest")
    done = fresh.run("apply", "p.bin", "-wait")
    (fresh.directory / "trainctl.toml").unlink()

    assert "trainctl apply p.bin" in planned.stderr
    assert stat.S_IMODE((fresh.directory / "p.bin").stat().st_mode) == 0o600
    assert fresh.run("show", "p.bin").stdout == planned.stdout
    assert "Apply complete. 4 added, 0 changed, 0 destroyed." in done.stdout
    assert log(fresh, "a") == ["reviewed"]
    after = fresh.json("plan")
    assert after["manifest_digest"] != reviewed["manifest_digest"]
    assert {
        change["address"]
        for change in after["resource_changes"]
        if change["change"]["actions"] == ["create"]
    } == {"job.b"}


def test_a_plan_is_stale_when_what_it_changes_has_moved_and_only_then(
    fresh: ProjectHarness,
) -> None:
    """Another apply of the same address: exit 11 that names it, nothing done. Of another address: it still applies."""
    jobs = {"a": job("echo 1"), "b": job("echo 1")}
    write_manifest(fresh, jobs)
    fresh.run(*APPLY)
    write_manifest(fresh, {**jobs, "a": job("echo 2")})
    fresh.run("plan", "--out", "a.bin")
    write_manifest(fresh, {"a": job("echo 3"), "b": job("echo 3")})
    fresh.run(*APPLY, "--target", "job.b")
    fresh.run("apply", "a.bin", "--wait")
    assert (log(fresh, "a"), log(fresh, "b")) == (["2"], ["3"])

    fresh.run("plan", "--out", "late.bin")
    write_manifest(fresh, {"a": job("echo 4"), "b": job("echo 3")})
    fresh.run(*APPLY)
    refused = fresh.run("apply", "late.bin", code=11)
    again = fresh.run("apply", "a.bin", code=11)
    assert "job.a: changed once since the plan was made" in refused.stderr
    assert "job.b" not in refused.stderr
    assert "job.a" in again.stderr
    assert fresh.json("status", "a")["number"] == 3


def test_values_set_for_a_plan_are_those_of_its_apply(fresh: ProjectHarness) -> None:
    """A saved plan shows and keeps them, and takes no others; a run of one job leaves the others alone."""
    write_manifest(fresh, {"a": job("echo $A $B"), "b": job("echo b")})
    path = "runtime.environment_variables"
    values = ("--set", f"{path}.A=1e-5", "--set", f"{path}.B=x=y")
    planned = fresh.run("plan", *values, "--target", "job.a", "--out", "p.bin")
    assert f"Set for this plan:\n  {path}.A=1e-5\n  {path}.B=x=y\n" in planned.stdout
    assert "can't be used with a saved plan" in fresh.run("apply", "p.bin", *values, code=64).stderr
    fresh.run("apply", "p.bin", "--wait")
    assert log(fresh, "a") == ["1e-5 x=y"]
    done = fresh.run("run", "b", "--set", 'runtime.start_commands=["echo c"]', *APPLY[1:2], "-f")
    assert (done.stdout.splitlines()[-1], fresh.json("status", "a")["number"]) == ("c", 1)
    assert (
        "--set compute.gpu: "
        in fresh.run(*APPLY, "--set", "compute.gpu=1", "--target", "job.a", code=1).stderr
    )


def test_code_that_changed_since_the_plan_is_refused(fresh: ProjectHarness) -> None:
    """What was reviewed is what runs, or nothing: exit 11 before anything is done."""
    write_manifest(fresh, {"a": job("cat notes.txt")})
    fresh.run("plan", "--out", "p.bin")
    fresh.write({"src/notes.txt": "second"})
    refused = fresh.run("apply", "p.bin", code=11)

    assert (
        "job.a: its code has changed since the plan was made: notes.txt (changed)" in refused.stderr
    )
    assert fresh.run("state", "list").stdout == ""
    fresh.write({"src/notes.txt": "first"})
    fresh.run("apply", "p.bin", "--wait")
    assert log(fresh, "a") == ["first"]


def test_a_plan_is_applied_in_another_checkout(fresh: ProjectHarness, tmp_path: Path) -> None:
    """Its sources and code are those of the directory where it is applied, and must have its digests."""
    fresh.write({"defaults.yaml": f"state: {{url: 'file://{tmp_path}/${{{{ project.name }}}}'}}"})
    jobs = {"a": {**job("cat models/tiny/config.json", weights=["tiny"]), "code": "."}}
    write_manifest(fresh, jobs, weights=WEIGHTS, extends="./defaults.yaml")
    fresh.run("plan", "--out", "p.bin")
    same, other = (str(tmp_path / name) for name in ("same", "other"))
    for directory in (same, other):
        shutil.copytree(fresh.directory, directory)
    Path(other, "weights/config.json").write_text("[]")
    fresh.write({"weights/config.json": "[1]", "weights/model.bin": "other"})
    assert "its code has changed" in fresh.run("-C", other, "apply", "p.bin", code=11).stderr
    fresh.run("-C", same, "apply", "p.bin", "--wait")
    assert fresh.run("-C", same, "logs", "a").stdout == "{}\n"


def test_detailed_exit_codes_and_the_ways_to_look_less(fresh: ProjectHarness) -> None:
    """0 nothing, 2 changes, 1 errors; --refresh=false doesn't look, --refresh-only shows drift alone, --offline stays here."""
    write_manifest(fresh, {"a": job("true", weights=["tiny"])}, weights=WEIGHTS)
    fresh.run("plan", "-detailed-exitcode", code=2)
    fresh.run(*APPLY)
    fresh.run("plan", "-detailed-exitcode", "--offline", code=0)
    shutil.rmtree(fresh.mirror / "listings")

    fresh.run("plan", "-detailed-exitcode", "-refresh=false", code=0)
    fresh.run("plan", "-detailed-exitcode", code=2)
    only = fresh.json("plan", "--refresh-only")
    assert [row["address"] for row in only["resource_drift"]] == ["weights.tiny"]
    assert {change["change"]["actions"][0] for change in only["resource_changes"]} == {"no-op"}
    assert "weights.tiny not found" in fresh.run("plan", "-refresh-only").stdout
    fresh.run("plan", "-detailed-exitcode", "-refresh-only", code=2)
    fresh.run("plan", "-detailed-exitcode", "-refresh-only", "-refresh=false", code=0)

    fresh.write({"trainctl.yaml": "jobs: {a: {}}"})
    fresh.run("plan", "-detailed-exitcode", code=1)


def test_weights_that_changed_since_the_plan_stop_what_needs_them(fresh: ProjectHarness) -> None:
    """The change is named, the rest is done, and events and exit code 12 report both."""
    write_manifest(
        fresh,
        {"bad": job("true", weights=["broken"]), "good": job("true", weights=["tiny"])},
        weights={**WEIGHTS, "broken": {"source": "file:./broken"}},
    )
    fresh.write({"broken/model.bin": "x"})
    fresh.run("plan", "--out", "p.bin")
    fresh.write({"broken/model.bin": "y", "broken/more.bin": "more"})
    *events, summary = fresh.events("apply", "p.bin", "--wait", code=12)

    data = summary["data"]
    (failed,) = data["failed"]
    assert failed["address"] == "weights.broken"
    text = json.dumps(failed)
    assert "has changed since the plan was made" in text
    assert "added: more.bin" in text
    assert "changed: model.bin" in text
    assert (data["skipped"], data["exit_code"], data["left_alone"]) == (["job.bad"], 12, [])
    assert fresh.json("status", "good")["status"] == "TRAINING_JOB_COMPLETED"
    assert {"weights.broken", "job.bad"}.isdisjoint(fresh.json("state", "list")["addresses"])
    assert {"step_failed", "step_done", "step_started", "step_skipped"} <= {
        event["type"] for event in events
    }
    assert "error: weights.broken: " in fresh.run("apply", "p.bin", "--wait", code=11).stderr


def test_no_form_of_a_plan_holds_a_secret(fresh: ProjectHarness) -> None:
    """Text, JSON, plan file, lock, state: each names the secret, none has its value, not even when a job prints it."""
    value = "hunter2-very-secret-value"
    fresh.variables["WANDB_KEY"] = value
    write_manifest(
        fresh,
        {
            "a": job(
                "test ${#WANDB} = 25",
                runtime={"environment_variables": {"WANDB": {"secret": "wandb"}}},
            )
        },
        secrets={"wandb": {"from": "env", "name": "WANDB_KEY"}},
    )
    plan = fresh.run("plan", "--format", "json", "--out", "p.bin")
    applied = fresh.run("apply", "p.bin", "--wait", "--format", "json")
    text = fresh.run("plan", "--replace", "job.a", "--log-level", "debug")
    pulled = fresh.run("state", "pull")

    shown = [item for done in (plan, applied, text, pulled) for item in (done.stdout, done.stderr)]
    files = [path for path in fresh.directory.parent.rglob("*") if path.is_file()]
    assert len(value) == 25
    assert "wandb" in plan.stdout
    assert not any(value in line for line in shown)
    assert [path for path in files if value.encode() in path.read_bytes()] == []
    assert fresh.json("status", "a")["status"] == "TRAINING_JOB_COMPLETED"
