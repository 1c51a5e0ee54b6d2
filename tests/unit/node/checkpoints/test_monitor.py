"""The layouts of public trainers: each step a checkpoint by itself, complete while logs grow, loaded with its pointer."""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.support.cases import cases
from tests.support.node_program.saved_runs import PREFIX, ManualClock, SavedRun
from trainctl.base.checkpoints.manifests import RunCheckpoints
from trainctl.base.checkpoints.stores import DirectoryCheckpointStore

GUIDE = Path(__file__).parents[4] / "docs/guides/checkpoints.md"
TRAINERS = cases("node/trainers")


def save(run: SavedRun, case: dict[str, Any], step: int) -> None:
    """A checkpoint and what points to it, as the trainer leaves them."""
    name, rank = case["checkpoint"].format(step), run.directory / "rank-0"
    files = [f"{name}/{path}" for path in case.get("saves", ())]
    files += [name] if re.search(r"\.(?:ckpt|pth?)$", name) else []
    for path in (os.path.normpath(path.format(step)) for path in files):
        is_header = path.endswith(".safetensors")
        run.save(".", {path: struct.pack("<Q", 2) + b"{}" if is_header else b"%d" % step})
    for path, text in case.get("pointers", {}).items():
        text, place = text.format(step), rank / path
        place.unlink(missing_ok=True)
        if text.startswith("-> "):
            place.symlink_to(text[3:])
        else:
            place.write_text(str(step) if text.startswith("= ") else text)


@pytest.mark.parametrize("case", TRAINERS)
def test_a_trainer(
    run: SavedRun, store: DirectoryCheckpointStore, clock: ManualClock, case: Any
) -> None:
    uploader, names = run.uploader(), [case["checkpoint"].format(step) for step in (100, 200)]
    for step, rounds in ((100, 10), (200, 4)):
        save(run, case, step)
        for now in range(rounds):
            run.save(".", dict.fromkeys(case.get("logs", ()), b"%d" % now))
            clock.now += 3
            uploader.run_round()
    manifests = RunCheckpoints(store, PREFIX).manifests()
    of_steps = {item["name"]: item["step"] for item in manifests if item["step"] is not None}
    assert of_steps == dict(zip(names, (100, 200), strict=True)), "complete while logs grow"
    assert not [manifest["unfinished"] for manifest in manifests if manifest["unfinished"]]

    for name, step in ((None, 200), (names[0], 100)):
        place, (row,) = run.load(name)
        rank = place / "sft/rank-0"
        assert row["step"] == step
        assert (rank / case["checkpoint"].format(step)).exists()
        pointers = {**case.get("pointers", {}), **case.get("loaded", {})}
        assert sorted(row["pointers"]) == sorted(pointers)
        for path, text in pointers.items():
            expected = text.format(step).replace("LOADED", str(rank))
            if text.startswith("-> "):
                assert (rank / path).readlink() == Path(expected[3:])
            else:
                assert (rank / path).read_text() == (str(step) if text[:2] == "= " else expected)

    run.finish(keep_last=1)
    kept = [item["name"] for item in RunCheckpoints(store, PREFIX).manifests() if item["step"]]
    assert kept == names[1:]


def test_the_guide_has_the_trainers() -> None:
    """With the names of their checkpoints and their pointers."""
    rows = re.findall(r"^\| ([^|`]+) \| `([^`]+)` \| (.*?) *\|$", GUIDE.read_text(), re.MULTILINE)
    expected = []
    for case in TRAINERS:
        pointers = [f"`{path.rpartition('/')[2]}`" for path in case.values[0].get("pointers", ())]
        name = re.sub(r"\{0[^}]*\}", "N", case.values[0]["checkpoint"])
        expected.append((str(case.id), name, ", ".join(pointers)))
    assert [row for row in rows if row[0] != "trainer"] == expected
