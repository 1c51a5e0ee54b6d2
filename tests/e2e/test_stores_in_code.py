"""A mirror, a state, caches and checkpoints that lie in the directory that is also a job's code."""

from __future__ import annotations

import subprocess
import sys

from tests.support.projects.project import ProjectHarness
from tests.support.tiers import one_day_in

MANIFEST = """\
mirror: {url: "file://HERE/mirror"}
state: {url: "file://HERE/state"}
checkpoints: {url: "file://HERE/saved"}
clusters: {local: {provider: local, cache: {node: {dir: "HERE/weights"}}}}
caches: {work: {dir: "HERE/work"}}
jobs:
  fit:
    weights: ["file:./data"]
    runtime:
      start_commands: ["ls; echo x >$BT_CHECKPOINT_DIR/x; echo y >$BT_PROJECT_CACHE_DIR/y"]
      cache_config: {enabled: true}
      checkpointing_config: {enabled: true}
"""


@one_day_in(7)
def test_what_a_command_itself_writes_is_no_code(fresh: ProjectHarness) -> None:
    """``trainctl apply >apply.log 2>apply.err`` beside the manifest, first and again; what somebody else writes meanwhile is named."""
    fresh.write({"trainctl.yaml": "jobs: {fit: {runtime: {start_commands: [ls]}}}\n", "a.py": ""})
    command = [sys.executable, "-m", "trainctl", "apply", "--auto-approve"]

    def applied(name: str) -> int:
        files = fresh.directory / f"{name}.log", fresh.directory / f"{name}.err"
        with files[0].open("w") as out, files[1].open("w") as err:
            done = subprocess.run(
                command,
                cwd=fresh.directory,
                env=fresh.environment,
                stdout=out,
                stderr=err,
                check=False,
            )
        return done.returncode

    first, again = applied("apply"), applied("apply")
    writing = subprocess.Popen(
        ["bash", "-c", "while date +%N >>noise.txt; do sleep 0.001; done"], cwd=fresh.directory
    )
    try:
        fresh.run("stop", "fit", code=None)
        meanwhile = fresh.run("run", "fit", "--auto-approve", code=None).stderr
    finally:
        writing.kill()
        writing.wait()

    assert (first, again) == (0, 0), (fresh.directory / "apply.err").read_text()
    assert "Last modified: noise.txt" in meanwhile


@one_day_in(4)
def test_they_are_left_out_of_the_code(fresh: ProjectHarness) -> None:
    """What an apply itself writes there is no change of the code: the first one succeeds, the job sees the code alone, and the next plan has nothing to do and says what isn't shipped."""
    text = MANIFEST.replace("HERE", str(fresh.directory))
    fresh.write({"trainctl.yaml": text, "train.py": "pass", "data/x": "x" * 1000})

    fresh.run("apply", "--auto-approve", "--wait")
    again = fresh.actions()
    rerun = fresh.run("plan", "--replace", "job.fit").stdout

    listed = fresh.run("logs", "job.fit").stdout.split()
    assert listed == ["data", "train.py", "weights"]
    assert again == {}
    assert "(excluded from upload: mirror/, saved/, state/, weights/, work/)" in rerun


@one_day_in(5)
def test_one_that_is_the_very_directory_of_the_code_is_an_error_of_the_plan(
    fresh: ProjectHarness,
) -> None:
    """It says so before anything is written there, and what to do."""
    fresh.write({"src/train.py": "pass"})
    text = f'mirror: {{url: "file://{fresh.directory}/src"}}\njobs: {{fit: {{code: src, runtime: {{start_commands: [ls]}}}}}}\n'
    fresh.write({"trainctl.yaml": text})

    refused = fresh.run("plan", code=1)

    assert "also contains files of trainctl" in refused.stdout + refused.stderr
    assert [one.name for one in (fresh.directory / "src").iterdir()] == ["train.py"]
