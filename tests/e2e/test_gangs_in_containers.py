"""Jobs on several nodes whose ranks each run in a container."""

from __future__ import annotations

from tests.support.machines.containers import BUSYBOX, EngineHarness
from tests.support.projects.project import ProjectHarness
from tests.support.tiers import one_day_in

MANIFEST = """\
project: {name: demo}
clusters: {local: {provider: local, nodes: 3}}
jobs:
  sft:
    code: ./src
    image: {base_image: "IMAGE"}
    compute: {node_count: 3}
    weights: [{source: "file:./weights", mount_location: /app/models/tiny}]
    runtime:
      engine: podman
      start_commands: ["sh gang.sh COMMAND"]
"""
MEETING = """\
echo "rank $BT_NODE_RANK of $BT_GROUP_SIZE has $(cat /app/models/tiny/word) in $BT_WORKING_DIR"
if [ $BT_NODE_RANK = 2 ] && [ $1 = fails ]; then exit 7; fi
if [ $1 = fails ]; then sleep 600; fi
if [ $BT_NODE_RANK = 0 ]; then mkfifo open; (sleep 60 > open &); nc -l -p $MASTER_PORT < open; fi
if [ $BT_NODE_RANK = 1 ]; then until echo met | nc $MASTER_ADDR $MASTER_PORT 2>/dev/null; do sleep 0.1; done; fi
"""
"""Rank 0's input stays open while it listens: at its end, nc would hang up on who has yet to speak."""


def declare(work: ProjectHarness, podman: EngineHarness, command: str) -> None:
    """Three ranks that meet, or of which the last fails."""
    work.variables |= podman.variables
    text = MANIFEST.replace("IMAGE", BUSYBOX).replace("COMMAND", command)
    work.write({"trainctl.yaml": text, "src/gang.sh": MEETING, "weights/word": "weights"})


@one_day_in(10)
def test_ranks_in_containers_meet(fresh: ProjectHarness, own_podman: EngineHarness) -> None:
    """Each has its weights and its place, and one reaches another at the address and the port that all were told; no container is left."""
    declare(fresh, own_podman, "meets")
    fresh.run("apply", "--auto-approve", "--wait", seconds=120)

    said = fresh.run("logs", "sft").stdout.splitlines()
    assert sorted(said) == sorted(
        [
            *(f"[rank {n}] rank {n} of 3 has weights in /b10/workspace" for n in range(3)),
            "[rank 0] met",
        ]
    )
    assert own_podman.containers() == []


@one_day_in(14)
def test_a_rank_that_fails_ends_the_other_containers(
    fresh: ProjectHarness, own_podman: EngineHarness
) -> None:
    """The one that failed is named with its exit code, the others are stopped, and none of their containers goes on."""
    declare(fresh, own_podman, "fails")
    fresh.run("apply", "--auto-approve", "--wait", code=12, seconds=120)

    ranks = fresh.json("status", "sft")["ranks"]
    assert [(one["status"], one["exit_code"]) for one in ranks][2] == ("TRAINING_JOB_FAILED", 7)
    assert {one["error"] for one in ranks[:2]} == {"stopped because rank 2 failed"}
    assert own_podman.containers() == []
