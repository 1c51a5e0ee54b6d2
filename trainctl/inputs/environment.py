"""Environment variables, directories and host requirements of a run; pure functions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath

from trainctl.base.json import digest
from trainctl.base.lazy_dataclass import dataclass
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.base.protocol.runs import PersistentDirectory
from trainctl.model.address import Address
from trainctl.model.run import RunRecord
from trainctl.model.specs.job_spec import JobSpec
from trainctl.model.specs.runtime import CACHE_DIRECTORIES
from trainctl.plugin_api.provider import Node

JOB_VARIABLES: Mapping[str, str] = {
    "BT_TRAINING_JOB_ID": "ID of the run",
    "BT_TRAINING_JOB_NAME": "Name of the job and ID of the run, as a file name; attempts of a run share it",
    "BT_TRAINING_PROJECT_ID": "ID of the project",
    "BT_TRAINING_PROJECT_NAME": "Name of the project, as written in the manifest",
    "BT_NUM_GPUS": "GPUs of this node that the job may use",
    "BT_GROUP_SIZE": "Number of nodes of the run",
    "BT_NODE_RANK": "Rank of this node, from 0",
    "BT_LEADER_ADDR": "Address of rank 0",
    "BT_RETRY_COUNT": "Earlier attempts of the run",
    "BT_WORKING_DIR": "Directory with the job's code, where its commands start",
    "BT_SCRATCH_DIR": "Directory that is deleted when the run ends",
    "BT_LOAD_CHECKPOINT_DIR": "Checkpoints that the run starts from",
    "BT_CHECKPOINT_DIR": "Directory for checkpoints, if `checkpointing_config` is enabled",
    "BT_PROJECT_CACHE_DIR": "Training cache of the project, if `cache_config` is enabled",
    "BT_RW_CACHE_DIR": "Same as `BT_PROJECT_CACHE_DIR`",
    "BT_TEAM_CACHE_DIR": "Training cache that all projects share, if `cache_config` is enabled",
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "Seconds that torchrun waits for stopped workers: 600, unless the job sets it",
}
"""Variables of every run, for the documentation."""

_SHORT = 7
_LAUNCHER_SECONDS = "600"
"""Longer than most grace periods, at whose end the supervisor kills all processes. torchrun's own default is 30 s."""
_IN_CONTAINER = "/tmp/loaded_checkpoints"  # noqa: S108 - as on Baseten


@dataclass(frozen=True, slots=True)
class RunPaths:
    """Absolute directories of one rank on its node."""

    directory: str
    work: str
    scratch: str
    loaded: str
    checkpoints: str
    project_cache: str
    team_cache: str


def run_paths(
    node: Node,
    project: str,
    run: RunRecord,
    rank: int,
    *,
    cache: str | None = None,
    team: str | None = None,
) -> RunPaths:
    """Return the directories of a rank; ``cache`` and ``team`` are overrides."""
    root = PurePosixPath(node.root)
    directory = run_directory(node, run)
    return RunPaths(
        directory=str(directory),
        work=str(work_directory(node, run)),
        scratch=str(directory / "scratch"),
        loaded=str(directory / "loaded"),
        checkpoints=str(checkpoint_directory(node, run) / f"rank-{rank}"),
        project_cache=cache or str(root / "caches" / project),
        team_cache=team or team_cache(node),
    )


def run_directory(node: Node, run: RunRecord) -> PurePosixPath:
    """Return the directory of a run on a node."""
    return PurePosixPath(node.root) / "runs" / run.key


def work_directory(node: Node, run: RunRecord) -> PurePosixPath:
    """Return the working directory, with the run's code; it is kept after the run."""
    return run_directory(node, run) / "work"


def team_cache(node: Node) -> str:
    """Return the default training cache of the team on a node."""
    return str(PurePosixPath(node.root) / "caches" / ".team")


def checkpoint_directory(node: Node, run: RunRecord) -> PurePosixPath:
    """Return the directory of a run's checkpoints on a node, for all ranks."""
    return PurePosixPath(node.data) / "checkpoints" / run.checkpoint_prefix


def file_name(address: Address) -> str:
    """Return a file name for an address: its name and a digest of its key."""
    return address.name if address.key is None else f"{address.name}-{digest(address.key)[7:15]}"


