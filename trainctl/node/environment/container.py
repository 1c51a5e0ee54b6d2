"""Run a job in a container: mounts, variables and command line of the engine.

See DESIGN.md, "Environments and containers".
"""

from __future__ import annotations

import os
import resource
import shlex
from pathlib import Path, PurePosixPath
from typing import List, Mapping, Sequence, Tuple

from trainctl.base.filesystem.files import is_inside, make_directory, write_atomic
from trainctl.base.protocol.runs import RunSpec
from trainctl.base.units import parse_size
from trainctl.node.containers import cleanup
from trainctl.node.containers.engines import (
    COMMANDS,
    DOCKER,
    FIRST,
    HELD,
    LOG,
    PROGRESS,
    STEP,
    WORK,
    BindMount,
    ContainerLimits,
    ContainerSpec,
    DeviceAccess,
    complaint,
    engine_command,
    init_program,
)
from trainctl.node.environment.workspace import (
    PreparedJob,
    holding_lines,
    shell_program,
    started_commands,
)
from trainctl.node.runs.attempt import Launch
from trainctl.node.runs.record import RUN_VARIABLE, NodeRun, secret_variables, start_commands
from trainctl.node.scheduling.allocation import VISIBILITY_VARIABLES
from trainctl.node.system.host import memory_bytes

CONTAINER_PATHS = {
    "BT_WORKING_DIR": str(WORK),
    "BT_SCRATCH_DIR": "/mnt/bt-scratch",
    "BT_CHECKPOINT_DIR": "/mnt/ckpts",
    "BT_LOAD_CHECKPOINT_DIR": "/tmp/loaded_checkpoints",  # noqa: S108 - path of the hosted service
    "BT_PROJECT_CACHE_DIR": "/root/.cache/user_artifacts",
    "BT_TEAM_CACHE_DIR": "/root/.cache/team_artifacts",
}
"""Path in the container of each variable's directory, unless the manifest sets another."""

_SECRETS = "TRAINCTL_SECRETS"
_WRAPPER = f"""\
secrets=${_SECRETS}; unset {_SECRETS}
exec 3>/dev/stdin
printf '%s\\n' "$secrets" >&3 &
exec "$@" 3>&- >"$0" 2>&1
"""
"""Passes secrets on the engine's standard input, a pipe: not in arguments, files or container metadata."""

_MAX_ERROR = 500
_RESERVED_PREFIXES = ("BT_", "TRAINCTL_", "MASTER_", "KUBEFLOW_TRAINER_")


def launch(
    run: NodeRun,
    spec: RunSpec,
    prepared: PreparedJob,
    variables: Mapping[str, str],
    output: Path,
    gpus: Sequence[str] = (),
    trigger: str = "",
) -> Launch:
    """Command line for the prepared job, which writes to ``output``.

    ``variables`` include secrets. ``trigger``: see ``holding_lines``.
    """
    container = spec["container"]
    assert container is not None  # noqa: S101  (checked by the caller)
    engine = container["engine"]
    secret = {name: variables[name] for name in secret_variables(spec)}
    public = {  # without secrets and the host's variables
        name: value
        for name, value in variables.items()
        if name not in secret
        and (name in spec["environment"] or name.startswith(_RESERVED_PREFIXES))
    }
    mounts = _workspace_mounts(run, prepared, public)
    binds = _binds(run, output, prepared, mounts)
    exports = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in secret.items())
    first = init_program(
        container["workdir"],
        [bind.target for bind in binds],
        input_bytes=len(os.fsencode(exports)) + 1,
        forwards_term=engine == DOCKER,
        holding=holding_lines(HELD, trigger) if trigger else "",
    )
    commands = shell_program(start_commands(spec), Path(str(WORK)), Path(str(STEP)))
    for name, text in (("commands.sh", commands), ("first.sh", first)):
        write_atomic(run.directory / name, text.encode(), durable=False)
    # Shown in engines' lists; must be unique on the machine.
    name = f"trainctl-{spec['id']}-rank-{spec['rank']}-{os.urandom(3).hex()}"
    inside = {
        name: _container_path(value, mounts)
        if name.startswith(_RESERVED_PREFIXES) and name != RUN_VARIABLE and value.startswith("/")
        else value
        for name, value in public.items()
    }
    limits, access = _resources(spec)
    # all for a job that has GPUs but claimed none by name
    ids = gpus or (("all",) if variables.get("BT_NUM_GPUS", "0") != "0" else ())
    image = container["image"]
    container_spec = ContainerSpec(
        image, run.directory, name, binds, inside, gpus=ids, limits=limits, access=access
    )
    argv, engine_variables = engine_command(engine, container_spec, root=os.geteuid() == 0)
    persistent = {str(link["target"]) for link in spec.get("links", [])}
    owned = [*(mount.source for mount in mounts), *sorted(persistent)]
    cleanup.record_container(run.directory, engine, image, owned)
    log = run.directory / "engine.log"
    visible = {  # read by metrics
        name: variables[name] for name in VISIBILITY_VARIABLES if name in variables
    }
    environment = {**os.environ, **visible, **engine_variables}
    environment.update({RUN_VARIABLE: str(run.directory), _SECRETS: exports})
    return Launch(
        ("/bin/sh", "-c", _WRAPPER, str(log), *argv),
        environment,
        finish=lambda: cleanup.remove_container(run.directory),
        refused=lambda: _refusal(run, log),
        lifeline=True,
    )


