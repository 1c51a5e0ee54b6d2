"""What a job finds around it: its working directory, its weights, its environment."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Dict, List, Mapping, NamedTuple, Tuple

from trainctl.base.failure import Failure
from trainctl.base.filesystem.files import make_directory, remove_tree
from trainctl.base.protocol.spec import PersistentDirectory, RunSpec, RunWeights
from trainctl.node.cache import code_archives
from trainctl.node.cache.leases import hold_lease
from trainctl.node.runs.mount import Mount, check_mounts, private_mounts
from trainctl.node.runs.record import RUN_VARIABLE, NodeRun
from trainctl.node.system import layout
from trainctl.node.system.layout import is_inside

_INHERITED = (
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "PATH",
    "LANG",
    "LANGUAGE",
    "TZ",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "XDG_RUNTIME_DIR",
)

_HOME_IN_CONTAINER = "/root"  # where jobs of the hosted service find theirs


class PreparedJob(NamedTuple):
    """A job that is ready to be executed."""

    mounts: Tuple[Mount, ...]
    mount: str
    weights_mode: str
    variables: Mapping[str, str] = {}


class _DirectoryLayout(NamedTuple):
    """Where the job's directories appear: mounts for a private namespace, links or variables otherwise."""

    mounts: List[Mount]
    links: List[Tuple[Path, Path]]
    variables: Dict[str, str]


def prepare_job(run: NodeRun, spec: RunSpec, data: Path) -> PreparedJob:
    """Create the run's directories, unpack its code, and check and place its weights. Failure if something is missing."""
    for directory in (run.work, run.scratch, run.view):
        remove_tree(directory)
        make_directory(directory)
    with code_archives.open_archive(run.layout, spec["code"]) as stream:
        code_archives.unpack(stream, run.work)
    _make_directories(run, spec, data)
    if spec.get("container"):
        mounts = tuple(_layout_directories(run, spec, private=True, linked=False).mounts)
        return PreparedJob(mounts, "container", "read-only" if spec.get("weights") else "none")
    private = private_mounts(run.directory)
    places = _layout_directories(run, spec, private.possible)
    if not private.possible and places.mounts:
        raise Failure(
            "request",
            f"{places.mounts[0].target} can't be made visible to the job alone on this node",
            f"Private mounts don't work there: {private.detail}. Use a relative mount_location.",
        )
    check_mounts(places.mounts, [run.layout.root, run.layout.cache, data])
    for path, target in places.links:
        path.symlink_to(str(target))
    mounts, variables = tuple(places.mounts), places.variables
    if not spec.get("weights"):
        return PreparedJob(mounts, "namespace" if mounts else "none", "none", variables)
    if private.possible:
        return PreparedJob(mounts, "namespace", "read-only", variables)
    return PreparedJob((), "link", "advisory", variables)


def job_environment(run: NodeRun, spec: RunSpec, secrets: Mapping[str, str]) -> Dict[str, str]:
    """The job's variables, secrets among them: for the job's process only."""
    found = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    found.update({name: value for name, value in os.environ.items() if name.startswith("LC_")})
    found.update({"BT_WORKING_DIR": str(run.work), "BT_SCRATCH_DIR": str(run.scratch)})
    found.update({str(name): str(value) for name, value in spec["environment"].items()})
    for variable, secret in spec.get("secret_environment", {}).items():
        if secret not in secrets:
            raise Failure("request", f"secret {secret} for {variable} did not arrive")
        found[variable] = secrets[secret]
    found[RUN_VARIABLE] = str(run.directory)
    return found


def _make_directories(run: NodeRun, spec: RunSpec, data: Path) -> None:
    """Directories that the environment promises, where they are ours to make."""
    for name, value in spec["environment"].items():
        if name.startswith("BT_") and name.endswith("_DIR") and str(value).startswith("/"):
            path = layout.check_absolute(value, name)
            if is_inside(path, run.layout.root) or is_inside(path, data):
                make_directory(path)
    for link in spec.get("links", []):
        target = layout.check_absolute(link["target"], "link")
        if is_inside(target, run.layout.root) or is_inside(target, data):
            make_directory(target)
    for directory in spec.get("caches", []):
        make_directory(layout.check_absolute(directory, "cache"))


