"""A job in a container: what of the run appears where, and the engine's program that the run's own process becomes.

See DESIGN.md, "Environments and containers".
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path, PurePosixPath
from typing import Callable, Dict, List, Mapping, Sequence, Tuple

from trainctl.base.filesystem.files import make_directory, write_atomic
from trainctl.base.protocol.spec import RunSpec
from trainctl.node.containers import cleanup, command_line
from trainctl.node.containers.command_line import (
    COMMANDS,
    FIRST,
    LOG,
    STEP,
    BindMount,
    ContainerSpec,
    init_program,
)
from trainctl.node.containers.engines import APPTAINER, DOCKER, complaint
from trainctl.node.jobs.workspace import PreparedJob
from trainctl.node.runs.attempt import Launch
from trainctl.node.runs.record import RUN_VARIABLE, NodeRun
from trainctl.node.scheduling.gpus import VISIBILITY_VARIABLES
from trainctl.node.system.host import memory_bytes
from trainctl.node.system.layout import is_inside
from trainctl.node.system.shell import shell_program

WORK = PurePosixPath("/b10/workspace")
CONTAINER_PATHS = {
    "BT_WORKING_DIR": str(WORK),
    "BT_SCRATCH_DIR": "/mnt/bt-scratch",
    "BT_CHECKPOINT_DIR": "/mnt/ckpts",
    "BT_LOAD_CHECKPOINT_DIR": "/tmp/loaded_checkpoints",  # noqa: S108 - the service's place
    "BT_PROJECT_CACHE_DIR": "/root/.cache/user_artifacts",
    "BT_TEAM_CACHE_DIR": "/root/.cache/team_artifacts",
}
"""Where a container finds the directory that a variable names, unless the manifest names another place."""

_SECRETS = "TRAINCTL_SECRETS"
_WRAPPER = f"""\
secrets=${_SECRETS}; unset {_SECRETS}
printf '%s\\n' "$secrets" | exec "$@" >"$0" 2>&1
"""
"""Hands the secrets to the engine's standard input: they are in no argument, no file and no description of the container."""

_LONGEST = 500
_RESERVED_PREFIXES = ("BT_", "TRAINCTL_", "MASTER_")


def launch(
    run: NodeRun,
    spec: RunSpec,
    prepared: PreparedJob,
    variables: Mapping[str, str],
    output: Path,
    gpus: Sequence[str] = (),
) -> Launch:
    """The engine's command line for the prepared job, which writes to ``output``; ``variables`` are all of the job's, secrets among them."""
    asked = spec["container"]
    assert asked is not None  # noqa: S101  (callers look first)
    engine = asked["engine"]
    secret = {name: variables[name] for name in spec.get("secret_environment", {})}
    shown = _public_variables(spec, variables, secret)
    places = _workspace_mounts(run, prepared, shown)
    binds = _binds(run, output, prepared, places)
    targets = [bind.target for bind in binds]
    _write_programs(run, spec, asked["workdir"], targets, asked=engine == DOCKER)
    wanted = ContainerSpec(
        image=asked["image"],
        directory=str(run.directory),
        temporary=str(cleanup.scratch_directory(run.directory)),
        # Engines' lists show it, and insist that it is unique on the machine.
        name=f"trainctl-{spec['id']}-rank-{spec['rank']}-{os.urandom(3).hex()}",
        work=str(WORK),
        binds=binds,
        variables=_container_variables(shown, places),
        gpus=_gpus(gpus, variables),
        shm_size=asked["shm_size"] or memory_bytes() // 2,  # as much as a host has
        memory=asked["memory"],
        cpus=asked["cpus"],
    )
    argv, more = _engine_command(engine, wanted)
    kept = {str(link["target"]) for link in spec.get("links", [])}
    ours = [*(place.source for place in places), *sorted(kept)]
    cleanup.record_container(run.directory, engine, wanted.image, ours)
    log = run.directory / "engine.log"
    chosen = {
        name: variables[name] for name in VISIBILITY_VARIABLES if name in variables
    }  # for metrics
    exports = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in secret.items())
    own = {**os.environ, **chosen, **more, RUN_VARIABLE: str(run.directory), _SECRETS: exports}
    return Launch(
        ("/bin/sh", "-c", _WRAPPER, str(log), *argv),
        own,
        finish=lambda: cleanup.remove_container(run.directory),
        refused=_start_error_reader(run, log),
    )


