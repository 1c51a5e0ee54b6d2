"""Requirements of a job's first command: its program and its script."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from trainctl.model.specs.job_spec import JobSpec

_COMMAND = re.compile(
    r"\s*(?:[A-Za-z_]\w*=[\w./:,@%+-]*\s+)*(?P<program>[A-Za-z0-9_.+/~-]+)(?:\s+(?P<script>[A-Za-z0-9_.+/-]+))?(?=[\s;&|]|$)"
)
_SEARCH_PATHS = re.compile(
    r"(?<!\w)(?:PATH|PYTHON(?:PATH|HOME|STARTUP)|VIRTUAL_ENV|CONDA_\w*|LD_LIBRARY_PATH)(?==|$)"
)
"""Variables that change search paths; a job that sets one is not checked."""
_RUNS_SCRIPT = re.compile(r"python(?:3(?:\.\d+)?)?|(?:ba|da|z|k)?sh")
_SHELL_WORDS = frozenset(
    [
        *("cd", "export", "unset", "source", ".", "eval", "env", "alias", "module", "ml", "conda", "mamba", "micromamba"),
        *("if", "for", "while", "until", "case", "function", "test", "trap", "shopt", "type", "command", "exec", "nohup"),
        *("true", "false", "exit", "read", "umask", "ulimit", "set", "wait", "let", "local", "time", "hash", "builtin"),
        *("echo", "printf", "mkdir", "touch", "sleep", "pwd"),
    ]
)  # fmt: skip
"""Shell keywords, and commands that may change search paths or are always available."""


@dataclass(frozen=True, slots=True, order=True)
class HostRequirements:
    """Program of the first command and a problem with its script; empty if unknown."""

    program: str = ""
    problem: str = ""


def host_requirements(job: JobSpec, files: Mapping[str, str]) -> HostRequirements:
    """Return the requirements; ``files`` are kinds (``x``, ``-``, ``l``) by path."""
    command = next(iter(job.runtime.start_commands), "")
    match = _COMMAND.match(command)
    variables = job.runtime.environment_variables
    if match is None or any(map(_SEARCH_PATHS.search, (command, *variables))):
        return HostRequirements()
    program, script = match["program"], match["script"] or ""
    if program in _SHELL_WORDS:
        return HostRequirements()
    if "/" in program and not program.startswith(("/", "~")):
        problem = _missing(program, job, files)
        if not problem and files.get(str(PurePosixPath(program))) == "-":
            problem = f"{PurePosixPath(program)} in the code is not executable, and a start command runs it (chmod +x)"
        return HostRequirements("", problem)
    runs_script = _RUNS_SCRIPT.fullmatch(program) and script and not script.startswith("-")
    return HostRequirements(program, _missing(script, job, files) if runs_script else "")


def _missing(name: str, job: JobSpec, files: Mapping[str, str]) -> str:
    """Return a problem if the script must be in the code and isn't, else empty."""
    script = PurePosixPath(name)
    if script.is_absolute() or ".." in script.parts or str(script) in files:
        return ""
    if any(mount in script.parents for mount in map(PurePosixPath, job.mount_locations)):
        return ""
    return f"{script} not found in the code, and a start command runs it"
