"""Saved plans, selections, drift and what a plan must never show."""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path

import pytest

from tests.support.projects.manifest_files import WEIGHTS, job, write_manifest
from tests.support.projects.project import ProjectHarness
from tests.support.tiers import one_day_in

APPLY = ("apply", "--auto-approve", "--wait")
DYING = ("-m", "tests.support.projects.kill_at_effect")


def log(made: ProjectHarness, name: str) -> list[str]:
    """What the newest run of a job printed."""
    return made.run("logs", name).stdout.splitlines()


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
        one["address"]
        for one in after["resource_changes"]
        if one["change"]["actions"] == ["create"]
    } == {"job.b"}


@one_day_in(5)
def test_a_machine_that_is_too_small_is_told(fresh: ProjectHarness) -> None:
    """Before anything begins, with what there is; what the machine has is not refused."""
    cpus = len(os.sched_getaffinity(0))
    asked = {"memory": "10Ti", "cpu_count": cpus + 1}
    write_manifest(
        fresh, {"a": job("true", compute=asked), "b": job("true", compute={"memory": "1Gi"})}
    )
    plan = fresh.json("plan", code=1)
    (one,) = plan["diagnostics"]

    assert (one["code"], one["address"]) == ("machine-too-small", "job.a")
    assert f"{cpus + 1} processors and 10Ti of memory needed per node" in one["summary"]
    assert f"local/local-0 has {cpus} processors" in one["detail"]
    write_manifest(fresh, {"a": job("true", compute={"memory": "1Gi", "cpu_count": cpus})})
    fresh.run("plan")


@one_day_in(4)
def test_a_plan_is_a_comment_for_a_pull_request(fresh: ProjectHarness) -> None:
    """In Markdown the counts come first and the digest last, live or from a file; what is wrong is on standard error, too."""
    write_manifest(fresh, {"a": job("echo ```</details>@all")})
    planned = fresh.run("plan", "--out", "p.bin", "--format", "markdown")
    mark, _, first, *_, last = planned.stdout.splitlines()
    assert first.startswith("### Plan: 3 to add, 0 to change, 0 to destroy. 1 new run, digest ")
    assert last == f"Plan digest: `{fresh.json('show', 'p.bin')['plan_digest']}`"
    assert "\n````diff\n" in planned.stdout
    assert '"+ job.a" -> "+ project.' in fresh.run("graph", "p.bin", "--format", "dot").stdout
    assert "job.a" in fresh.run("graph").stdout
    assert fresh.run("show", "p.bin", "--format", "markdown").stdout == planned.stdout
    assert (
        fresh.run("show", "--format", "markdown").stdout
        == f"{mark}\n\n```text\nThe state is empty.\n```\n"
    )
    assert "<pre>The state is empty.</pre>" in fresh.run("show", "--format", "html").stdout
    page = fresh.run("plan", "--out", "p.bin", "--format", "html").stdout
    assert fresh.run("show", "p.bin", "--format", "html").stdout == page
    assert page.startswith("<!doctype html>\n")


