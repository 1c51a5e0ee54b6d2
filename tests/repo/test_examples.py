"""Each example is complete and right."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.projects.program import ROOT, trainctl

EXAMPLES = sorted(path.parent for path in (ROOT / "examples").glob("*/trainctl.yaml"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_the_manifest_is_valid(example: Path) -> None:
    """``trainctl validate`` finds nothing wrong; it may only say that a provider isn't installed."""
    done = trainctl("-C", str(example), "validate", "--format", "json")
    document = json.loads(done.stdout)
    assert document["valid"] is True, done.stdout
    assert not [row for row in document["diagnostics"] if "is not installed" not in row["summary"]]
    assert done.returncode == 0


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_it_is_listed(example: Path) -> None:
    assert f"| [{example.name}]({example.name}) |" in (ROOT / "examples" / "README.md").read_text()


@pytest.mark.parametrize(
    "script", sorted((ROOT / "examples").rglob("*.py")), ids=lambda path: path.name
)
def test_scripts_are_python(script: Path) -> None:
    assert compile(script.read_text(), str(script), "exec").co_filename == str(script)


def test_the_quickstart_weights_are_what_their_script_makes(tmp_path: Path) -> None:
    """The committed weights can be made again, byte for byte, and are a well-formed safetensors file."""
    source = ROOT / "examples" / "quickstart"
    shutil.copy(source / "make_weights.py", tmp_path)
    subprocess.run([sys.executable, str(tmp_path / "make_weights.py")], check=True)
    names = sorted(path.name for path in (source / "weights").iterdir())
    assert names == ["config.json", "model.safetensors", "vocab.json"]
    for name in names:
        assert (tmp_path / "weights" / name).read_bytes() == (
            source / "weights" / name
        ).read_bytes()
    data = (source / "weights" / "model.safetensors").read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    entries = json.loads(data[8 : 8 + length]).values()
    assert max(entry["data_offsets"][1] for entry in entries) == len(data) - 8 - length
    assert 200_000 < len(data) < 1_000_000


@pytest.mark.integration
def test_the_quickstart_script_learns(tmp_path: Path) -> None:
    """Run by hand on its weights, train.py lowers the loss, leaves a checkpoint and finds its cache the second time."""
    source = ROOT / "examples" / "quickstart"
    environment = {
        "BT_CHECKPOINT_DIR": str(tmp_path / "1"),
        "BT_PROJECT_CACHE_DIR": str(tmp_path / "cache"),
    }
    words = [
        sys.executable,
        str(source / "src" / "train.py"),
        "--weights",
        str(source / "weights"),
        "--lr",
        "2",
    ]
    outputs = [
        subprocess.run(
            words, env=environment | {"BT_CHECKPOINT_DIR": str(tmp_path / run)},
            capture_output=True, text=True, check=True,
        ).stdout
        for run in ("1", "2")
    ]  # fmt: skip
    losses = [float(line.split()[-1]) for line in outputs[0].splitlines() if " loss " in line]
    assert losses[-1] < losses[0] - 0.5
    assert "training cache: made" in outputs[0]
    assert "training cache: found" in outputs[1]
    assert (tmp_path / "1" / "checkpoint-150" / "model.safetensors").exists()
    assert not list((tmp_path / "1").glob(".checkpoint*"))