def _refusal(run: NodeRun, log: Path) -> str:
    """Return why the engine started no command, or nothing."""
    if started_commands(run.step):
        return ""
    cause = complaint(log.read_text(errors="replace")) or "it ended before the first command"
    return f"cannot start the container: {cause[:_MAX_ERROR]}"


RDMA = Path("/dev/infiniband")
_RDMA_LIMITS = {"memlock": resource.RLIMIT_MEMLOCK, "nofile": resource.RLIMIT_NOFILE}


def _resources(spec: RunSpec) -> Tuple[ContainerLimits, DeviceAccess]:
    """Limits of the job, and its devices with the host's RDMA devices, within the user's hard limits."""
    runtime, compute = spec["job"]["runtime"], spec["job"]["compute"]
    limits = ContainerLimits(
        parse_size(runtime["shm_size"] or memory_bytes() // 2),  # default of hosts
        parse_size(compute["memory"]) if compute["memory"] else None,
        compute["cpu_count"],
    )
    devices, ulimits = runtime.get("devices", ()), runtime["ulimits"]
    if not RDMA.is_dir():
        return limits, DeviceAccess([*devices], {**ulimits})
    hard = {name: resource.getrlimit(limit)[1] for name, limit in _RDMA_LIMITS.items()}
    return limits, DeviceAccess([str(RDMA), *devices], {**hard, **ulimits}, ["IPC_LOCK"])


def _workspace_mounts(
    run: NodeRun, prepared: PreparedJob, public: Mapping[str, str]
) -> List[BindMount]:
    """Mounts of the run's directories, the working directory first."""
    mounted = {mount.target for mount in prepared.mounts}
    mounts = [
        BindMount(str(run.work), str(WORK)),
        BindMount(str(make_directory(run.progress)), str(PROGRESS)),
    ]
    for name, path in CONTAINER_PATHS.items():
        value = public.get(name, "")
        is_set_by_user = value in mounted or is_inside(Path(value), run.work)
        if value.startswith("/") and not is_set_by_user:
            mounts.append(BindMount(str(make_directory(Path(value))), path))
    return mounts


def _binds(
    run: NodeRun, output: Path, prepared: PreparedJob, workspace: Sequence[BindMount]
) -> List[BindMount]:
    """All mounts of the container, shorter paths first."""
    control = [
        BindMount(str(run.directory / "first.sh"), str(FIRST), read_only=True),
        BindMount(str(run.directory / "commands.sh"), str(COMMANDS), read_only=True),
        BindMount(str(run.step), str(STEP)),
        BindMount(str(run.held), str(HELD)),
        BindMount(str(output), str(LOG)),
    ]
    mounts = [
        BindMount(mount.source, _container_path(mount.target, workspace[:1]), mount.read_only)
        for mount in prepared.mounts
    ]
    return sorted([*control, *workspace, *mounts], key=lambda bind: bind.target.count("/"))


def _container_path(path: str, mounts: Sequence[BindMount]) -> str:
    """Translate a path of the host to the container."""
    for mount in mounts:
        if is_inside(Path(path), Path(mount.source)):
            return str(PurePosixPath(mount.target) / Path(path).relative_to(mount.source))
    return path