def _public_variables(
    spec: RunSpec, variables: Mapping[str, str], secret: Mapping[str, str]
) -> Dict[str, str]:
    """The variables that are the job's own and no secrets: nothing of the host's goes into a container."""
    return {
        name: value
        for name, value in variables.items()
        if name not in secret
        and (name in spec["environment"] or name.startswith(_RESERVED_PREFIXES))
    }


def _workspace_mounts(
    run: NodeRun, prepared: PreparedJob, shown: Mapping[str, str]
) -> List[BindMount]:
    """The run's directories at the places where a container has them, the working directory first."""
    elsewhere = {mount.target for mount in prepared.mounts}
    found = [BindMount(str(run.work), str(WORK))]
    for name, place in CONTAINER_PATHS.items():
        value = shown.get(name, "")
        named_by_user = value in elsewhere or is_inside(Path(value), run.work)
        if value.startswith("/") and not named_by_user:
            found.append(BindMount(str(make_directory(Path(value))), place))
    return found


def _binds(
    run: NodeRun, output: Path, prepared: PreparedJob, places: Sequence[BindMount]
) -> List[BindMount]:
    """Everything of the host that the container sees, shorter paths first."""
    control = [
        BindMount(str(run.directory / "first.sh"), str(FIRST), read_only=True),
        BindMount(str(run.directory / "commands.sh"), str(COMMANDS), read_only=True),
        BindMount(str(run.step), str(STEP)),
        BindMount(str(output), str(LOG)),
    ]
    mounts = [
        BindMount(mount.source, _container_path(mount.target, places[:1]), mount.read_only)
        for mount in prepared.mounts
    ]
    return sorted([*control, *places, *mounts], key=lambda bind: bind.target.count("/"))


def _container_path(path: str, places: Sequence[BindMount]) -> str:
    """A path of the host as the container names it."""
    for place in places:
        if is_inside(Path(path), Path(place.source)):
            return str(PurePosixPath(place.target) / Path(path).relative_to(place.source))
    return path


def _container_variables(shown: Mapping[str, str], places: Sequence[BindMount]) -> Dict[str, str]:
    return {
        name: _container_path(value, places)
        if name.startswith(_RESERVED_PREFIXES) and name != RUN_VARIABLE and value.startswith("/")
        else value
        for name, value in shown.items()
    }


def _gpus(claimed: Sequence[str], variables: Mapping[str, str]) -> Tuple[str, ...]:
    """Those that the run has claimed; all that there are for a job that has GPUs and claimed none by name."""
    if claimed:
        return tuple(claimed)
    return ("all",) if variables.get("BT_NUM_GPUS", "0") != "0" else ()


def _engine_command(
    engine: str, wanted: ContainerSpec
) -> Tuple[Tuple[str, ...], Mapping[str, str]]:
    """The engine's command line, and what it needs beside the supervisor's own variables."""
    if engine == APPTAINER:
        return command_line.apptainer_arguments(
            wanted, root=os.geteuid() == 0
        ), command_line.apptainer_variables(wanted)
    return command_line.engine_arguments(engine, wanted), {}


def _write_programs(
    run: NodeRun, spec: RunSpec, workdir: str, mounted: Sequence[str], *, asked: bool
) -> None:
    commands = shell_program(spec["commands"], Path(str(WORK)), Path(str(STEP)))
    first = init_program(workdir, WORK, mounted, asked=asked)
    for name, text in (("commands.sh", commands), ("first.sh", first)):
        write_atomic(run.directory / name, text.encode(), durable=False)


def _start_error_reader(run: NodeRun, log: Path) -> Callable[[], str]:
    """Says, after the end, why no command was begun; empty if one was."""

    def look() -> str:
        if run.step.read_bytes():
            return ""
        why = complaint(log.read_text(errors="replace")) or "it ended before the first command"
        return f"the container could not be started: {why[:_LONGEST]}"

    return look
