"""The job's commands as one shell program that keeps exports and stops at the first that fails."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import Sequence, Tuple

_HEAD = "{before}set -e\ncd -- {work}\n"
_COMMAND = """\
printf %s {number} > {step}
eval {command}
__trainctl_status=$?; [ "$__trainctl_status" -eq 0 ] || exit "$__trainctl_status"
"""


def shell_program(commands: Sequence[str], work: Path, step: Path, before: str = "") -> str:
    """The text of the program; it writes the number of the command it is at, from 1, into the file ``step``.

    ``before`` are lines of ours that come first.
    """
    text = _HEAD.format(before=before, work=shlex.quote(str(work)))
    for number, command in enumerate(commands, 1):
        text += _COMMAND.format(
            number=number, step=shlex.quote(str(step)), command=shlex.quote(command)
        )
    return text


def shell_arguments(script: Path) -> Tuple[str, ...]:
    """How to run the program: a login shell, bash where there is one."""
    bash = shutil.which("bash")
    return (bash or "/bin/sh", "-l", str(script))


def describe_failure(
    commands: Sequence[str], step: Path, ending: str, noun: str = "start command"
) -> str:
    """One line that names the command that ended the job."""
    try:
        number = int(step.read_text())
    except (FileNotFoundError, ValueError):
        return f"the login shell {ending} before the first command"
    command = commands[number - 1] if 0 < number <= len(commands) else ""
    first = command.strip().splitlines()[0] if command.strip() else ""
    shown = first if len(first) <= 100 else first[:97] + "..."
    return f"{noun} {number} of {len(commands)} {ending}: {repr(shown)[1:-1]}"
