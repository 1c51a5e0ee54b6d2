"""The apply of a gang is killed: the next one completes it, and every rank runs once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.projects.project import processes, project
from tests.support.tiers import points

MANIFEST = """\
project: {name: demo}
clusters: {local: {provider: local, nodes: 3}}
jobs:
  sft:
    compute: {node_count: 3}
    weights: ["file:./weights"]
    runtime: {start_commands: ["echo $BT_TRAINING_JOB_ID $BT_NODE_RANK >> LEDGER"]}
"""
APPLY = ("apply", "--auto-approve", "--wait")
KILLING = ("-m", "tests.support.projects.kill_at_effect")


@pytest.mark.parametrize(
    "most", [pytest.param(1, id="short"), pytest.param(20, id="long", marks=pytest.mark.long)]
)
def test_an_apply_killed_between_the_starts_of_ranks_is_completed_by_the_next(
    tmp_path: Path, most: int
) -> None:
    """In its second half, where ranks are prepared and started."""
    with project(tmp_path) as created:
        ledger, count = tmp_path / "ledger", tmp_path / "count"
        created.variables["PYTHONPATH"] = str(Path(__file__).parents[2])
        text = MANIFEST.replace("LEDGER", str(ledger))
        created.write({"trainctl.yaml": text, "weights/a.bin": b"a" * 70_000})
        created.run("0", str(count), *APPLY, program=KILLING)
        half = int(count.read_text()) // 2
        for point in (half + further for further in points(half, most)):
            created.clear()
            ledger.unlink(missing_ok=True)
            created.run(str(point), "-", *APPLY, program=KILLING, code=None)

            created.run(*APPLY)

            resources = created.json("show")["resources"]
            (runs,) = (row["outputs"]["runs"] for row in resources if row["address"] == "job.sft")
            assert [run["status"] for run in runs] == ["TRAINING_JOB_COMPLETED"], point
            lines = sorted(ledger.read_text().splitlines())
            assert lines == [f"{runs[0]['id']} {rank}" for rank in range(3)], point
            assert processes(str(created.nodes)) == [], point
