"""What a run finds around it: a pure function of the job, the run and the node."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from trainctl.base.json import digest
from trainctl.base.protocol.spec import PersistentDirectory
from trainctl.model.address import Address
from trainctl.model.run import RunRecord
from trainctl.model.specs.job_spec import JobSpec
from trainctl.plugin_api.provider import Node

JOB_VARIABLES: Mapping[str, str] = {
    "BT_TRAINING_JOB_ID": "ID of the run",
    "BT_TRAINING_JOB_NAME": "Name of the job",
    "BT_TRAINING_PROJECT_ID": "ID of the project",
    "BT_TRAINING_PROJECT_NAME": "Name of the project",
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
}
"""The variables of every run and what they hold, for the reference."""

_SHORT = 7
_IN_CONTAINER = "/tmp/loaded_checkpoints"  # noqa: S108 - the hosted service's place


@dataclass(frozen=True, slots=True)
class RunPaths:
    """Where one rank of a run keeps its things on its node: absolute paths."""

    directory: str
    work: str
    scratch: str
    loaded: str
    checkpoints: str
    project_cache: str
    team_cache: str


def run_paths(
    node: Node,
    address: Address,
    project: str,
    run: RunRecord,
    rank: int,
    *,
    cache: str | None = None,
    team: str | None = None,
) -> RunPaths:
    """The variables of one rank, as DESIGN.md lists them. ``cache`` and ``team`` are training caches where they are set."""
    root = PurePosixPath(node.root)
    directory = run_directory(node, run)
    return RunPaths(
        directory=str(directory),
        work=str(work_directory(node, run)),
        scratch=str(directory / "scratch"),
        loaded=str(directory / "loaded"),
        checkpoints=str(checkpoint_directory(node, address, project, run) / f"rank-{rank}"),
        project_cache=cache or str(root / "caches" / project),
        team_cache=team or team_cache(node),
    )


def run_directory(node: Node, run: RunRecord) -> PurePosixPath:
    """What a node has of a run."""
    return PurePosixPath(node.root) / "runs" / run.key


def work_directory(node: Node, run: RunRecord) -> PurePosixPath:
    """Where the run's code was unpacked and its commands begin; what they write there stays when they have ended."""
    return run_directory(node, run) / "work"


def team_cache(node: Node) -> str:
    """The training cache that all projects on the node share, where the manifest declares no other."""
    return str(PurePosixPath(node.root) / "caches" / ".team")


def checkpoint_directory(
    node: Node, address: Address, project: str, run: RunRecord
) -> PurePosixPath:
    """Where all ranks of a run on this node keep their checkpoints."""
    return (
        PurePosixPath(node.data)
        / "checkpoints"
        / project
        / file_name(address)
        / f"{run.number}-{run.id}"
    )


def file_name(address: Address) -> str:
    """A file name for an address: its name, and for one of many a digest of its key."""
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
    """Every variable of one rank but the secrets' values; what the user declares can't hide ours.

    Of a gang the node adds where rank 0 is reached. ``gpus`` are those of the node, which a job that asks for none by number has all of; the node itself tells the job which it got.
    """
    variables = job.runtime.environment_variables
    plain = {name: value for name, value in variables.items() if isinstance(value, str)}
    project, wanted = job.project, job.compute.gpus
    own = {
        "BT_TRAINING_JOB_ID": run.id,
        "BT_TRAINING_JOB_NAME": str(address).removeprefix("job."),
        "BT_TRAINING_PROJECT_ID": project_id(lineage, project),
        "BT_TRAINING_PROJECT_NAME": project,
        "BT_NUM_GPUS": str((gpus or 0) if wanted is None else wanted),
        "BT_GROUP_SIZE": str(len(run.ranks) or 1),
        "BT_NODE_RANK": str(rank),
        "BT_LEADER_ADDR": "127.0.0.1",
        "BT_RETRY_COUNT": str(run.generation - 1),
        "BT_WORKING_DIR": where.work,
        "BT_SCRATCH_DIR": where.scratch,
        "BT_LOAD_CHECKPOINT_DIR": where.loaded,
    }
    if (shown := loaded_directory(job, where)) is not None:
        own["BT_LOAD_CHECKPOINT_DIR"] = shown
    for variable, (path, _) in persistent_directories(job, where).items():
        own[variable] = str(PurePosixPath(where.work) / path)
    if "BT_PROJECT_CACHE_DIR" in own:
        own["BT_RW_CACHE_DIR"] = own["BT_PROJECT_CACHE_DIR"]
    for weights in job.weights:
        place = PurePosixPath(where.work) / weights.mount_location
        own[weights_variable(weights.address)] = str(place)
    return {**plain, **own}


def project_id(lineage: str, project: str) -> str:
    """A project's id: the same for as long as the state lives."""
    return digest([lineage, project])[7 : 7 + _SHORT]


def persistent_directories(job: JobSpec, where: RunPaths) -> dict[str, tuple[str, str]]:
    """Directories that outlive the run, by variable: where the job finds each, and where it really lies."""
    checkpointing, cache = job.runtime.checkpointing_config, job.runtime.cache_config
    found: dict[str, tuple[str, str]] = {}
    if checkpointing.enabled:
        shown = checkpointing.checkpoint_path or where.checkpoints
        found["BT_CHECKPOINT_DIR"] = (shown, where.checkpoints)
    if cache.enabled:
        base = cache.mount_base_path
        project, team = where.project_cache, where.team_cache
        found["BT_PROJECT_CACHE_DIR"] = (f"{base}/user_artifacts" if base else project, project)
        found["BT_TEAM_CACHE_DIR"] = (f"{base}/team_artifacts" if base else team, team)
    return found


def directory_links(job: JobSpec, where: RunPaths) -> list[PersistentDirectory]:
    """Directories that the job is to find elsewhere than where they lie, or may not write to."""
    places = persistent_directories(job, where).values()
    found: list[PersistentDirectory] = [
        {"path": shown, "target": real} for shown, real in places if shown != real
    ]
    if (shown := loaded_directory(job, where)) is not None:
        found.append({"path": shown, "target": where.loaded, "read_only": True})
    if job.runtime.cache_config.enable_legacy_hf_mount:
        hub = f"{where.project_cache}/huggingface"
        found.append({"path": "~/.cache/huggingface", "target": hub, "variable": "HF_HOME"})
    return found


def loaded_directory(job: JobSpec, where: RunPaths) -> str | None:
    """Where the job finds the checkpoints it begins with; None if it begins with none."""
    config = job.runtime.load_checkpoint_config
    if config is None or not config.enabled:
        return None
    return config.download_folder or (_IN_CONTAINER if job.in_container else where.loaded)


def caches(job: JobSpec, where: RunPaths) -> list[str]:
    """The training caches that the run uses, the project's first."""
    enabled = job.runtime.cache_config.enabled
    return [where.project_cache, where.team_cache] if enabled else []


def weights_variable(address: Address) -> str:
    """``TRAINCTL_WEIGHTS_<NAME>`` of a weights address, the same in all jobs of a matrix."""
    return "TRAINCTL_WEIGHTS_" + re.sub(r"[^A-Z0-9]", "_", address.name.upper())
