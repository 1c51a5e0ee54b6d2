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
def demo(tmp_path: Path) -> Iterator[ProjectHarness]:
    """A project with one job that writes a line to ``ledger`` each time it runs."""
    with project(tmp_path) as created:
        created.variables["PYTHONPATH"] = str(Path(__file__).parents[2])
        created.write(
            {
                "trainctl.yaml": MANIFEST.replace("LEDGER", str(tmp_path / "ledger")),
                "src/notes.txt": "code",
                "weights/a.bin": b"a" * 70_000,
                "weights/b.bin": b"b" * 70_000,
            }
        )
        yield created


@HOW_MANY
def test_a_plan_from_before_the_killed_apply(demo: ProjectHarness, most: int) -> None:
    """Saved before the apply that dies, and applied after: it carries on what that one began, with its keys, and one run ran once."""
    carried_on = 0
    for point in _points(demo, most, APPLY, prepare=()):
        demo.run("plan", "--out", "saved.bin")
        _die(demo, point, APPLY)
        begun = {intent["address"]: intent["key"] for intent in demo.json("show")["open_intents"]}
        demo.run("apply", "saved.bin", "--wait", code=None)
        demo.run(*APPLY)

        keys = {resource["address"]: resource["key"] for resource in demo.json("show")["resources"]}
        assert {address: keys[address] for address in begun} == begun, point
        carried_on += len(begun)
        _check_sound(demo, runs=1, point=point)
        _clear(demo)
    assert most == 1 or carried_on > 0


@pytest.mark.parametrize("most", [LONG])
def test_killed_replacement(demo: ProjectHarness, most: int) -> None:
    """Wherever the apply of a changed job dies, the next one ends with one new run; the old one is not touched."""
    for point in _points(demo, most, CHANGED, prepare=APPLY):
        demo.run(*APPLY)
        _die(demo, point, CHANGED)
        demo.run(*CHANGED)

        _check_sound(demo, runs=2, point=point, variables=("--var", "lr=0.2"))
        _clear(demo)


@HOW_MANY
def test_killed_destroy(demo: ProjectHarness, most: int) -> None:
    """Wherever destroy dies, the next one leaves nothing: no record, no node, no process, no reference."""
    for point in _points(demo, most, DESTROY, prepare=APPLY):
        demo.run(*APPLY)
        _die(demo, point, DESTROY)
        demo.run(*DESTROY)

        assert demo.run("state", "list").stdout == "", point
        assert list(demo.nodes.iterdir()) == [], point
        assert processes(str(demo.nodes)) == [], point
        assert list((demo.mirror / "references").rglob("*.json")) == [], point
        _clear(demo)


def _points(
    project: ProjectHarness, most: int, command: tuple[str, ...], prepare: tuple[str, ...]
) -> list[int]:
    """The effects before which to die. How many there are is counted in a run that lives."""
    if prepare:
        project.run(*prepare)
    count = project.directory.parent / "count"
    project.run("0", str(count), *command, program=("-m", "tests.support.projects.kill_at_effect"))
    total = int(count.read_text())
    _clear(project)
    assert total > 8
    return points(total, most)


def _die(project: ProjectHarness, point: int, command: tuple[str, ...]) -> None:
    done = project.run(
        str(point),
        "-",
        *command,
        program=("-m", "tests.support.projects.kill_at_effect"),
        code=None,
    )
    # The number of effects wobbles a little with timing: past the last one the command simply ends.
    assert done.returncode in (-9, 0), (point, done.stdout, done.stderr)


def _check_sound(
    demo: ProjectHarness, *, runs: int, point: int, variables: tuple[str, ...] = ()
) -> None:
    state = demo.json("show")
    job = next(resource for resource in state["resources"] if resource["address"] == "job.sft")
    recorded = [(run["id"], run["status"]) for run in job["outputs"]["runs"]]
    ran = [line.split()[0] for line in (demo.directory.parent / "ledger").read_text().splitlines()]

    assert [status for _, status in recorded] == ["TRAINING_JOB_COMPLETED"] * runs, point
    assert [run for run, _ in recorded] == ran, point
    assert (state.get("open_intents"), state.get("orphaned_intents")) == ([], []), point
    demo.run("plan", "--detailed-exitcode", *variables, code=0)
    assert len(list(demo.nodes.glob("*/runs/*"))) == runs, point
    assert _unfinished_files(demo) == [], point
    assert processes(str(demo.nodes)) == [], point


def _unfinished_files(project: ProjectHarness) -> list[str]:
    """Half-made files that a sweep should have taken: partial transfers, temporary names."""
    places = [project.mirror / "partial", *project.nodes.glob("*/cache/partial")]
    left = [str(path) for place in places if place.is_dir() for path in place.iterdir()]
    return [path for path in left if not path.endswith(".lease")]


def _clear(project: ProjectHarness) -> None:
    project.clear()
    (project.directory.parent / "ledger").unlink(missing_ok=True)
