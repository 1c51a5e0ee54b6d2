"""Faults of the Hub as a user meets them: error, exit code, and that no half-done work stays."""

from __future__ import annotations

import json

from tests.support.projects.project import ProjectHarness
from tests.support.projects.weights_project import (
    FAST_TIMEOUTS,
    JOB,
    SMALL,
    apply,
    assert_nothing_half_done,
    write_weights_manifest,
)
from tests.support.servers.hub import HttpFault, Hub
from tests.support.storage.mirrors import assert_sound

ALWAYS = 999


def test_a_failed_transfer_stops_its_dependants_and_nothing_else(
    work: ProjectHarness, hub: Hub
) -> None:
    """Exit code 12 if other work succeeded, 1 if all failed, 0 once the fault is gone."""
    write_weights_manifest(work, "hf://acme/model", JOB)
    hub.faults = [HttpFault("flip", "/model.safetensors", ALWAYS, 3)]
    partial = apply(work, 12)
    assert_nothing_half_done(work)
    last = json.loads(apply(work, 1, "--format", "json").stdout.splitlines()[-1])

    summary = "hf://acme/model: model.safetensors differs from the digest announced upstream"
    assert f"error: weights.model: {summary}" in partial.stderr
    assert "The file was not stored" in partial.stderr
    assert "job.sft: skipped, as weights.model failed" in partial.stdout
    assert "2 added, 0 changed, 0 destroyed, 1 failed, 1 skipped." in partial.stdout
    assert last["type"] == "summary"
    assert last["data"]["exit_code"] == 1
    (failed,) = last["data"]["failed"]
    assert (failed["address"], failed["summary"].startswith(summary)) == ("weights.model", True)
    assert_nothing_half_done(work)
    hub.faults.clear()
    work.run("apply", "--auto-approve", "--wait")
    assert work.run("logs", "sft").stdout == '{"hidden_size": 8}\n'
    assert_sound(work.mirror)


def test_every_source_that_can_not_be_resolved_is_an_error(work: ProjectHarness, hub: Hub) -> None:
    """All appear in one plan, each with its line and address; apply changes nothing."""
    hub.add("acme/silent", SMALL)
    hub.add("acme/evil", {**SMALL, "\x1b[31m../evil": b"evil"})
    hub.faults = [HttpFault("wait", "/acme/silent/revision/main", ALWAYS, 20)]
    sources = ["hf://acme/absent", "hf://acme/model@v9", "hf://acme/silent", "hf://acme/evil"]
    summaries = ["not found on", "revision not found on", "did not respond within", "the file name"]
    host = hub.url.partition("//")[2]
    rows = [f"  w{n}: {{source: {json.dumps(source)}}}" for n, source in enumerate(sources)]
    work.write({"trainctl.yaml": "\n".join(["project: {name: demo}", "weights:", *rows, ""])})
    work.variables["SILENCE"] = "3"
    planned = json.loads(work.run("plan", "--format", "json", code=1, program=FAST_TIMEOUTS).stdout)
    hub.closing.set()
    applied = apply(work, 1)

    assert (planned["errored"], planned["applyable"]) == (True, False)
    assert len(planned["diagnostics"]) == len(sources)
    result = {diagnostic["address"]: diagnostic for diagnostic in planned["diagnostics"]}
    for number, (source, summary) in enumerate(zip(sources, summaries, strict=True)):
        problem = result[f"weights.w{number}"]
        assert (problem["severity"], problem["file"]) == ("error", "trainctl.yaml")
        assert problem["line"] == number + 3
        assert problem["summary"].startswith(f"{source}: ")
        assert summary in problem["summary"]
        assert host in problem["summary"] or number == 3
    assert "declare a secret" in result["weights.w0"]["detail"]
    assert "Gave up after 2 attempts." in result["weights.w2"]["detail"]
    column = result["weights.w0"]["column"]
    assert f"trainctl.yaml:3:{column}: error: weights.w0: {sources[0]}: " in applied.stderr
    assert "\x1b" not in applied.stderr
    for path in (work.directory / ".trainctl", work.directory / "trainctl.lock", work.mirror):
        assert not path.exists()


def test_jobs_with_locked_and_mirrored_weights_run_without_the_hub(
    work: ProjectHarness, hub: Hub
) -> None:
    """A warning says why the locked version is used; if the mirror lacks it, that is the error."""
    write_weights_manifest(work, "hf://acme/model", JOB)
    work.run("apply", "--auto-approve", "--wait")
    hub.faults = [HttpFault("status", "", ALWAYS, status=503)]
    ran = work.run("run", "sft", "--auto-approve", "--follow", program=FAST_TIMEOUTS)
    planned = json.loads(work.run("plan", "--format", "json", program=FAST_TIMEOUTS).stdout)
    (listing,) = work.mirror.glob("listings/*.json")
    listing.unlink()
    lost = work.run("plan", code=1, program=FAST_TIMEOUTS)

    assert '{"hidden_size": 8}' in ran.stdout
    (warning,) = planned["diagnostics"]
    assert (warning["severity"], warning["address"]) == ("warning", "weights.model")
    assert "is unavailable (503)" in warning["detail"]
    assert "Using the locked version from the mirror." in warning["detail"]
    assert "is unavailable (503)" in lost.stderr
    assert "The mirror doesn't contain the locked version." in lost.stderr


def test_only_planned_sources_are_requested_and_each_once(work: ProjectHarness, hub: Hub) -> None:
    """A source that fails stops what needs it, and a job that doesn't need it runs."""
    runtime = 'runtime: {start_commands: ["echo alone"]}'
    rows = [f"  j{n}: {{weights: [hf://acme/model], {runtime}}}" for n in range(3)]
    rows.append(f"  alone: {{{runtime}}}")
    work.write({"trainctl.yaml": "\n".join(["jobs:", *rows, ""])})
    work.run("plan")
    assert ["tree" in request.path for request in hub.seen] == [False, True]

    hub.faults = [HttpFault("status", "", ALWAYS, status=401)]
    for flags in ([], ["--target", "job.j0"]):
        assert "requires authentication (401)" in work.run("plan", *flags, code=1).stderr
    hub.seen.clear()
    assert "job.j0" not in work.run("plan", "--target", "job.alone").stdout
    assert "alone" in work.run("run", "alone", "--auto-approve", "--follow").stdout
    assert hub.seen == []


def test_a_readonly_lock_is_not_written(work: ProjectHarness) -> None:
    lock = work.directory / "trainctl.lock"
    first = work.run("apply", "--lockfile=readonly", "--auto-approve").stderr
    work.run("apply", "--lockfile=readonly", "--auto-approve")
    upgrade = work.run("apply", "--upgrade", "--lockfile=readonly", "--auto-approve", code=64)

    assert "the revision is not recorded" in " ".join(first.split())
    assert "--lockfile=readonly can't be used together" in upgrade.stderr
    assert not lock.exists()
