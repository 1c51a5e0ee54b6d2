"""Container engines: which ones work, and their command lines."""

from __future__ import annotations

import os
import shlex
import subprocess
import threading
from collections import deque
from pathlib import Path, PurePosixPath
from typing import Any, Callable, Deque, Dict, List, Mapping, Optional, Sequence, Tuple

from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.base.protocol.host import EngineInfo
from trainctl.errors import NodeError

PODMAN, DOCKER, APPTAINER = "podman", "docker", "apptainer"
ORDER = (PODMAN, DOCKER, APPTAINER)
"""Order of preference."""

LABEL = "trainctl.run"
"""Label of trainctl's containers; its value is the run's directory."""

CALL_SECONDS = 60.0
_PROBE_SECONDS = 15.0  # an engine may have to start its daemon first
_ERROR = compile_lazily("^(ERROR|Error): ")
_HELP_PREFIXES = ("Run '", "See '", "Usage:")
_PROBES = {
    PODMAN: (PODMAN, "info", "--format", "{{.Version.Version}} {{.Host.Security.Rootless}}"),
    DOCKER: (DOCKER, "info", "--format", "{{.ServerVersion}} {{.SecurityOptions}}"),
    APPTAINER: (APPTAINER, "--version"),
}


class ProgramResult(NamedTuple):
    """Output and exit code of a program."""

    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """One line with the cause of the failure."""
        return complaint(self.err.strip() or self.out) or f"exit code {self.code}"


def complaint(text: str) -> str:
    """Last line that is not a hint about help; empty if there is none."""
    lines = (line.strip() for line in reversed(text.splitlines()))
    return next((line for line in lines if line and not line.startswith(_HELP_PREFIXES)), "")


def run_program(argv: Sequence[str], seconds: float = CALL_SECONDS) -> ProgramResult:
    """Run a program to its end; exit code 127 if missing, 124 on a timeout."""
    try:
        done = subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=seconds,
            check=False,
        )
    except FileNotFoundError:
        return ProgramResult(127, "", f"{argv[0]} is not installed")
    except OSError as error:
        return ProgramResult(126, "", f"cannot run {argv[0]}: {error.strerror}")
    except subprocess.TimeoutExpired:
        return ProgramResult(124, "", f"{argv[0]} timed out after {seconds:g} s")
    return ProgramResult(
        done.returncode,
        done.stdout.decode(errors="replace"),
        done.stderr.decode(errors="replace"),
    )


def choose_engine(requested: Optional[str]) -> EngineInfo:
    """The requested engine, or the first that works; TrainctlError with the reason for each."""
    if requested is not None and requested not in ORDER:
        raise NodeError(
            f"unknown container engine {requested!r}", f"Use one of {', '.join(ORDER)}."
        )
    reasons = []
    for name in (requested,) if requested else ORDER:
        result = run_program(_PROBES[name], _PROBE_SECONDS)
        if result.code == 0:
            text, words = result.out.lower(), result.out.split() or [""]
            is_rootless = name == APPTAINER or " true" in text or "name=rootless" in text
            return {
                "name": name,
                "version": words[-1 if name == APPTAINER else 0],
                "root_is_user": is_rootless or os.geteuid() == 0,
            }
        if result.code in (124, 126, 127):
            reasons.append(result.complaint)
        else:
            reasons.append(f"{name}: {_ERROR.sub('', result.complaint)}")
    raise NodeError(
        f"no container engine works: {'; '.join(reasons)}",
        "Install podman, docker or apptainer on the node, or set runtime.engine: host.",
    )


Emit = Callable[[Dict[str, Any]], None]
_HEARTBEAT_SECONDS = 5.0
_LAST_LINES = 40


def run_streaming(argv: Sequence[str], variables: Mapping[str, str], emit: Emit) -> ProgramResult:
    """Run a program; emit each line as ``{line}``, the last one again every 5 s."""
    lines: Deque[str] = deque([""], _LAST_LINES)
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(_HEARTBEAT_SECONDS):
            emit({"line": lines[-1]})

    with subprocess.Popen(
        list(argv),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **variables},
    ) as process:
        heartbeat = threading.Thread(target=repeat, daemon=True)
        heartbeat.start()
        try:
            for raw in process.stdout or ():
                line = raw.decode(errors="replace").strip()
                if line:
                    lines.append(line)
                    emit({"line": line})
        finally:
            ended.set()
            heartbeat.join()
    return ProgramResult(process.returncode, "", "\n".join(lines))


class BindMount(NamedTuple):
    """A directory or file of the host at a path in the container."""

    source: str
    target: str
    read_only: bool = False


class ContainerLimits(NamedTuple):
    """Sizes in bytes; ``None``: no limit."""

    shared_memory: int
    memory: Optional[int] = None
    cpus: Optional[int] = None


class DeviceAccess(NamedTuple):
    """Devices of the host, and what a container needs to use them."""

    devices: Sequence[str] = ()
    ulimits: Mapping[str, int] = {}
    capabilities: Sequence[str] = ()


