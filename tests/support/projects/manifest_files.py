"""Manifests as values, written as a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.support.projects.project import ProjectHarness

WEIGHTS = {"tiny": {"source": "file:./weights", "mount_location": "models/tiny"}}
"""One weights of two files, which ``write_manifest`` writes."""


def job(*commands: str, runtime: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A job that runs these commands, with code in ``src``."""
    return {
        "code": "./src",
        "runtime": {"start_commands": list(commands), **(runtime or {})},
        **more,
    }


def write_manifest(
    project: ProjectHarness, jobs: Mapping[str, Mapping[str, Any]], /, **sections: Any
) -> None:
    """Write the manifest of a project ``demo``, with a file of code and two of weights."""
    document = {"project": {"name": "demo"}, **sections, "jobs": dict(jobs)}
    missing = {name: _FILES[name] for name in _FILES if not (project.directory / name).exists()}
    project.write({"trainctl.yaml": json.dumps(document), **missing})


def sleep_command(seconds: int) -> str:
    """A command that ends after so many seconds, or at once at a signal."""
    return f"exec sleep {seconds}"


_FILES: dict[str, str | bytes] = {
    "src/notes.txt": "first",
    "weights/model.bin": bytes(range(256)) * 100,
    "weights/config.json": "{}",
}
