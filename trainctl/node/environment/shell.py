"""Shell programs of jobs, login shells, and checks of the host."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path, PurePath
from typing import Any, Dict, Iterable, Mapping, Optional, Sequence, Tuple

from trainctl.base.protocol.host import HostRequirement, MissingHostRequirements
from trainctl.node.system import layout

QUERY_SECONDS = 30
"""Timeout for a login shell or an interpreter that only answers a query."""

_EXIT_NO_PROGRAM = 97

_KEPT = "__TRAINCTL_"
"""Prefix of copies that a startup file doesn't know and so doesn't change."""

_HEAD = "{before}set -e\ncd -- {work}\n"
_COMMAND = """\
printf %s {number} 1<>{step}
eval {command}
__trainctl_status=$?; [ "$__trainctl_status" -eq 0 ] || exit "$__trainctl_status"
"""

_HOLD = """\
if [ -z "${{__stop_requested-}}" ] && {condition}; then
    echo "$__status" 1<>{held}
    while [ -z "${{__stop_requested-}}" ]; do sleep 1; done 2>/dev/null  # no "Terminated" in the log
fi
"""


def keep_variables(variables: Mapping[str, str], names: Iterable[str]) -> Dict[str, str]:
    """Add a copy of each named variable, for ``restoring_lines`` after the user's startup files."""
    return {**variables, **{f"{_KEPT}{name}": variables[name] for name in names}}


def kept_names(variables: Mapping[str, str]) -> Tuple[str, ...]:
    """Names that ``keep_variables`` has copied."""
    return tuple(name[len(_KEPT) :] for name in variables if name.startswith(_KEPT))


def without_copies(variables: Mapping[str, str]) -> Dict[str, str]:
    """Variables without the copies of ``keep_variables``."""
    return {name: value for name, value in variables.items() if not name.startswith(_KEPT)}


def restoring_lines(names: Iterable[str]) -> str:
    """Shell lines that give variables their value from before the startup files; PATH is extended."""
    text = ""
    for name in names:
        more = ':"$PATH"' if name == "PATH" else ""
        text += f'export {name}="${_KEPT}{name}"{more}\nunset {_KEPT}{name}\n'
    return text


def activation_lines(venv: Optional[str]) -> str:
    """Shell lines that activate a virtual environment after the user's profile."""
    if not venv:
        return ""
    path = shlex.quote(str(_venv(venv)))
    return f'export VIRTUAL_ENV={path}\nexport PATH="$VIRTUAL_ENV/bin:$PATH"\nunset PYTHONHOME\nhash -r\n'


def check_host(requirement: HostRequirement) -> MissingHostRequirements:
    """List what is missing of a virtual environment and a program."""
    venv, program = requirement["venv"], requirement["program"]
    if venv and not os.access(str(_venv(venv) / "bin" / "python"), os.X_OK):
        return {"lacks": [f"{venv} is not a virtual environment: it has no bin/python"]}
    # Profiles keep the system's directories in PATH, and a login shell is slow to start.
    if not program or shutil.which(program, path=os.confstr("CS_PATH")):
        return {"lacks": []}
    try:
        path = shlex.quote(str(Path(program).expanduser()))
        query = f"command -v -- {path} >/dev/null || exit {_EXIT_NO_PROGRAM}"
        code = run_in_login_shell(query, venv).returncode
    except subprocess.TimeoutExpired:
        return {"lacks": []}  # the profile is slow; the program may exist
    where = f" in {venv} or" if venv else ""
    missing = f"program {program} not found{where} on the login shell's PATH"
    return {"lacks": [missing] if code == _EXIT_NO_PROGRAM else []}


def run_in_login_shell(text: str, venv: Optional[str]) -> subprocess.CompletedProcess[str]:
    """Run a line in the shell that runs jobs, after its profile."""
    shell = shutil.which("bash") or "/bin/sh"
    argv = [shell, "-l", "-c", activation_lines(venv) + text]
    return subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=QUERY_SECONDS,
        check=False,
    )


def _venv(value: Any) -> Path:
    return layout.check_absolute(str(Path(str(value)).expanduser()), "venv")


def shell_program(commands: Sequence[str], work: Path, step: Path, before: str = "") -> str:
    """Program text that writes the current command's number to the file ``step``.

    It overwrites bytes, which a full disk allows, so the file must have some. ``before`` is inserted at the top.
    """
    text = _HEAD.format(before=before, work=shlex.quote(str(work)))
    for number, command in enumerate(commands, 1):
        text += _COMMAND.format(
            number=number, step=shlex.quote(str(step)), command=shlex.quote(command)
        )
    return text


def shell_arguments(
    script: Path, held: Optional[Path] = None, trigger: str = ""
) -> Tuple[str, ...]:
    """Command line of a login shell for the program: bash if available.

    With a ``trigger``, a shell around it waits at the end; see ``holding_lines``.
    """
    shell = (shutil.which("bash") or "/bin/sh", "-l", str(script))
    if held is None or not trigger:
        return shell
    text = f'trap "__stop_requested=1" TERM\n"$@"\n__status=$?\n{holding_lines(held, trigger)}exit "$__status"'
    return ("/bin/sh", "-c", text, "sh", *shell)


def holding_lines(held: PurePath, trigger: str) -> str:
    """Shell lines that write ``$__status`` to the file ``held`` and wait for SIGTERM, unless it came before."""
    condition = '[ "$__status" -ne 0 ]' if trigger == "on_failure" else ":"
    return _HOLD.format(condition=condition, held=shlex.quote(str(held)))


def started_commands(step: Path) -> int:
    """Number of commands that were started; the shell's exit code is that of the last of them."""
    try:
        return int(step.read_text())
    except (FileNotFoundError, ValueError):
        return 0


def describe_failure(
    commands: Sequence[str], step: Path, code: int, noun: str = "start command"
) -> str:
    """Describe which command ended the job, in one line; ``code`` is negative for a signal."""
    number = started_commands(step)
    ending = f"exited with {code}" if code >= 0 else f"was killed by signal {-code}"
    if not number:
        user = os.environ.get("USER") or f"UID {os.geteuid()}"  # not all have a passwd entry
        cause = f": a login profile of {user} ended or replaced it" if code >= 0 else ""
        return f"the shell {ending} before the first command{cause}"
    command = commands[number - 1] if 0 < number <= len(commands) else ""
    line = command.strip().splitlines()[0] if command.strip() else ""
    shown = line if len(line) <= 100 else line[:97] + "..."
    return f"{noun} {number} of {len(commands)} {ending}: {repr(shown)[1:-1]}"
