"""Command lines of the engines, and the program of a container's first process."""

from __future__ import annotations

import shlex
from pathlib import PurePosixPath
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from trainctl.node.containers.cleanup import LABEL
from trainctl.node.containers.engines import APPTAINER, DOCKER


class BindMount(NamedTuple):
    """A directory or file of the host at a path in the container."""

    source: str
    target: str
    read_only: bool = False


class ContainerSpec(NamedTuple):
    """A container, in words that every engine can be told in. Sizes in bytes; ``None``: no limit.

    ``gpus`` are their indices or uuids; ``("all",)`` for those there are. ``temporary`` is a directory of the host for
    what an engine without storage of its own lets a job write.
    """

    image: str
    directory: str
    temporary: str
    name: str
    work: str
    binds: Sequence[BindMount]
    variables: Mapping[str, str]
    gpus: Sequence[str]
    shm_size: int
    memory: Optional[int]
    cpus: Optional[int]


def engine_arguments(engine: str, wanted: ContainerSpec) -> Tuple[str, ...]:
    """The command line that runs it in the foreground; secrets come by standard input and are not in it."""
    return (
        *(engine, "run", "--interactive", "--pull", "never", "--log-driver", "none"),
        *("--name", wanted.name, "--label", f"{LABEL}={wanted.directory}"),
        *("--network", "host", "--userns", "host", "--user", "0:0"),
        *("--security-opt", "label=disable", "--stop-timeout", "0"),
        *("--shm-size", str(wanted.shm_size)),
        *_limits(wanted),
        *_gpus(engine, wanted.gpus),
        *(word for bind in wanted.binds for word in ("--mount", mount_option(bind))),
        *(word for item in wanted.variables.items() for word in ("--env", "=".join(item))),
        *("--entrypoint", "/bin/sh", wanted.image, str(FIRST)),
    )


def _limits(wanted: ContainerSpec) -> List[str]:
    found: List[str] = []
    if wanted.memory is not None:
        found += ["--memory", str(wanted.memory)]
    if wanted.cpus is not None:
        found += ["--cpus", str(wanted.cpus)]
    return found


def _gpus(engine: str, gpus: Sequence[str]) -> List[str]:
    """Docker has a word of its own; podman takes the names of the Container Device Interface."""
    if not gpus:
        return []
    if engine == DOCKER:
        chosen = "all" if gpus[0] == "all" else f'"device={",".join(gpus)}"'
        return ["--gpus", chosen]
    return [word for gpu in gpus for word in ("--device", f"nvidia.com/gpu={gpu}")]


def mount_option(bind: BindMount) -> str:
    """The value of an engine's ``--mount``, which is a line of CSV (RFC 4180)."""
    fields = ["type=bind", f"source={bind.source}", f"target={bind.target}"]
    return ",".join(map(_field, [*fields, "readonly"] if bind.read_only else fields))


def _field(text: str) -> str:
    if "," not in text and '"' not in text:
        return text
    doubled = text.replace('"', '""')
    return f'"{doubled}"'


_PREFIX = "APPTAINERENV_"
_ROOT_INSIDE = ("--fakeroot", "--ignore-subuid", "--ignore-fakeroot-command")
"""Root of the container is the user, and no other user exists in it, so that all files are the user's."""


def apptainer_arguments(wanted: ContainerSpec, *, root: bool) -> Tuple[str, ...]:
    """The command line; ``root``: whether its caller is root, who else is root in the container alone.

    ``--compat`` is what other engines do: nothing of the host's, values of variables as they are, and our program as process 1.
    ``/tmp`` and the home are directories of the host, as they would else be in memory, and small. ``/dev/shm`` is as large as
    the kernel makes it, half of the memory.
    """
    return (
        *(APPTAINER, "exec", "--compat", "--workdir", wanted.temporary, "--pwd", wanted.work),
        *(() if root else _ROOT_INSIDE),
        *_limits(wanted),
        *(("--nv",) if wanted.gpus else ()),
        *(word for bind in wanted.binds for word in ("--mount", mount_option(bind))),
        *(wanted.image, "/bin/sh", str(FIRST)),
    )


def apptainer_variables(wanted: ContainerSpec) -> Dict[str, str]:
    """The job's variables, as apptainer takes them from its own; all GPUs can be seen, so that the claimed are named."""
    found = dict(wanted.variables)
    if wanted.gpus and wanted.gpus[0] != "all":
        found["CUDA_VISIBLE_DEVICES"] = ",".join(wanted.gpus)
    return {_PREFIX + name: value for name, value in found.items()}


CONTROL = PurePosixPath("/run/trainctl")
"""Where a container finds its program, its log and the number of the command it is at."""

LOG, STEP, COMMANDS, FIRST = (CONTROL / name for name in ("log", "step", "commands", "first"))

_HEAD = """\
exec >>{log} 2>&1
eval "$(cat)"
exec </dev/null
"""
_COPY = """\
for __entry in {workdir}/* {workdir}/.[!.]*; do
    case "${{__entry##*/}}" in {left}) continue ;; esac
    [ ! -e "$__entry" ] || cp -RPn "$__entry" {work}/ 2>/dev/null || :
done
"""
_PLAIN = """\
trap '__stop_requested=1' TERM
/bin/sh {commands}
__status=$?
"""
_WITH_STOP_SIGNAL = """\
trap '__stop_requested=1; trap "" TERM; kill -TERM -1' TERM
/bin/sh {commands} &
wait "$!"
__status=$?
[ "$__status" -le 128 ] || wait "$!" 2>/dev/null || :
"""
_TAIL = """\
if [ "$$" != 1 ]; then
    :
elif [ -n "${__stop_requested-}" ]; then
    while kill -0 -1 2>/dev/null; do sleep 0.2; done
elif kill -TERM -1 2>/dev/null; then
    for __round in 1 2 3 4 5 6 7 8 9 10; do
        kill -0 -1 2>/dev/null || break
        sleep 0.2
    done
fi
exit "$__status"
"""


def init_program(workdir: str, work: PurePosixPath, mounted: Sequence[str], *, asked: bool) -> str:
    """What process 1 does: secrets from standard input, the image's WORKDIR into the working directory, the commands.

    ``mounted`` are mount points, which aren't copied. ``asked``: SIGTERM comes to process 1 alone, which passes it on;
    otherwise every process receives it directly.
    """
    text = _HEAD.format(log=LOG)
    left = _entries_to_skip(workdir, work, mounted)
    if left is not None:
        pattern = "|".join(shlex.quote(name) for name in left) or "''"
        text += _COPY.format(workdir=shlex.quote(workdir), left=pattern, work=work)
    return text + (_WITH_STOP_SIGNAL if asked else _PLAIN).format(commands=COMMANDS) + _TAIL


def _entries_to_skip(
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
