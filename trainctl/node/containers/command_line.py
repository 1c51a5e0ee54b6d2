"""Command lines of the engines, and the program of a container's process 1."""

from __future__ import annotations

import shlex
from pathlib import PurePosixPath
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from trainctl.node.containers.cleanup import LABEL
from trainctl.node.containers.engines import APPTAINER, DOCKER, PODMAN


class BindMount(NamedTuple):
    """A directory or file of the host at a path in the container."""

    source: str
    target: str
    read_only: bool = False


class ContainerSpec(NamedTuple):
    """A container, independent of the engine. Sizes in bytes; ``None``: no limit.

    ``gpus`` are indices or UUIDs; ``("all",)`` for all. ``temporary`` is a directory of the host that serves as writable
    storage for apptainer.
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
    devices: Sequence[str] = ()
    ulimits: Mapping[str, int] = {}
    capabilities: Sequence[str] = ()


def engine_arguments(engine: str, spec: ContainerSpec) -> Tuple[str, ...]:
    """Command line to run it in the foreground. Secrets are passed on standard input."""
    return (
        *(engine, "run", "--interactive", "--pull", "never", "--log-driver", "none"),
        *(("--rm",) if engine == PODMAN else ()),  # docker may report exit code 0 then
        *("--name", spec.name, "--label", f"{LABEL}={spec.directory}"),
        *("--network", "host", "--userns", "host", "--user", "0:0"),
        *("--security-opt", "label=disable", "--stop-timeout", "0"),
        *("--shm-size", str(spec.shm_size)),
        *_limits(spec),
        *_gpus(engine, spec.gpus),
        *(word for device in spec.devices for word in ("--device", device)),
        *(word for item in spec.ulimits.items() for word in ("--ulimit", "%s=%d" % item)),
        *(word for name in spec.capabilities for word in ("--cap-add", name)),
        *(word for bind in spec.binds for word in ("--mount", mount_option(bind))),
        *(word for item in spec.variables.items() for word in ("--env", "=".join(item))),
        *("--entrypoint", "/bin/sh", spec.image, str(FIRST)),
    )


def _limits(spec: ContainerSpec) -> List[str]:
    arguments: List[str] = []
    if spec.memory is not None:
        arguments += ["--memory", str(spec.memory)]
    if spec.cpus is not None:
        arguments += ["--cpus", str(spec.cpus)]
    return arguments


def _gpus(engine: str, gpus: Sequence[str]) -> List[str]:
    """Docker has its own option; podman takes names of the Container Device Interface."""
    if not gpus:
        return []
    if engine == DOCKER:
        devices = "all" if gpus[0] == "all" else f'"device={",".join(gpus)}"'
        return ["--gpus", devices]
    return [word for gpu in gpus for word in ("--device", f"nvidia.com/gpu={gpu}")]


def mount_option(bind: BindMount) -> str:
    """Value of the engines' ``--mount`` option: a line of CSV (RFC 4180)."""
    fields = ["type=bind", f"source={bind.source}", f"target={bind.target}"]
    return ",".join(map(_field, [*fields, "readonly"] if bind.read_only else fields))


def _field(text: str) -> str:
    if "," not in text and '"' not in text:
        return text
    doubled = text.replace('"', '""')
    return f'"{doubled}"'


_PREFIX = "APPTAINERENV_"
_ROOT_INSIDE = ("--fakeroot", "--ignore-subuid", "--ignore-fakeroot-command")
"""Root in the container is the user outside of it, and there is no other user."""


def apptainer_arguments(spec: ContainerSpec, *, root: bool) -> Tuple[str, ...]:
    """Command line for apptainer; ``root``: whether the caller is root.

    ``--compat`` isolates the container from the host's files and variables, as other engines do. ``/tmp`` and home are
    directories of the host: in memory they would be small. The kernel limits ``/dev/shm`` to half of the memory.
    """
    return (
        *(APPTAINER, "exec", "--compat", "--workdir", spec.temporary, "--pwd", spec.work),
        *(() if root else _ROOT_INSIDE),
        *_limits(spec),
        *(("--nv",) if spec.gpus else ()),
        *(word for device in spec.devices for word in ("--bind", device)),
        *(word for bind in spec.binds for word in ("--mount", mount_option(bind))),
        *(spec.image, "/bin/sh", str(FIRST)),
    )


def apptainer_variables(spec: ContainerSpec) -> Dict[str, str]:
    """Environment of apptainer that sets the job's variables and names its GPUs."""
    variables = dict(spec.variables)
    if spec.gpus and spec.gpus[0] != "all":
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(spec.gpus)
    return {_PREFIX + name: value for name, value in variables.items()}


CONTROL = PurePosixPath("/run/trainctl")
"""Directory in the container with its program, its log and the number of the current command."""

LOG, STEP, HELD, COMMANDS, FIRST, PROGRESS = (
    CONTROL / name for name in ("log", "step", "held", "commands", "first", "progress")
)

_HEAD = """\
exec >>{log} 2>&1
eval "$(head -c {input_bytes})"
exec 3<&0 </dev/null
__lifeline=
if [ "$$" = 1 ]; then
    {{ trap '' TERM; read -r __line; kill -TERM 1; kill -KILL -1; }} <&3 &
    __lifeline=$!
fi
exec 3<&-
"""
"""Standard input stays open as long as the engine's client and the supervisor live: the container ends with them.

Apptainer's processes, whose first is another, are children of the supervisor.
"""
_COPY = """\
for __entry in {workdir}/* {workdir}/.[!.]*; do
    case "${{__entry##*/}}" in {skipped}) continue ;; esac
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
[ -z "$__lifeline" ] || { kill -KILL "$__lifeline"; wait "$__lifeline"; } 2>/dev/null
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


def init_program(
    workdir: str,
    work: PurePosixPath,
    mounted: Sequence[str],
    *,
    input_bytes: int,
    forwards_term: bool,
    holding: str = "",
) -> str:
    """Program of process 1: read secrets, copy the image's WORKDIR, run commands.

    ``input_bytes``: size of the secrets. ``mounted`` are mount points, which aren't copied. ``forwards_term``: SIGTERM
    reaches process 1 only, which forwards it; otherwise every process receives it. ``holding``: lines that follow the
    commands.
    """
    text = _HEAD.format(log=LOG, input_bytes=input_bytes)
    skipped = _entries_to_skip(workdir, work, mounted)
    if skipped is not None:
        pattern = "|".join(shlex.quote(name) for name in skipped) or "''"
        text += _COPY.format(workdir=shlex.quote(workdir), skipped=pattern, work=work)
    run = (_WITH_STOP_SIGNAL if forwards_term else _PLAIN).format(commands=COMMANDS)
    return text + run + holding + _TAIL


def _entries_to_skip(
    workdir: str, work: PurePosixPath, mounted: Sequence[str]
) -> Optional[List[str]]:
    """Entries of the WORKDIR at or above mounts; None if nothing is to be copied."""
    folder = PurePosixPath(workdir)
    if str(folder) in (".", "/", "/root", str(work)):
        return None
    skipped = set()
    for mount in map(PurePosixPath, mounted):
        if mount == folder or mount in folder.parents:
            return None
        if folder in mount.parents:
            skipped.add(mount.relative_to(folder).parts[0])
    return sorted(skipped)
