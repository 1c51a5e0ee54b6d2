"""A live run goes on to its end, whatever program is installed on its node meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import zlib

from tests.support.node_program.nodes import wait_for
from tests.support.projects.project import ProjectHarness
from trainctl.remote.archive import INSTALL, node_archive, program_archive

MANIFEST = """\
jobs:
  sft:
    runtime:
      start_commands: ["while ! test -e GATE; do sleep 0.1; done", "mkdir $BT_CHECKPOINT_DIR/a", "touch $BT_CHECKPOINT_DIR/a/model"]
      checkpointing_config: {enabled: true}
"""


def test_a_live_run_ends_well_after_an_upgrade(fresh: ProjectHarness) -> None:
    """The upgrade removes the program, which was not called for days; the run has it in memory."""
    gate = fresh.directory.parent / "gate"
    fresh.write({"trainctl.yaml": MANIFEST.replace("GATE", str(gate))})
    fresh.forks = False  # which would have the program of the process that they are forked from
    fresh.run("apply", "--auto-approve")
    (folder,) = fresh.nodes.glob("*/agent")
    for path in folder.iterdir():
        os.utime(path, (time.time() - 2 * 86_400,) * 2)
    archive = program_archive("trainctl.node.__main__", ("trainctl:errors", "trainctl.base"))
    words = [str(folder / f"{archive.sha256}.pyz"), archive.sha256, str(len(archive.data))]
    argv = [sys.executable, "-I", "-S", "-c", INSTALL, *words]
    subprocess.run(argv, input=zlib.compress(archive.data), check=True)
    assert not any(path.name.startswith(node_archive().sha256) for path in folder.iterdir())

    gate.touch()
    wait_for(lambda: fresh.json("status", "job.sft")["status"] == "TRAINING_JOB_COMPLETED")
    kept = fresh.json("checkpoints", "list", "job.sft")["checkpoints"]
    assert [one["complete"] for one in kept] == [True]