def environment(
    address: Address,
    job: JobSpec,
    run: RunRecord,
    where: RunPaths,
    lineage: str,
    gpus: int | None,
    rank: int = 0,
) -> dict[str, str]:
    """Return all variables of a rank except secrets.

    Declared variables can't override those of trainctl. ``gpus`` is the number on the node, for jobs that claim all.
    For several nodes, the node sets ``BT_LEADER_ADDR``.
    """
    variables = job.runtime.environment_variables
    plain = {name: value for name, value in variables.items() if isinstance(value, str)}
    project, claimed = job.project, job.compute.gpus
    own = {
        "BT_TRAINING_JOB_ID": run.id,
        "BT_TRAINING_JOB_NAME": f"{file_name(address)}-{run.id}",
        "BT_TRAINING_PROJECT_ID": project_id(lineage, project),
        "BT_TRAINING_PROJECT_NAME": job.project_name or project,
        "BT_NUM_GPUS": str((gpus or 0) if claimed is None else claimed),
        "BT_GROUP_SIZE": str(len(run.ranks) or 1),
        "BT_NODE_RANK": str(rank),
        "BT_LEADER_ADDR": "127.0.0.1",
        "BT_RETRY_COUNT": str(run.generation - 1),
        "BT_WORKING_DIR": where.work,
        "BT_SCRATCH_DIR": where.scratch,
        "BT_LOAD_CHECKPOINT_DIR": where.loaded,
    }
    if (loaded := loaded_directory(job, where)) is not None:
        own["BT_LOAD_CHECKPOINT_DIR"] = loaded
    for variable, (path, _) in persistent_directories(job, where).items():
        own[variable] = str(PurePosixPath(where.work) / path)
    if "BT_PROJECT_CACHE_DIR" in own:
        own["BT_RW_CACHE_DIR"] = own["BT_PROJECT_CACHE_DIR"]
    for weights in job.weights:
        mount = PurePosixPath(where.work) / weights.mount_location
        own[weights_variable(weights.address)] = str(mount)
    return {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": _LAUNCHER_SECONDS, **plain, **own}


def project_id(lineage: str, project: str) -> str:
    """Return the id of a project, which is stable for the lifetime of the state."""
    return digest([lineage, project])[7 : 7 + _SHORT]


def persistent_directories(job: JobSpec, where: RunPaths) -> dict[str, tuple[str, str]]:
    """Return directories that outlive the run by variable: path in job, real path."""
    checkpointing, cache = job.runtime.checkpointing_config, job.runtime.cache_config
    directories: dict[str, tuple[str, str]] = {}
    if checkpointing.enabled:
        path = checkpointing.checkpoint_path or where.checkpoints
        directories["BT_CHECKPOINT_DIR"] = (path, where.checkpoints)
    if cache.enabled:
        base = cache.mount_base_path
        for variable, name, real in zip(
            ("BT_PROJECT_CACHE_DIR", "BT_TEAM_CACHE_DIR"),
            CACHE_DIRECTORIES,
            (where.project_cache, where.team_cache),
            strict=True,
        ):
            directories[variable] = (f"{base}/{name}" if base else real, real)
    return directories


def directory_links(job: JobSpec, where: RunPaths) -> list[PersistentDirectory]:
    """Return the directories to mount at another path or read-only."""
    links: list[PersistentDirectory] = [
        {"path": path, "target": real}
        for path, real in persistent_directories(job, where).values()
        if path != real
    ]
    if (loaded := loaded_directory(job, where)) is not None:
        links.append({"path": loaded, "target": where.loaded, "read_only": True})
    if job.runtime.cache_config.enable_legacy_hf_mount:
        hub = f"{where.project_cache}/huggingface"
        links.append({"path": "~/.cache/huggingface", "target": hub, "variable": "HF_HOME"})
    return links


def loaded_directory(job: JobSpec, where: RunPaths) -> str | None:
    """Return the path of loaded checkpoints in the job, None if there are none."""
    config = job.runtime.load_checkpoint_config
    if config is None or not config.enabled:
        return None
    return config.download_folder or (_IN_CONTAINER if job.in_container else where.loaded)


def weights_variable(address: Address) -> str:
    """Return ``TRAINCTL_WEIGHTS_<NAME>``, which is equal for all jobs of a matrix."""
    return "TRAINCTL_WEIGHTS_" + re.sub(r"[^A-Z0-9]", "_", address.name.upper())


_COMMAND = compile_lazily(
    r"\s*(?:[A-Za-z_]\w*=[\w./:,@%+-]*\s+)*(?P<program>[A-Za-z0-9_.+/~-]+)(?:\s+(?P<script>[A-Za-z0-9_.+/-]+))?(?=[\s;&|]|$)"
)
_SEARCH_PATHS = compile_lazily(
    r"(?<!\w)(?:PATH|PYTHON(?:PATH|HOME|STARTUP)|VIRTUAL_ENV|CONDA_\w*|LD_LIBRARY_PATH)(?==|$)"
)
"""Variables that change search paths; a job that sets one is not checked."""
_RUNS_SCRIPT = compile_lazily(r"python(?:3(?:\.\d+)?)?|(?:ba|da|z|k)?sh")
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
