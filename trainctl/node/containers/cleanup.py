"""What a container may leave behind, and taking it away: the container itself, and files that are not the user's.

``RUN/container.json`` is written before a container is made and removed after it is gone: while it is there, one may exist.
``RUN/container/`` is what an apptainer's container may write; other engines have storage of their own.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence

from trainctl.base.filesystem.files import make_directory, read_json, remove_tree, write_json
from trainctl.base.system.processes import cpu_seconds, descendants, is_alive, process_record
from trainctl.node.containers.engines import APPTAINER, DOCKER, run_program

LABEL = "trainctl.run"
"""The label of our containers; its value is the directory of their run."""

_CHOWN_TARGET = "/given"
_CHOWN_SECONDS = 600.0


def record_container(directory: Path, engine: str, image: str, ours: Sequence[str]) -> None:
    """Say that a container of the run may exist from now on. ``ours``: directories in which every file is the user's."""
    document = {"engine": engine, "image": image, "ours": list(ours)}
    write_json(directory / "container.json", document)
    if engine == APPTAINER:
        remove_tree(scratch_directory(directory))  # of an attempt before
        make_directory(scratch_directory(directory))


def scratch_directory(directory: Path) -> Path:
    """Where the run's container may write what doesn't outlive it, with an engine that has no storage."""
    return directory / "container"


def remove_container(directory: Path) -> None:
    """Remove the run's containers, running or not, and give their files back. No error: a next look tries again."""
    record = directory / "container.json"
    found: Dict[str, Any] = read_json(record) or {}
    if not found:
        return
    if found["engine"] == APPTAINER:  # its processes are ours, and so are their files
        remove_tree(scratch_directory(directory))
        gone = True
    else:
        gone = _remove(str(found["engine"]), directory)
        if gone:
            _restore_ownership(found)
    if gone:
        with contextlib.suppress(FileNotFoundError):  # another process was first
            record.unlink()


def _remove(engine: str, directory: Path) -> bool:
    """Whether none is left."""
    ask = (engine, "ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={LABEL}={directory}")
    for _ in range(2):
        answer = run_program(ask)
        if answer.code != 0:
            return False
        left = answer.out.split()
        if not left:
            return True
        run_program((engine, "rm", "--force", *left))
    return not run_program(ask).out.split()


def _restore_ownership(found: Mapping[str, Any]) -> None:
    """Give files that root of a container wrote to the user, if that is another user."""
    user, group = os.geteuid(), os.getegid()
    foreign = [path for path in found["ours"] if user != 0 and _has_foreign_files(path, user)]
    if not foreign:
        return
    if found["engine"] == DOCKER:
        mounts: List[str] = []
        for number, path in enumerate(foreign):
            mounts += ["--mount", f"type=bind,source={path},target={_CHOWN_TARGET}/{number}"]
        chown = ("-c", f"exec chown -hR {user}:{group} {_CHOWN_TARGET}")
        argv = (
            *(DOCKER, "run", "--rm", "--pull", "never", "--user", "0:0", "--userns", "host"),
            *("--network", "none", "--security-opt", "label=disable", *mounts),
        )
        run_program((*argv, "--entrypoint", "/bin/sh", found["image"], *chown), _CHOWN_SECONDS)
    else:
        run_program((found["engine"], "unshare", "chown", "-hR", "0:0", *foreign), _CHOWN_SECONDS)


def _has_foreign_files(path: str, user: int) -> bool:
    return any(_owner(entry) not in (user, None) for entry in _entries(path))


def _owner(path: str) -> Optional[int]:
    try:
        return os.lstat(path).st_uid
    except FileNotFoundError:
        return None


def _entries(path: str) -> Iterable[str]:
    yield path
    for directory, folders, names in os.walk(path):
        yield from (os.path.join(directory, name) for name in (*folders, *names))  # noqa: PTH118


_LOOK_SECONDS = 5.0


class ContainerProcesses(NamedTuple):
    """The living processes, the CPU seconds of all that the run's containers have used, and what the next look has to know."""

    pids: List[int]
    cpu_seconds: float
    record: Optional[Dict[str, Any]]


def container_processes(directory: Path, before: Optional[Mapping[str, Any]]) -> ContainerProcesses:
    """Look at the container of the run in ``directory``; ``before`` is the record of the look before.

    The service is asked only while no container is known that lives. What one used after the last look at it is not counted.
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


def _first_process(directory: Path) -> Optional[Dict[str, Any]]:
    """The identity of the container's process 1; None if there is none, or the engine makes them children of ours."""
    made = read_json(directory / "container.json") or {}
    if made.get("engine") != DOCKER:
        return None
    ask = (DOCKER, "ps", "--quiet", "--no-trunc", "--filter", f"label={LABEL}={directory}")
    for container in run_program(ask, _LOOK_SECONDS).out.split():
        answer = run_program(
            (DOCKER, "inspect", "--format", "{{.State.Pid}}", container), _LOOK_SECONDS
        )
        if answer.out.strip().isdigit():
            found = process_record(int(answer.out))
            if is_alive(found):
                return found
    return None
