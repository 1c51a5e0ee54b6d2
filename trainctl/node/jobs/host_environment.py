"""The environment of jobs that run on the host itself: how it is made active, and what it lacks. See DESIGN.md, "Environments and containers"."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any, Optional

from trainctl.base.protocol.host import HostRequirement, MissingHostRequirements
from trainctl.node.system import layout

LOOK_SECONDS = 30
"""How long a login shell or an interpreter that only answers a question may take."""


_NO_PROGRAM = 97


def activation_lines(venv: Optional[str]) -> str:
    """Lines for the head of a shell program, after the user's profile: what ``activate`` does."""
    if not venv:
        return ""
    place = shlex.quote(str(_venv(venv)))
    return f'export VIRTUAL_ENV={place}\nexport PATH="$VIRTUAL_ENV/bin:$PATH"\nunset PYTHONHOME\nhash -r\n'


def check_host(wanted: HostRequirement) -> MissingHostRequirements:
    """What of it is missing here; empty if nothing is known to be."""
    venv, program = wanted["venv"], wanted["program"]
    if venv and not os.access(str(_venv(venv) / "bin" / "python"), os.X_OK):
        return {"lacks": [f"{venv} is no virtual environment: it has no bin/python"]}
    # No profile hides the system's own directories, and starting a login shell takes longer than all the rest.
    if not program or shutil.which(program, path=os.confstr("CS_PATH")):
        return {"lacks": []}
    try:
        path = shlex.quote(str(Path(program).expanduser()))
        found = run_in_login_shell(f"command -v -- {path} >/dev/null || exit {_NO_PROGRAM}", venv)
    except subprocess.TimeoutExpired:
        return {"lacks": []}  # a slow profile is no missing program
    where = f" in {venv} or" if venv else ""
    missing = f"no program {program} is found{where} on the login shell's PATH"
    return {"lacks": [missing] if found.returncode == _NO_PROGRAM else []}


def run_in_login_shell(text: str, venv: Optional[str]) -> subprocess.CompletedProcess[str]:
    """Run a line in the shell that jobs are run in, after its profile."""
    shell = shutil.which("bash") or "/bin/sh"
    argv = [shell, "-l", "-c", activation_lines(venv) + text]
    return subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=LOOK_SECONDS,
        check=False,
    )


def _venv(value: Any) -> Path:
    return layout.check_absolute(str(Path(str(value)).expanduser()), "venv")
