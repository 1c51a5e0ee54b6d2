"""``checkpoints download`` and ``checkpoints upload`` killed before each of their effects: what has its final name is whole, and a second call ends it.

The short form takes one of the points, another every day; the long form takes every one.
"""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.projects.project import ProjectHarness, project
from tests.support.tiers import points
from trainctl.base.filesystem.files import is_temporary

EVERY = 0
HOW_MANY = pytest.mark.parametrize(
    "most", [pytest.param(1, id="short"), pytest.param(EVERY, id="long", marks=pytest.mark.long)]
)
MANIFEST = """\
project: {name: demo}
checkpoints: {url: "file://STORE"}
jobs:
  sft:
    code: ./src
    runtime:
      start_commands: [sh save.sh]
      checkpointing_config: {enabled: true}
"""
SAVE = """\
mkdir -p $BT_CHECKPOINT_DIR/checkpoint-1/deep
cd $BT_CHECKPOINT_DIR/checkpoint-1
head -c 300000 /dev/urandom >model.bin
head -c 3000 /dev/urandom >deep/state.bin
: >deep/empty
"""
DOWNLOAD = ("checkpoints", "download", "sft")
UPLOAD = ("checkpoints", "upload", "sft")


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[ProjectHarness]:
    """A project whose job saves one checkpoint of three files."""
    with project(tmp_path) as created:
        created.variables["PYTHONPATH"] = str(Path(__file__).parents[2])
        manifest = MANIFEST.replace("STORE", str(tmp_path / "store"))
        created.write({"trainctl.yaml": manifest, "src/save.sh": SAVE})
        yield created


def content(directory: Path) -> dict[str, bytes]:
    paths = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths}


def effects(project: ProjectHarness, *command: str) -> int:
    """How many effects the command has, which is done."""
    count = project.directory.parent / "count"
    project.run("0", str(count), *command, program=("-m", "tests.support.projects.kill_at_effect"))
    return int(count.read_text())


def die(project: ProjectHarness, point: int, *command: str) -> None:
    """Do the command, and die before that effect; past the last one it simply ends."""
    done = project.run(
        str(point),
        "-",
        *command,
        program=("-m", "tests.support.projects.kill_at_effect"),
        code=None,
    )
    assert done.returncode in (-signal.SIGKILL, 0), (point, done.stderr)


@HOW_MANY
def test_a_killed_download_is_whole_or_not_there(demo: ProjectHarness, most: int) -> None:
    """Under its final name there is nothing or everything; the second call ends with everything, and with nothing beside it."""
    demo.run("apply", "--auto-approve", "--wait")
    total = effects(demo, *DOWNLOAD, "--output-dir", "whole")
    saved = content(demo.directory / "whole" / "checkpoint-1")
    assert sorted(saved) == ["deep/empty", "deep/state.bin", "model.bin"]
    for point in points(total, most):
        target = demo.directory / f"at-{point}"
        die(demo, point, *DOWNLOAD, "--output-dir", target.name)
        there = (target / "checkpoint-1").exists()
        assert not there or content(target / "checkpoint-1") == saved, point
        demo.run(*DOWNLOAD, "--output-dir", target.name, code=64 if there else 0)

        assert content(target / "checkpoint-1") == saved, point
        assert [path.name for path in target.iterdir()] == ["checkpoint-1"], point


@HOW_MANY
def test_a_killed_upload_is_ended_by_the_next(demo: ProjectHarness, most: int) -> None:
    """What an ended run left behind is in the store after the second call, whoever brought it: each file, and nothing beside it."""
    demo.run("apply", "--auto-approve", "--wait")
    store = demo.directory.parent / "store"
    (kept,) = store.glob("demo/sft/*")
    whole = {name: data for name, data in content(kept).items() if not name.startswith(".")}
    leave_behind(demo, kept)
    for point in points(effects(demo, *UPLOAD), most):
        leave_behind(demo, kept)
        die(demo, point, *UPLOAD)
        demo.run(*UPLOAD)
        rows = demo.json("checkpoints", "list", "sft")["checkpoints"]
        result = {name: data for name, data in content(kept).items() if not name.startswith(".")}

        assert [(row["name"], row["state"]) for row in rows] == [("checkpoint-1", "complete")]
        assert {**result, "run.json": b""} == {**whole, "run.json": b""}, point
        assert not [path for path in store.glob("**/*") if is_temporary(path.name)], point


def leave_behind(project: ProjectHarness, kept: Path) -> None:
    """Put the run back to where its job had ended and nothing had been brought yet."""
    shutil.rmtree(kept)
    (run,) = project.nodes.glob("*/runs/*")
    (run / "uploads.jsonl").unlink()
    left = {"state": "SYNCING", "error": None, "pending": ["checkpoint-1"]}
    (run / "sync.json").write_text(json.dumps(left))
