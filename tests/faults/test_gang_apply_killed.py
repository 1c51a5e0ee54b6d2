"""An apply of a gang that is killed anywhere is carried on by the next: every rank runs once."""

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


@pytest.mark.parametrize(
    "most", [pytest.param(1, id="short"), pytest.param(20, id="long", marks=pytest.mark.long)]
)
def test_killed_between_the_ranks_starts(tmp_path: Path, most: int) -> None:
    """Wherever in its second half the apply dies, where ranks are equipped and started, the next one ends with one run of three ranks."""
    with project(tmp_path) as made:
        ledger = tmp_path / "ledger"
        made.variables["PYTHONPATH"] = str(Path(__file__).parents[2])
        text = MANIFEST.replace("LEDGER", str(ledger))
        made.write({"trainctl.yaml": text, "weights/a.bin": b"a" * 70_000})
        count = tmp_path / "count"
        made.run("0", str(count), *APPLY, program=("-m", "tests.support.projects.kill_at_effect"))
        total = int(count.read_text())
        for point in (total // 2 + further for further in points(total // 2, most)):
            made.clear()
            ledger.unlink(missing_ok=True)
            made.run(
                str(point),
                "-",
                *APPLY,
                program=("-m", "tests.support.projects.kill_at_effect"),
                code=None,
            )

            made.run(*APPLY)

            runs = made.json("show")["resources"]
            job = next(one for one in runs if one["address"] == "job.sft")["outputs"]["runs"]
            assert [run["status"] for run in job] == ["TRAINING_JOB_COMPLETED"], point
            lines = sorted(ledger.read_text().splitlines())
            assert lines == [f"{job[0]['id']} {rank}" for rank in range(3)], point
            assert processes(str(made.nodes)) == [], point