class ContainerSpec(NamedTuple):
    """A container of the run in ``directory``, independent of the engine.

    ``gpus`` are indices or UUIDs; ``("all",)`` for all.
    """

    image: str
    directory: Path
    name: str
    binds: Sequence[BindMount]
    variables: Mapping[str, str]
    gpus: Sequence[str]
    limits: ContainerLimits
    access: DeviceAccess = DeviceAccess()


def scratch_directory(directory: Path) -> Path:
    """Writable storage of a run's apptainer container."""
    return directory / "container"


def engine_command(
    engine: str, spec: ContainerSpec, *, root: bool
) -> Tuple[Tuple[str, ...], Mapping[str, str]]:
    """Command line to run it in the foreground, and variables of the engine; ``root``: whether the caller is root.

    Secrets are passed on standard input. ``--compat`` isolates an apptainer container from the host's files and
    variables, as other engines do. Its ``/tmp`` and home are directories of the host: in memory they would be small. The
    kernel limits its ``/dev/shm`` to half of the memory.
    """
    limits, access = spec.limits, spec.access
    shared: List[str] = ["--memory", str(limits.memory)] if limits.memory is not None else []
    shared += ["--cpus", str(limits.cpus)] if limits.cpus is not None else []
    mounts = [word for bind in spec.binds for word in ("--mount", mount_option(bind))]
    if engine == APPTAINER:
        variables = dict(spec.variables)
        if spec.gpus and spec.gpus[0] != "all":
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(spec.gpus)
        scratch = str(scratch_directory(spec.directory))
        return (
            *(APPTAINER, "exec", "--compat", "--workdir", scratch, "--pwd", str(WORK)),
            *(() if root else _ROOT_INSIDE),
            *shared,
            *(("--nv",) if spec.gpus else ()),
            *(word for device in access.devices for word in ("--bind", device)),
            *mounts,
            *(spec.image, "/bin/sh", str(FIRST)),
        ), {_PREFIX + name: value for name, value in variables.items()}
    if engine == DOCKER:
        devices = "all" if "all" in spec.gpus else f'"device={",".join(spec.gpus)}"'
        gpus = ["--gpus", devices] if spec.gpus else []
    else:  # names of the Container Device Interface
        gpus = [word for gpu in spec.gpus for word in ("--device", f"nvidia.com/gpu={gpu}")]
    return (
        *(engine, "run", "--interactive", "--pull", "never", "--log-driver", "none"),
        *(("--rm",) if engine == PODMAN else ()),  # docker may report exit code 0 then
        *("--name", spec.name, "--label", f"{LABEL}={spec.directory}"),
        *("--network", "host", "--userns", "host", "--user", "0:0"),
        *("--security-opt", "label=disable", "--stop-timeout", "0"),
        *("--shm-size", str(limits.shared_memory)),
        *shared,
        *gpus,
        *(word for device in access.devices for word in ("--device", device)),
        *(word for item in access.ulimits.items() for word in ("--ulimit", "%s=%d" % item)),
        *(word for name in access.capabilities for word in ("--cap-add", name)),
        *mounts,
        *(word for item in spec.variables.items() for word in ("--env", "=".join(item))),
        *("--entrypoint", "/bin/sh", spec.image, str(FIRST)),
    ), {}


def mount_option(bind: BindMount) -> str:
    """Value of the engines' ``--mount`` option: a line of CSV (RFC 4180)."""
    fields = ["type=bind", f"source={bind.source}", f"target={bind.target}"]
    fields += ["readonly"] if bind.read_only else []
    return ",".join(
        '"' + field.replace('"', '""') + '"' if "," in field or '"' in field else field
        for field in fields
    )


_PREFIX = "APPTAINERENV_"
_ROOT_INSIDE = ("--fakeroot", "--ignore-subuid", "--ignore-fakeroot-command")
"""Root in the container is the user outside of it, and there is no other user."""


WORK = PurePosixPath("/b10/workspace")
"""The working directory in the container."""

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
    skipped = _entries_to_skip(workdir, mounted)
    if skipped is not None:
        pattern = "|".join(shlex.quote(name) for name in skipped) or "''"
        text += _COPY.format(workdir=shlex.quote(workdir), skipped=pattern, work=WORK)
    run = (_WITH_STOP_SIGNAL if forwards_term else _PLAIN).format(commands=COMMANDS)
    return text + run + holding + _TAIL


def _entries_to_skip(workdir: str, mounted: Sequence[str]) -> Optional[List[str]]:
    """Entries of the WORKDIR at or above mounts; None if nothing is to be copied."""
    folder = PurePosixPath(workdir)
    if str(folder) in (".", "/", "/root", str(WORK)):
        return None
    skipped = set()
    for mount in map(PurePosixPath, mounted):
        if mount == folder or mount in folder.parents:
            return None
        if folder in mount.parents:
            skipped.add(mount.relative_to(folder).parts[0])
    return sorted(skipped)