def test_a_plan_file_that_is_none_is_refused(fresh: ProjectHarness) -> None:
    """Garbage, a cut file, a changed one, a newer one and none at all: one sentence that says which, nothing is made."""
    write_manifest(fresh, {"a": job("true")})
    fresh.run("plan", "--out", "p.bin")
    text = (fresh.directory / "p.bin").read_text()
    newer = text.replace('{"major": 1', '{"major": 2', 1)
    fresh.write(
        {
            "garbage": b"\x00\xff\xfe",
            "text": "hello",
            "cut": text[: len(text) // 2],
            "forged": text.replace('"true"', '"rm -r ~"'),
            "newer": newer,
        }
    )
    assert text not in (newer, (fresh.directory / "forged").read_text())
    said = {
        name: fresh.run("apply", name, code=None)
        for name in ("garbage", "text", "cut", "forged", "newer", "none")
    }

    assert {name: one.returncode for name, one in said.items()} == {
        "garbage": 1, "text": 1, "cut": 1, "forged": 1, "newer": 1, "none": 64,
    }  # fmt: skip
    for name, words in {
        "garbage": "is not a plan file",
        "text": "is not a plan file",
        "cut": "truncated",
        "forged": "corrupt",
        "newer": "newer trainctl",
        "none": "not found",
    }.items():
        assert words in said[name].stderr
    assert not (fresh.directory / ".trainctl").exists()


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


@one_day_in(5)
def test_an_interrupted_apply_of_a_plan_file_resumes_with_it(fresh: ProjectHarness) -> None:
    """Killed again and again until something is done, the same command ends it; once more there is nothing left to apply."""
    fresh.variables["PYTHONPATH"] = str(Path(__file__).parents[2])
    ledger = fresh.directory.parent / "ledger"
    write_manifest(
        fresh,
        {"a": job(f"echo $BT_TRAINING_JOB_ID >> {ledger}", weights=["tiny"])},
        weights=WEIGHTS,
    )
    fresh.run("plan", "--out", "p.bin")
    fresh.run("0", str(fresh.directory / "count"), "plan", program=DYING)
    begun: list[str] = []
    for effects in range(30, 200, 10):
        started = fresh.start(str(effects), "-", "apply", "p.bin", "--wait", program=DYING)
        started.communicate()
        assert started.returncode == -9
        begun = fresh.json("state", "list")["addresses"]
        if begun:
            break
    fresh.run("apply", "p.bin", "--wait")
    over = fresh.run("apply", "p.bin")

    assert begun
    assert "job.a" not in begun
    assert "already applied" in over.stderr
    assert ledger.read_text().split() == [fresh.json("status", "a")["run"]]
    fresh.run("plan", "--detailed-exitcode", code=0)


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


def test_what_trainctl_was_given_and_wrote_is_no_code(fresh: ProjectHarness) -> None:
    """With the manifest's directory as code: files of variables, comments and renderings of the plan don't make it stale."""
    write_manifest(fresh, {"a": job("echo ${{ var.word }}", code=".")}, vars={"word": "none"})
    fresh.write({"prod.yaml": "word: hello"})
    fresh.run("plan", "--var-file", "prod.yaml", "--out", "p.bin")
    for format_ in ("text", "json", "markdown", "html"):
        fresh.run("show", "p.bin", "--format", format_, "--out", f"plan.{format_}")
    fresh.write({"comment.md": fresh.run("show", "p.bin", "--format", "markdown").stdout})
    fresh.run("apply", "p.bin", "--wait")

    assert log(fresh, "a") == ["hello"]
    assert stat.S_IMODE((fresh.directory / "plan.text").stat().st_mode) == 0o600
    assert json.loads((fresh.directory / "plan.json").read_text()) == fresh.json("show", "p.bin")
    fresh.run("plan", "--var-file", "prod.yaml", "--detailed-exitcode")


@one_day_in(4)
def test_weights_that_moved_since_the_plan_are_refused(fresh: ProjectHarness) -> None:
    """The reviewed bytes are mirrored, or none; what differs is named, and what doesn't need them goes on."""
    write_manifest(fresh, {"a": job("true", weights=["tiny"]), "b": job("true")}, weights=WEIGHTS)
    fresh.run("plan", "--out", "p.bin")
    fresh.write({"weights/model.bin": "other", "weights/more.bin": "more"})
    done = fresh.run("apply", "p.bin", "--wait", code=12)

    assert "error: weights.tiny: " in done.stderr
    assert "has changed since the plan was made" in done.stderr
    assert "It was at sha256:" in done.stderr
    assert "added: more.bin" in done.stderr
    assert "changed: model.bin" in done.stderr
    assert {"weights.tiny", "job.a"}.isdisjoint(fresh.json("state", "list")["addresses"])
    assert fresh.json("status", "b")["status"] == "TRAINING_JOB_COMPLETED"


@one_day_in(5)
def test_expect_applies_only_the_reviewed_plan(fresh: ProjectHarness) -> None:
    """--expect with the digest of another plan: exit 11, nothing done; with the right one: done."""
    write_manifest(fresh, {"a": job("echo 1")})
    digest = fresh.json("plan")["plan_digest"]
    write_manifest(fresh, {"a": job("echo 2")})
    other = fresh.json("plan")["plan_digest"]
    refused = fresh.run(*APPLY, "--expect", digest, code=11)
    nothing = fresh.run("state", "list").stdout
    fresh.run(*APPLY, "-expect", other)

    assert digest in refused.stderr
    assert other in refused.stderr
    assert "job.a: create" in refused.stderr
    assert nothing == ""
    assert log(fresh, "a") == ["2"]


def test_targets_exclusions_and_replacements(fresh: ProjectHarness) -> None:
    """--target takes what it needs, --exclude what needs it; --replace makes anew; a wrong address says the near one."""
    write_manifest(
        fresh,
        {"a": job("true", weights=["tiny"]), "b": job("true"), "c": job("true")},
        weights=WEIGHTS,
    )
    everything = set(fresh.actions())
    targeted = set(fresh.actions("-target=job.a"))
    excluded = set(fresh.actions("--exclude", "weights.tiny"))
    assert everything - targeted == {"job.b", "job.c"}
    assert everything - excluded == {"weights.tiny", "job.a"}

    fresh.run("apply", "-auto-approve", "-wait", "-target=job.a", "-target=job.c")
    assert fresh.actions() == {"job.b": ["create"]}
    assert fresh.actions("--replace", "job.c", "--exclude=job.b") == {"job.c": ["delete", "create"]}
    wrong = fresh.run("plan", "--target", "job.aa", code=1)
    assert "Did you mean job.a?" in wrong.stderr
    assert fresh.json("plan", "--target", "job.a")["complete"] is False

    destroyed = fresh.actions("-destroy", "-target=weights.tiny")
    assert destroyed == {"job.a": ["delete"], "weights.tiny": ["delete"]}
    fresh.run("destroy", "--auto-approve", "--target", "job.c")
    assert "job.c" not in fresh.json("state", "list")["addresses"]


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
    assert [one["address"] for one in only["resource_drift"]] == ["weights.tiny"]
    assert {one["change"]["actions"][0] for one in only["resource_changes"]} == {"no-op"}
    assert "weights.tiny not found" in fresh.run("plan", "-refresh-only").stdout
    fresh.run("plan", "-detailed-exitcode", "-refresh-only", code=2)
    fresh.run("plan", "-detailed-exitcode", "-refresh-only", "-refresh=false", code=0)

    fresh.write({"trainctl.yaml": "jobs: {a: {}}"})
    fresh.run("plan", "-detailed-exitcode", code=1)


@one_day_in(7)
def test_what_was_deleted_by_hand_is_planned_and_repaired(fresh: ProjectHarness) -> None:
    """A listing of the mirror, a node's directory, its caches: the plan says so, one apply mends it, and a run works."""
    caching = {"cache_config": {"enabled": True}}
    one = job("ls models/tiny", "ls -d $BT_RW_CACHE_DIR", weights=["tiny"], runtime=caching)
    write_manifest(fresh, {"a": one}, weights=WEIGHTS)
    fresh.run(*APPLY)
    node = fresh.nodes / "local-0"
    drift = {
        fresh.mirror / "listings": {"weights.tiny"},
        node: {"cluster.local"},
        node
        / "cache": set(),  # caches may go at any moment: nothing has drifted, and the next run fills them again
        node / "caches": set(),
    }
    for place, expected in drift.items():
        remove(place)
        planned = fresh.json("plan")
        fresh.run(*APPLY)
        fresh.run("run", "a", "--auto-approve", "--follow")

        assert {one["address"] for one in planned["resource_drift"]} == expected
        assert place.exists()
        assert log(fresh, "a")[:2] == ["config.json", "model.bin"]
    fresh.run("plan", "--detailed-exitcode", code=0)


def remove(place: Path) -> None:
    """Remove a tree, read-only directories in it too."""
    for directory in [
        place,
        *(path for path in place.rglob("*") if path.is_dir() and not path.is_symlink()),
    ]:
        directory.chmod(0o700)
    shutil.rmtree(place)


@one_day_in(4)
def test_what_is_protected_is_not_destroyed(fresh: ProjectHarness) -> None:
    """prevent_destroy holds against destroy and against removing the block: exit 1, and everything is as it was."""
    protected = {"tiny": {**WEIGHTS["tiny"], "lifecycle": {"prevent_destroy": True}}}
    write_manifest(fresh, {"a": job("true", weights=["tiny"])}, weights=protected)
    fresh.run(*APPLY)
    refused = fresh.run("destroy", "--auto-approve", code=1)
    write_manifest(fresh, {"a": job("true")})
    gone = fresh.run("plan", code=1)

    assert "weights.tiny is protected and would be destroyed" in refused.stderr
    assert "prevent_destroy" in gone.stderr
    assert len(fresh.json("state", "list")["addresses"]) == 4
    assert fresh.json("state", "show", "weights.tiny")["lifecycle"]["prevent_destroy"] is True


def test_a_failure_stops_only_what_depends_on_it(fresh: ProjectHarness) -> None:
    """One source changed: what needs it is skipped, the rest is done; exit 12, and the report names each. Alone it makes the plan stale."""
    write_manifest(
        fresh,
        {
            "bad": job("true", weights=["broken"]),
            "good": job("true", weights=["tiny"]),
        },
        weights={**WEIGHTS, "broken": {"source": "file:./broken"}},
    )
    fresh.write({"broken/model.bin": "x"})
    fresh.run("plan", "--out", "p.bin")
    (fresh.directory / "broken" / "model.bin").write_text("y")
    *events, summary = fresh.events("apply", "p.bin", "--wait", code=12)
    text = fresh.run("apply", "p.bin", "--wait", code=None)

    data = summary["data"]
    assert [one["address"] for one in data["failed"]] == ["weights.broken"]
    assert data["skipped"] == ["job.bad"]
    assert (data["exit_code"], data["left_alone"]) == (12, [])
    assert fresh.json("status", "good")["status"] == "TRAINING_JOB_COMPLETED"
    assert text.returncode == 11
    assert "error: weights.broken: " in text.stderr

    assert all(
        {"type", "time", "address", "message"} <= event.keys() for event in [*events, summary]
    )
    assert (summary["type"], [one for one in events if one["type"] == "summary"]) == ("summary", [])
    assert {"step_failed", "step_done", "step_started", "step_skipped"} <= {
        one["type"] for one in events
    }


@one_day_in(5)
def test_one_at_a_time(fresh: ProjectHarness) -> None:
    """--parallelism 1: no step begins before the one before it has ended."""
    write_manifest(fresh, {name: job("true") for name in ("a", "b", "c")})
    events = fresh.events(*APPLY, "--parallelism", "1")
    steps = [
        (one["type"], one["address"])
        for one in events
        if one["type"] in ("step_started", "step_done")
    ]

    starts, ends = steps[::2], steps[1::2]
    assert {kind for kind, _ in starts} == {"step_started"}
    assert [address for _, address in starts] == [address for _, address in ends]
    assert len(starts) == 5
    assert (
        "at least 1" in fresh.run("apply", "--parallelism", "0", "--auto-approve", code=64).stderr
    )


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

    shown = [one for done in (plan, applied, text, pulled) for one in (done.stdout, done.stderr)]
    files = [path for path in fresh.directory.parent.rglob("*") if path.is_file()]
    assert len(value) == 25
    assert "wandb" in plan.stdout
    assert not any(value in one for one in shown)
    assert [path for path in files if value.encode() in path.read_bytes()] == []
    assert fresh.json("status", "a")["status"] == "TRAINING_JOB_COMPLETED"


@one_day_in(5)
@pytest.mark.parametrize("store", [False, True])
def test_a_missing_secret_is_told_before_anything_is_done(
    fresh: ProjectHarness, store: bool
) -> None:
    """The error names the secret of the job, or of the store that it keeps checkpoints in, and where it was looked for."""
    runtime = (
        {"checkpointing_config": {"enabled": True}}
        if store
        else {"environment_variables": {"WANDB": {"secret": "wandb"}}}
    )
    place = {"url": "s3://bucket/runs", "auth": {"auth_secret_name": "wandb"}}
    write_manifest(
        fresh,
        {"a": job("true", runtime=runtime)},
        secrets={"wandb": {"from": "env", "name": "WANDB_KEY"}},
        **({"checkpoints": place} if store else {}),
    )
    refused = fresh.run(*APPLY, code=1)

    assert "error: job.a: secret 'wandb': environment variable WANDB_KEY" in refused.stderr
    assert fresh.run("state", "list").stdout == ""


@one_day_in(5)
def test_what_the_manifest_does_not_name_is_not_locked(fresh: ProjectHarness) -> None:
    """The next apply drops its row, but for those of a part, and where other values may name it; destroy drops none. What is no lock file is told."""
    lock = fresh.directory / "trainctl.lock"
    fresh.write({"one/x": "1", "two/x": "2", "three/x": "3"})

    def locked(manifest: str, *command: str) -> list[str]:
        fresh.write({"trainctl.yaml": manifest})
        fresh.run(*(command or ("apply",)), "--auto-approve")
        return [row["source"][7:] for row in json.loads(lock.read_text())["sources"]]

    both = locked("weights: {a: 'file:./one', b: 'file:./two'}\n")
    part = locked(
        "weights: {a: 'file:./one', c: 'file:./three'}\n", "apply", "--target", "weights.c"
    )
    varies = "vars: {x: one}\nweights: {a: 'file:./${{ var.x }}'}\n"
    one = [locked(varies), locked("weights: {a: 'file:./one'}\n")]
    last = locked("weights: {a: 'file:./one'}\n", "destroy")
    fresh.write({"trainctl.lock": "[" * 100_000})
    told = fresh.run("plan", code=1).stderr

    assert both == ["one", "two"]
    assert part == ["one", "three", "two"]
    assert one == [["one", "three", "two"], ["one"]]
    assert last == ["one"]
    assert "nesting is too deep" in told
    assert "[invalid-lock-file]" in told