def _layout_directories(
    run: NodeRun, spec: RunSpec, private: bool, *, linked: bool = True
) -> _DirectoryLayout:
    """``private``: mounts are possible, below the working directory too; ``linked``: links out of it lead somewhere."""
    places = _DirectoryLayout([], [], {})
    for weights in spec.get("weights", []):
        location = weights.get("mount_location") or f"weights/{weights['name']}"
        _place_directory(run, _tree(run, weights), location, True, private, places)
    for mount in spec.get("mounts", []):
        source = layout.check_absolute(mount["host_path"], "host_path")
        if not source.is_dir():
            raise Failure("request", f"there is no directory {str(source)!r} to mount on this node")
        location, read_only = mount["mount_location"], mount["read_only"]
        _place_directory(run, source, location, read_only, private, places)
    for link in spec.get("links", []):
        _place_persistent(run, spec, link, private, linked, places)
    return places


def _place_persistent(
    run: NodeRun,
    spec: RunSpec,
    link: PersistentDirectory,
    private: bool,
    linked: bool,
    places: _DirectoryLayout,
) -> None:
    """A directory that outlives the run, where the job looks for it."""
    target = layout.check_absolute(link["target"], "link")
    read_only = bool(link.get("read_only"))
    if link["path"].startswith("~/"):
        if linked:
            _place_at_home(spec, link, target, private, places)
        else:
            places.mounts.append(
                Mount(f"{_HOME_IN_CONTAINER}/{link['path'][2:]}", str(target), False)
            )
    elif link["path"].startswith("/"):
        if private or not (read_only and link["path"] == str(target)):
            places.mounts.append(Mount(link["path"], str(target), read_only))
    elif linked:
        places.links.append((_require_free(_path_in_workdir(run, link["path"])), target))
    else:
        seen = make_directory(_path_in_workdir(run, link["path"]))
        places.mounts.append(Mount(str(seen), str(target), read_only))


def _place_at_home(
    spec: RunSpec, link: PersistentDirectory, target: Path, private: bool, places: _DirectoryLayout
) -> None:
    """A directory below the job's home; where it can't be mounted there, the link's variable names it."""
    make_directory(target)
    home = spec["environment"].get("HOME") or os.environ.get("HOME", "")
    place = Path(os.path.realpath(f"{home}/{link['path'][2:]}"))
    if private and home.startswith("/"):
        with contextlib.suppress(OSError):
            make_directory(place)  # mounting at a missing name would rebuild all of the home
            places.mounts.append(Mount(str(place), str(target), read_only=False))
            return
    if link["variable"] not in {**spec["environment"], **spec.get("secret_environment", {})}:
        places.variables[link["variable"]] = str(target)


def _place_directory(
    run: NodeRun,
    source: Path,
    location: str,
    read_only: bool,
    private: bool,
    places: _DirectoryLayout,
) -> None:
    """Weights or a directory of the host, where the job wants them."""
    if not location.startswith("/") and not private:
        places.links.append((_require_free(_path_in_workdir(run, location)), source))
        return
    if not location.startswith("/"):
        target = _path_in_workdir(run, location)
        target.mkdir(0o755, parents=True, exist_ok=True)
        location = str(target)
    places.mounts.append(Mount(location, str(source), read_only))


def _tree(run: NodeRun, weights: RunWeights) -> Path:
    listing = layout.check_sha256(weights["listing"], "listing")
    if not hold_lease(run, listing):
        raise Failure("missing", f"weights {weights['name']} are not delivered to this node")
    return run.layout.tree(listing)


def _path_in_workdir(run: NodeRun, relative: str) -> Path:
    """A path in the working directory that nothing of the code occupies or leads away from."""
    path = run.work / relative
    if ".." in path.parts or path == run.work:
        raise Failure("request", f"{relative!r} is no place inside the working directory")
    step = run.work
    for part in path.relative_to(run.work).parts:
        step = step / part
        if step.is_symlink() or (step.exists() and not step.is_dir()):
            raise Failure("request", f"the code has a file at {relative!r}, where weights go")
    if path.is_dir() and any(path.iterdir()):
        raise Failure("request", f"the code has files in {relative!r}, where weights go")
    return path


def _require_free(path: Path) -> Path:
    """A path at which a link can be made."""
    make_directory(path.parent)
    if path.is_dir():
        path.rmdir()
    return path
