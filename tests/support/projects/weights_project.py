"""A project that wants weights of a Hub that may fail, on disks that may be full; and what must hold when they do."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.support.projects.project import ProjectHarness
from tests.support.servers.hub import Hub
from tests.support.storage.mirrors import assert_sound
from tests.support.storage.weights_data import noise

ROOT = Path(__file__).resolve().parents[3]
FAST_TIMEOUTS = ("-m", "tests.support.projects.fast_timeouts")
SMALL = {"model.safetensors": noise(300_000), "config.json": b'{"hidden_size": 8}'}

WEIGHTS = """\
project: {name: demo}
weights:
  model:
    source: "SOURCE"
    mount_location: /app/models/tiny
"""
JOB = """\
jobs:
  sft:
    weights: [model]
    runtime: {start_commands: ["cat /app/models/tiny/config.json"]}
"""


def connect(work: ProjectHarness, hub: Hub) -> None:
    work.variables |= {"HF_ENDPOINT": hub.url, "PYTHONPATH": str(ROOT)}


def write_weights_manifest(work: ProjectHarness, source: str, rest: str = "") -> None:
    work.write({"trainctl.yaml": WEIGHTS.replace("SOURCE", source) + rest})


def apply(work: ProjectHarness, code: int, *more: str) -> CompletedProcess[str]:
    return work.run("apply", "--auto-approve", *more, code=code, program=FAST_TIMEOUTS)


def assert_nothing_half_done(work: ProjectHarness) -> None:
    """Every blob is what its name says, no listing names the source, no node has a tree or a run of it."""
    if work.mirror.exists():
        assert_sound(work.mirror)
    assert list(work.mirror.glob("listings/*")) == []
    assert list(work.nodes.glob("*/cache/trees/*")) == []
    assert list(work.nodes.glob("*/cache/complete/*")) == []
    assert list(work.nodes.glob("*/runs/*/started")) == []


def assert_recovers(work: ProjectHarness, files: dict[str, bytes] = SMALL) -> None:
    """With the fault gone one apply does the rest, and the mirror holds exactly the files."""
    apply(work, 0)
    (listing,) = work.mirror.glob("listings/*.json")
    result = {file["path"]: file["sha256"] for file in json.loads(listing.read_bytes())["files"]}
    assert result == {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    assert_sound(work.mirror)


@contextmanager
def small_disk(place: Path, size: str, *options: str) -> Iterator[Path]:
    """A file system of its own at the place; the test is skipped where this user may not mount one."""
    place.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", ",".join([f"size={size}", *options]), "none", str(place)]
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a small disk")
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no small disk can be mounted here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def remount(place: Path, *options: str) -> None:
    subprocess.run(["mount", "-o", ",".join(["remount", *options]), str(place)], check=True)
