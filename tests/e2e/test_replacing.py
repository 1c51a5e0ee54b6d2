"""A new run in place of a live one, which goes on until the new one has all that it needs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.node_program.nodes import wait_for
from tests.support.projects.manifest_files import WEIGHTS, job, sleep_command, write_manifest
from tests.support.projects.project import ProjectHarness

REPLACE = ("apply", "--auto-approve", "--stop-running")


def newest(project: ProjectHarness) -> tuple[int, str]:
    """Number and status of the job's newest run."""
    (found,) = project.json("status")["jobs"]
    return found["number"], found["status"].removeprefix("TRAINING_JOB_")


def declared(project: ProjectHarness, *commands: str, **more: Any) -> None:
    """The one job, on a node whose cache has room for one of its weights."""
    local = {"provider": "local", "cache": {"node": {"size": "40kB"}}}
    changed = job(*commands, sleep_command(300), **more)
    write_manifest(project, {"sft": changed}, weights=WEIGHTS, clusters={"local": local})


def begin(project: ProjectHarness, **more: Any) -> None:
    """Have a run of the job that goes on."""
    declared(project, "echo first", **more)
    project.run("apply", "--auto-approve")
    wait_for(lambda: newest(project) == (1, "RUNNING"))


@pytest.mark.long
def test_a_run_goes_on_whose_replacement_cant_be_made(fresh: ProjectHarness) -> None:
    """Its error says so; when it is mended, the run is stopped for the new one, and that is said, too."""
    fresh.write({"src/reqs.txt": "--no-index\nno-such-package==1\n"})
    begin(fresh)

    declared(fresh, "echo second", runtime={"requirements": "reqs.txt"})
    failed = fresh.run(*REPLACE, code=1)

    assert "cannot install the requirements" in failed.stderr
    assert "Run 1 (" in failed.stderr
    assert "continues." in failed.stderr
    assert newest(fresh) == (1, "RUNNING")
    told = fresh.run("status").stdout
    assert "Approved to replace a live run (1): job.sft" in told
    assert "trainctl apply --stop-running" in told
    assert "trainctl reconcile" not in told
    assert fresh.json("status")["pending_jobs"] == ["job.sft"]

    declared(fresh, "echo second")
    done = fresh.run(*REPLACE)

    assert "stops run 1 (" in done.stdout + done.stderr
    assert newest(fresh) == (2, "RUNNING")
    fresh.run("stop", "sft", "--grace", "0")
