"""Read a config through the SDK, in another interpreter, or from a JSON dump."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from trainctl.errors import TrainctlError

# Nothing but CONFIG.py runs: the working directory, the first entry of sys.path for "python -c", is removed, and standard
# output is kept for the dump.
_PROGRAM = """\
import sys
sys.path[:] = sys.path[1:]
import json, os, pathlib
output = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
try:
    from truss_train.loader import import_training_project
except ModuleNotFoundError:
    os._exit(99)
with import_training_project(pathlib.Path(sys.argv[1])) as project:
    dump = {"project": project.model_dump(mode="json"), "job": project.job.model_dump(mode="json")}
    json.dump(dump, output)
"""
_SHOWN_LINES = 6
_NO_SDK = 99
"""Exit status of ``_PROGRAM`` if it can't import the SDK."""


def read_config(config: Path, python: str) -> dict[str, Any]:
    """Run a config in this interpreter, as the SDK does; return its dump."""
    if not config.is_file():
        raise TrainctlError(
            f"{config} not found", "Name a config.py, or use --from-json.", code="invalid-config"
        )
    try:
        done = subprocess.run(
            [python, "-B", "-c", _PROGRAM, str(config)],
            capture_output=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except OSError as error:
        advice = "Name the interpreter that has the package truss with --python."
        raise TrainctlError(
            f"cannot run {python}: {error.strerror}", advice, code="no-truss"
        ) from None
    if done.returncode == 0:
        return parse_dump(done.stdout)
    message = done.stderr.decode(errors="replace").strip()
    lines = message.splitlines()
    if done.returncode == _NO_SDK:
        raise TrainctlError(
            f"the package truss is not installed for {python}",
            "Name an interpreter that has it: --python ~/venvs/truss/bin/python. Or use --from-json with a dump made there.",
            code="no-truss",
        )
    detail = "\n".join(lines[-_SHOWN_LINES:-1])
    raise TrainctlError(f"{config} failed: {''.join(lines[-1:])}", detail, code="invalid-config")


def parse_dump(data: bytes) -> dict[str, Any]:
    """Parse a dump: the project and the job, as mappings."""
    try:
        dump = json.loads(data)
        if dump["project"]["name"] and dump["job"]["image"]["base_image"]:
            return dict(dump)
    except (ValueError, TypeError, KeyError):
        pass
    raise TrainctlError(
        "not the dump of a config",
        'Expected {"project": …, "job": …}, with the model_dump(mode="json") of both.',
        code="invalid-config",
    )
