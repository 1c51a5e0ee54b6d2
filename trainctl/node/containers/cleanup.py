"""Remove containers and their files, and find the processes of a running one.

``RUN/container.json`` exists from before a container is created until after it is removed.
``RUN/container/`` is the writable storage of an apptainer container; other engines have their own.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from socket import gethostname
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence

from trainctl.base.filesystem.files import make_directory, read_json, remove_tree, write_json
from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.base.system.processes import cpu_seconds, descendants, is_alive, process_record
from trainctl.node.containers.engines import (
    APPTAINER,
    CALL_SECONDS,
    DOCKER,
    LABEL,
    ProgramResult,
    run_program,
    scratch_directory,
)

_CHOWN_TARGET = "/given"
_CHOWN_SECONDS = 600.0  # datasets of millions of files


def record_container(directory: Path, engine: str, image: str, ours: Sequence[str]) -> None:
    """Record that a container may exist on this host; ``ours``: directories of the user's files."""
    document = {"engine": engine, "image": image, "ours": list(ours), "host": gethostname()}
    write_json(directory / "container.json", document)
    if engine == APPTAINER:
        remove_tree(scratch_directory(directory))  # of an earlier attempt
        make_directory(scratch_directory(directory))


def remove_container(directory: Path) -> None:
    """Remove the run's containers and restore file ownership; may be repeated."""
    path = directory / "container.json"
    record: Dict[str, Any] = read_json(path) or {}
    if not record:
        return
    if record["engine"] == APPTAINER:  # its processes and files are the user's own
        remove_tree(scratch_directory(directory))
        is_removed = True
    else:
        is_removed = _remove(str(record["engine"]), directory)
        if is_removed:
            _restore_ownership(record)
    if is_removed and record["host"] == gethostname():  # those of a batch system have other hosts
        with contextlib.suppress(FileNotFoundError):  # removed by another process
            path.unlink()


def _remove(engine: str, directory: Path) -> bool:
    """Remove all containers of a run; True if none is left."""
    for _ in range(2):
        result = _list_containers(engine, directory, CALL_SECONDS, "--all")
        if result.code != 0:
            return False
        containers = result.out.split()
        if not containers:
            return True
        run_program((engine, "rm", "--force", *containers))
    return not _list_containers(engine, directory, CALL_SECONDS, "--all").out.split()


def _list_containers(engine: str, directory: Path, seconds: float, *options: str) -> ProgramResult:
    label = f"label={LABEL}={directory}"
    return run_program(
        (engine, "ps", *options, "--quiet", "--no-trunc", "--filter", label), seconds
    )


def _restore_ownership(record: Mapping[str, Any]) -> None:
    """Change the owner of files that root in the container wrote to the user."""
    user, group = os.geteuid(), os.getegid()
    foreign = [
        path
        for path in record["ours"]
        if user != 0 and any(_owner(entry) not in (user, None) for entry in _entries(path))
    ]
    if not foreign:
        return
    if record["engine"] == DOCKER:
        mounts: List[str] = []
        for number, path in enumerate(foreign):
            mounts += ["--mount", f"type=bind,source={path},target={_CHOWN_TARGET}/{number}"]
        chown = ("-c", f"exec chown -hR {user}:{group} {_CHOWN_TARGET}")
        argv = (
            *(DOCKER, "run", "--rm", "--pull", "never", "--user", "0:0", "--userns", "host"),
            *("--network", "none", "--security-opt", "label=disable", *mounts),
        )
        run_program((*argv, "--entrypoint", "/bin/sh", record["image"], *chown), _CHOWN_SECONDS)
    else:
        run_program((record["engine"], "unshare", "chown", "-hR", "0:0", *foreign), _CHOWN_SECONDS)


def _owner(path: str) -> Optional[int]:
    try:
        return os.lstat(path).st_uid
    except FileNotFoundError:
        return None


def _entries(path: str) -> Iterable[str]:
    yield path
    for directory, folders, names in os.walk(path):
        yield from (os.path.join(directory, name) for name in (*folders, *names))  # noqa: PTH118


_QUERY_SECONDS = 5.0


class ContainerProcesses(NamedTuple):
    """Live processes of a run's containers, their CPU seconds, and the next record."""

    pids: List[int]
    cpu_seconds: float
    record: Optional[Dict[str, Any]]


def container_processes(directory: Path, before: Optional[Mapping[str, Any]]) -> ContainerProcesses:
    """Find the processes of a run's container; ``before`` is the previous record.

    Calls the engine only if no live container is known. CPU time after the last call is not counted.
    """
    earlier = float(before["earlier_seconds"]) if before else 0.0
    first = before["first"] if before and is_alive(before["first"]) else None
    if before and first is None:
        earlier += float(before["seconds"])
    first = first or _first_process(directory)
    if first is None:
        return ContainerProcesses([], earlier, _record(None, 0.0, earlier) if earlier else None)
    pids = [first["pid"], *descendants(first["pid"])]
    seconds = cpu_seconds(pids)
    return ContainerProcesses(pids, earlier + seconds, _record(first, seconds, earlier))


def _record(
    first: Optional[Mapping[str, Any]], seconds: float, earlier_seconds: float
) -> Dict[str, Any]:
    return {"first": first, "seconds": seconds, "earlier_seconds": earlier_seconds}


class RunningContainer(NamedTuple):
    """Engine of a run's container, and its id; empty if there is none."""

    engine: str
    id: str


def running_container(directory: Path) -> RunningContainer:
    """Find the running container of a run; apptainer gives none an id."""
    engine = str((read_json(directory / "container.json") or {}).get("engine", ""))
    if engine in ("", APPTAINER):
        return RunningContainer(engine, "")
    containers = _list_containers(engine, directory, _QUERY_SECONDS).out.split()
    return RunningContainer(engine, containers[0] if containers else "")


def _first_process(directory: Path) -> Optional[Dict[str, Any]]:
    """Identity of the container's process 1; None if none runs under a daemon."""
    record = read_json(directory / "container.json") or {}
    if record.get("engine") != DOCKER:
        return None
    container = running_container(directory).id
    if container:
        inspect = (DOCKER, "inspect", "--format", "{{.State.Pid}}", container)
        pid = run_program(inspect, _QUERY_SECONDS).out.strip()
        if pid.isdigit():
            process = process_record(int(pid))
            if is_alive(process):
                return process
    return None
