"""Killed at any point, trainctl carries on: SIGKILL before each effect in turn, then the same command once more.

The suite takes one of the points, the long form some of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.projects.project import ProjectHarness, processes, project
from tests.support.tiers import points

LONG = pytest.param(8, id="long", marks=pytest.mark.long)
HOW_MANY = pytest.mark.parametrize("most", [pytest.param(1, id="short"), LONG])
MANIFEST = """\
project: {name: demo}
vars: {lr: "0.1", ledger: LEDGER}
weights:
  tiny: {source: "file:./weights", mount_location: models/tiny}
jobs:
  sft:
    code: ./src
    weights: [tiny]
    runtime:
      start_commands: ["cat models/tiny/* > $BT_CHECKPOINT_DIR/copy", "echo $BT_TRAINING_JOB_ID ${{ var.lr }} >> ${{ var.ledger }}"]
      checkpointing_config: {enabled: true}
      cache_config: {enabled: true}
"""
APPLY = ("apply", "--auto-approve", "--wait")
CHANGED = (*APPLY, "--var", "lr=0.2")
DESTROY = ("destroy", "--auto-approve")


@pytest.fixture
def made(tmp_path: Path) -> Iterator[ProjectHarness]:
    """A project with one job that writes a line to ``ledger`` each time it runs."""
    with project(tmp_path) as one:
        one.variables["PYTHONPATH"] = str(Path(__file__).parents[2])
        one.write(
            {
                "trainctl.yaml": MANIFEST.replace("LEDGER", str(tmp_path / "ledger")),
                "src/notes.txt": "code",
                "weights/a.bin": b"a" * 70_000,
                "weights/b.bin": b"b" * 70_000,
            }
        )
        yield one


@HOW_MANY
def test_a_plan_from_before_the_killed_apply(made: ProjectHarness, most: int) -> None:
    """Saved before the apply that dies, and applied after: it carries on what that one began, with its keys, and one run ran once."""
    carried_on = 0
    for point in _points(made, most, APPLY, prepare=()):
        made.run("plan", "--out", "saved.bin")
        _die(made, point, APPLY)
        begun = {one["address"]: one["key"] for one in made.json("show")["open_intents"]}
        made.run("apply", "saved.bin", "--wait", code=None)
        made.run(*APPLY)

        keys = {one["address"]: one["key"] for one in made.json("show")["resources"]}
        assert {address: keys[address] for address in begun} == begun, point
        carried_on += len(begun)
        _check_sound(made, runs=1, point=point)
        _clear(made)
    assert most == 1 or carried_on > 0


@pytest.mark.parametrize("most", [LONG])
def test_killed_replacement(made: ProjectHarness, most: int) -> None:
    """Wherever the apply of a changed job dies, the next one ends with one new run; the old one is not touched."""
    for point in _points(made, most, CHANGED, prepare=APPLY):
        made.run(*APPLY)
        _die(made, point, CHANGED)
        made.run(*CHANGED)

        _check_sound(made, runs=2, point=point, variables=("--var", "lr=0.2"))
        _clear(made)


@HOW_MANY
def test_killed_destroy(made: ProjectHarness, most: int) -> None:
    """Wherever destroy dies, the next one leaves nothing: no record, no node, no process, no reference."""
    for point in _points(made, most, DESTROY, prepare=APPLY):
        made.run(*APPLY)
        _die(made, point, DESTROY)
        made.run(*DESTROY)

        assert made.run("state", "list").stdout == "", point
        assert list(made.nodes.iterdir()) == [], point
        assert processes(str(made.nodes)) == [], point
        assert list((made.mirror / "references").rglob("*.json")) == [], point
        _clear(made)


def _points(
    made: ProjectHarness, most: int, command: tuple[str, ...], prepare: tuple[str, ...]
) -> list[int]:
    """The effects before which to die. How many there are is counted in a run that lives."""
    if prepare:
        made.run(*prepare)
    count = made.directory.parent / "count"
    made.run("0", str(count), *command, program=("-m", "tests.support.projects.kill_at_effect"))
    total = int(count.read_text())
    _clear(made)
    assert total > 8
    return points(total, most)


def _die(made: ProjectHarness, point: int, command: tuple[str, ...]) -> None:
    done = made.run(
        str(point),
        "-",
        *command,
        program=("-m", "tests.support.projects.kill_at_effect"),
        code=None,
    )
    # The number of effects wobbles a little with timing: past the last one the command simply ends.
    assert done.returncode in (-9, 0), (point, done.stdout, done.stderr)


def _check_sound(
    made: ProjectHarness, *, runs: int, point: int, variables: tuple[str, ...] = ()
) -> None:
    state = made.json("show")
    job = next(one for one in state["resources"] if one["address"] == "job.sft")
    recorded = [(run["id"], run["status"]) for run in job["outputs"]["runs"]]
    ran = [line.split()[0] for line in (made.directory.parent / "ledger").read_text().splitlines()]

    assert [status for _, status in recorded] == ["TRAINING_JOB_COMPLETED"] * runs, point
    assert [run for run, _ in recorded] == ran, point
    assert (state.get("open_intents"), state.get("orphaned_intents")) == ([], []), point
    made.run("plan", "--detailed-exitcode", *variables, code=0)
    assert len(list(made.nodes.glob("*/runs/*"))) == runs, point
    assert _unfinished_files(made) == [], point
    assert processes(str(made.nodes)) == [], point


def _unfinished_files(made: ProjectHarness) -> list[str]:
    """Half-made files that a sweep should have taken: partial transfers, temporary names."""
    places = [made.mirror / "partial", *made.nodes.glob("*/cache/partial")]
    left = [str(path) for place in places if place.is_dir() for path in place.iterdir()]
    return [path for path in left if not path.endswith(".lease")]


def _clear(made: ProjectHarness) -> None:
    made.clear()
    (made.directory.parent / "ledger").unlink(missing_ok=True)
