"""The environment of jobs that run on the host itself: how it is made active, and what it lacks. See DESIGN.md, "Host environments"."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional

from trainctl.node.system import layout

LOOK_SECONDS = 30
"""How long a login shell or an interpreter that only answers a question may take."""

_NO_PROGRAM = 97
_MISSING = "import importlib.util as u,json,sys; print(json.dumps([n for n in sys.argv[1:] if u.find_spec(n) is None]))"


def activation(venv: Optional[str]) -> str:
    """Lines for the head of a shell program, after the user's profile: what ``activate`` does."""
    if not venv:
        return ""
    place = shlex.quote(str(_venv(venv)))
    return f'export VIRTUAL_ENV={place}\nexport PATH="$VIRTUAL_ENV/bin:$PATH"\nunset PYTHONHOME\nhash -r\n'


def check_host(wanted: Mapping[str, Any]) -> Dict[str, Any]:
    """What of ``{venv, program, modules}`` is not here: ``lacks``, each with what it is, as ``need``, and a sentence; empty if nothing is known to be."""
    venv = wanted.get("venv")
    if venv and not os.access(str(_venv(venv) / "bin" / "python"), os.X_OK):
        return _lacks("program", f"{venv} is no virtual environment: it has no bin/python")
    program = str(wanted.get("program") or "")
    if not program:
        return {"lacks": []}
    modules = [str(one) for one in wanted.get("modules", [])]
    if not modules and shutil.which(program, path=os.confstr("CS_PATH")):
        # No profile hides the system's own directories, and starting one takes longer than all the rest.
        return {"lacks": []}
    try:
        found = login_shell(_question(program, modules), venv)
    except subprocess.TimeoutExpired:
        return {"lacks": []}  # a slow profile is no missing program
    if found.returncode == _NO_PROGRAM:
        where = f" in {venv} or" if venv else ""
        return _lacks("program", f"no program {program} is found{where} on the login shell's PATH")
    listed = ", ".join(_missing(found.stdout))
    return _lacks("module", f"{program} finds no module {listed}") if listed else {"lacks": []}


def _lacks(need: str, text: str) -> Dict[str, Any]:
    return {"lacks": [{"need": need, "text": text}]}


def _question(program: str, modules: List[str]) -> str:
    """Both questions for one shell, as a profile may take long."""
    path = shlex.quote(str(Path(program).expanduser()))
    text = f"command -v -- {path} >/dev/null || exit {_NO_PROGRAM}\n"
    if modules:
        words = " ".join(shlex.quote(one) for one in ("-c", _MISSING, *modules))
        text += f"cd / && {program} {words}"
    return text


def login_shell(text: str, venv: Optional[str]) -> subprocess.CompletedProcess[str]:
    """Run a line in the shell that jobs are run in, after its profile."""
    shell = shutil.which("bash") or "/bin/sh"
    argv = [shell, "-l", "-c", activation(venv) + text]
    return subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=LOOK_SECONDS,
        check=False,
    )


def _missing(said: str) -> List[str]:
    try:
        return [str(one) for one in json.loads(said.splitlines()[-1])]
    except (ValueError, IndexError):
        return []  # an interpreter that can't even say so is the job's to complain of


def _venv(value: Any) -> Path:
    return layout.absolute(str(Path(str(value)).expanduser()), "venv")
