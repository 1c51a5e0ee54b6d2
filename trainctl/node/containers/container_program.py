"""The text that a container's first process reads, around the job's own commands.

It is a POSIX shell program, as images are only known to have ``/bin/sh``. As process 1 it collects orphans, and ends what the
job leaves behind as the host's warden does: asked, then after two seconds made to by its own end. What was asked to stop already
is not asked again: it has its grace, and whoever stops the container makes an end of it.
"""

from __future__ import annotations

import shlex
from pathlib import PurePosixPath
from typing import List, Optional, Sequence

CONTROL = PurePosixPath("/run/trainctl")
"""Where a container finds its program, its log and the number of the command it is at."""

LOG, STEP, COMMANDS, FIRST = (CONTROL / name for name in ("log", "step", "commands", "first"))

_HEAD = """\
exec >>{log} 2>&1
eval "$(cat)"
exec </dev/null
"""
_COPY = """\
for __one in {workdir}/* {workdir}/.[!.]*; do
    case "${{__one##*/}}" in {left}) continue ;; esac
    [ ! -e "$__one" ] || cp -RPn "$__one" {work}/ 2>/dev/null || :
done
"""
_PLAIN = """\
trap '__asked=1' TERM
/bin/sh {commands}
__status=$?
"""
_ASKED = """\
trap '__asked=1; trap "" TERM; kill -TERM -1' TERM
/bin/sh {commands} &
wait "$!"
__status=$?
[ "$__status" -le 128 ] || wait "$!" 2>/dev/null || :
"""
_TAIL = """\
if [ "$$" != 1 ]; then
    :
elif [ -n "${__asked-}" ]; then
    while kill -0 -1 2>/dev/null; do sleep 0.2; done
elif kill -TERM -1 2>/dev/null; then
    for __round in 1 2 3 4 5 6 7 8 9 10; do
        kill -0 -1 2>/dev/null || break
        sleep 0.2
    done
fi
exit "$__status"
"""


def first_program(workdir: str, work: PurePosixPath, mounted: Sequence[str], *, asked: bool) -> str:
    """What process 1 does: secrets from standard input, the image's WORKDIR into the working directory, the commands.

    ``mounted`` are mount points, which aren't copied. ``asked``: SIGTERM comes to process 1 alone, which passes it on;
    else whoever stops the container sends it to every process itself.
    """
    text = _HEAD.format(log=LOG)
    left = _copied_without(workdir, work, mounted)
    if left is not None:
        pattern = "|".join(shlex.quote(name) for name in left) or "''"
        text += _COPY.format(workdir=shlex.quote(workdir), left=pattern, work=work)
    return text + (_ASKED if asked else _PLAIN).format(commands=COMMANDS) + _TAIL


def _copied_without(
    workdir: str, work: PurePosixPath, mounted: Sequence[str]
) -> Optional[List[str]]:
    """The entries of the WORKDIR that are not copied, as mounts are at or below them; None if nothing is copied."""
    folder = PurePosixPath(workdir)
    if str(folder) in (".", "/", "/root", str(work)):
        return None
    left = set()
    for mount in map(PurePosixPath, mounted):
        if mount == folder or mount in folder.parents:
            return None
        if folder in mount.parents:
            left.add(mount.relative_to(folder).parts[0])
    return sorted(left)
