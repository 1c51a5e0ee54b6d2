"""Prepare a run's directories, code, weights, mounts and variables."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
from pathlib import Path, PurePath
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from trainctl.base.filesystem.files import is_inside, make_directory, remove_tree
from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.base.protocol.host import HostRequirement, MissingHostRequirements
from trainctl.base.protocol.runs import PersistentDirectory, RunSpec
from trainctl.errors import NodeError, UnknownOnNode
from trainctl.node.cache.holds import hold_listing
from trainctl.node.runs.mount import Mount, blocked_reason, mount_problem
from trainctl.node.runs.record import (
    RUN_VARIABLE,
    NodeRun,
    declared_variables,
    secret_variables,
    weights_of,
)
from trainctl.node.system import layout

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

_HOME_IN_CONTAINER = "/root"  # as in the hosted service


class PreparedJob(NamedTuple):
    """Mounts, weights mode and variables of a job that is ready to start."""

    mounts: Tuple[Mount, ...]
    mount: str
    weights_mode: str
    variables: Mapping[str, str] = {}


class _DirectoryLayout:
    """Mounts for a private namespace; symlinks and variables where there is none.

    ``private``: mounts are possible, below the working directory too; ``linked``: symlinks out of it resolve.
    """

    def __init__(self, run: NodeRun, spec: RunSpec, private: bool, *, linked: bool = True) -> None:
        self._run = run
        self._spec = spec
        self._private = private
        self._linked = linked
        self.mounts: List[Mount] = []
        self.links: List[Tuple[Path, Path]] = []
        self.variables: Dict[str, str] = {}
        for weights in weights_of(spec):
            listing = layout.check_sha256(weights.listing, "listing")
            if not hold_listing(run, listing):
                raise UnknownOnNode(f"weights {weights.address} are not present on this node")
            self._place(run.layout.tree(listing), weights.location, read_only=True)
        for mount in spec["job"]["mounts"]:
            source = layout.check_absolute(mount["host_path"], "host_path")
            if not source.is_dir():
                raise NodeError(f"host_path {str(source)!r} is not a directory on this node")
            self._place(source, mount["mount_location"], read_only=mount["read_only"])
        for link in spec.get("links", []):
            self._place_persistent(link)

    def _place(self, source: Path, location: str, *, read_only: bool) -> None:
        """Place weights or a directory of the host at the job's path."""
        if not location.startswith("/") and not self._private:
            self.links.append((_require_free(_path_in_workdir(self._run, location)), source))
            return
        if not location.startswith("/"):
            target = _path_in_workdir(self._run, location)
            target.mkdir(0o755, parents=True, exist_ok=True)
            location = str(target)
        self.mounts.append(Mount(location, str(source), read_only))

    def _place_persistent(self, link: PersistentDirectory) -> None:
        """Place a directory that outlives the run."""
        path, target = link["path"], layout.check_absolute(link["target"], "link")
        read_only = bool(link.get("read_only"))
        if path.startswith("~/") and not self._linked:
            self.mounts.append(Mount(f"{_HOME_IN_CONTAINER}/{path[2:]}", str(target), False))
        elif path.startswith("~/"):
            self._place_at_home(link, target)
        elif path.startswith("/"):
            if self._private or not (read_only and path == str(target)):
                self.mounts.append(Mount(path, str(target), read_only))
        elif self._linked:
            self.links.append((_require_free(_path_in_workdir(self._run, path)), target))
        else:
            mount_point = make_directory(_path_in_workdir(self._run, path))
            self.mounts.append(Mount(str(mount_point), str(target), read_only))

    def _place_at_home(self, link: PersistentDirectory, target: Path) -> None:
        """Mount a directory below the job's home, or set the link's variable."""
        make_directory(target)
        home = self._spec["environment"].get("HOME") or os.environ.get("HOME", "")
        mount_point = Path(os.path.realpath(f"{home}/{link['path'][2:]}"))
        if self._private and home.startswith("/"):
            with contextlib.suppress(OSError):
                make_directory(mount_point)  # without it the mount would rebuild the home directory
                self.mounts.append(Mount(str(mount_point), str(target), read_only=False))
                return
        if link["variable"] not in declared_variables(self._spec):
            self.variables[link["variable"]] = str(target)


def prepare_job(run: NodeRun, spec: RunSpec, data: Path) -> PreparedJob:
    """Create directories, unpack code, place weights; TrainctlError if any is missing."""
    from trainctl.base.filesystem.archives import unpack
    from trainctl.node.cache.code_archives import open_archive

    for directory in (run.work, run.scratch, run.view):
        remove_tree(directory)
        make_directory(directory)
    with open_archive(run.layout, spec["code"]) as stream:
        unpack(stream, run.work)
    _create_directories(run, spec, data)
    if spec.get("container"):
        mounts = tuple(_DirectoryLayout(run, spec, private=True, linked=False).mounts)
        return PreparedJob(mounts, "container", "read-only" if spec["listings"] else "none")
    problem = mount_problem(run.directory)
    directories = _DirectoryLayout(run, spec, not problem)
    if problem and directories.mounts:
        raise NodeError(
            f"cannot mount {directories.mounts[0].target} for the job on this node",
            f"Private mounts don't work: {problem}. Use a relative mount_location.",
        )
    for mount in directories.mounts:
        reason = blocked_reason(mount.target, [run.layout.root, run.layout.cache, data])
        if reason:
            raise NodeError(f"cannot mount at {mount.target!r}: {reason}")
    for path, target in directories.links:
        path.symlink_to(str(target))
    mounts, variables = tuple(directories.mounts), directories.variables
    if not spec["listings"]:
        return PreparedJob(mounts, "namespace" if mounts else "none", "none", variables)
    if not problem:
        return PreparedJob(mounts, "namespace", "read-only", variables)
    return PreparedJob((), "link", "advisory", variables)


def is_inherited(name: str) -> bool:
    """Whether a variable is the host's unless the job sets it: startup files may change it."""
    return name in _INHERITED or name.startswith("LC_")


def job_environment(
    run: NodeRun, spec: RunSpec, secrets: Optional[Mapping[str, str]]
) -> Dict[str, str]:
    """The job's variables including secrets; pass them to the job's process only. ``secrets`` None: without them."""
    variables = {name: value for name, value in os.environ.items() if is_inherited(name)}
    variables.update({"BT_WORKING_DIR": str(run.work), "BT_SCRATCH_DIR": str(run.scratch)})
    variables.update({str(name): str(value) for name, value in spec["environment"].items()})
    if secrets is not None:
        for variable, secret in secret_variables(spec).items():
            if secret not in secrets:
                raise NodeError(f"no value received for secret {secret} of variable {variable}")
            variables[variable] = secrets[secret]
    variables[RUN_VARIABLE] = str(run.directory)
    return variables


def _create_directories(run: NodeRun, spec: RunSpec, data: Path) -> None:
    """Create directories named by the job, if below trainctl's directories."""
    own = (run.layout.root, data)
    for name, value in spec["environment"].items():
        if name.startswith("BT_") and name.endswith("_DIR") and str(value).startswith("/"):
            path = layout.check_absolute(value, name)
            if any(is_inside(path, directory) for directory in own):
                make_directory(path)
    for link in spec.get("links", []):
        target = layout.check_absolute(link["target"], "link")
        if any(is_inside(target, directory) for directory in own):
            make_directory(target)
    for cache in spec.get("caches", []):
        make_directory(layout.check_absolute(cache, "cache"))


def _path_in_workdir(run: NodeRun, relative: str) -> Path:
    """Resolve a path in the working directory that is not occupied by code."""
    path = run.work / relative
    if ".." in path.parts or path == run.work:
        raise NodeError(f"{relative!r} is not a path inside the working directory")
    step = run.work
    for part in path.relative_to(run.work).parts:
        step = step / part
        if step.is_symlink() or (step.exists() and not step.is_dir()):
            raise NodeError(f"cannot place a directory at {relative!r}: the code has a file there")
    if path.is_dir() and any(path.iterdir()):
        raise NodeError(f"cannot place a directory at {relative!r}: the code has files there")
    return path


def _require_free(path: Path) -> Path:
    """Make room for a symlink by removing an empty directory."""
    make_directory(path.parent)
    if path.is_dir():
        path.rmdir()
    return path


QUERY_SECONDS = 30
"""Timeout for a login shell or an interpreter that only answers a query."""

_EXIT_NO_PROGRAM = 97

_KEPT = "__TRAINCTL_"
"""Prefix of copies that a startup file doesn't know and so doesn't change."""

_HEAD = """\
{before}if [ -n "${{TRAINCTL_PROGRESS-}}" ]; then
    export PYTHONPATH="${{TRAINCTL_PROGRESS%/*}}/python${{PYTHONPATH:+:$PYTHONPATH}}"
fi
set -e
cd -- {work}
"""
_COMMAND = """\
printf %s {number} 1<>{step}
eval {command}
__trainctl_status=$?; [ "$__trainctl_status" -eq 0 ] || exit "$__trainctl_status"
"""

_HOLD = """\
if [ -z "${{__stop_requested-}}" ] && {condition}; then
    echo "$__status" 1<>{held}
    while [ -z "${{__stop_requested-}}" ]; do sleep 1; done 2>/dev/null  # no "Terminated" in the log
fi
"""


def keep_variables(variables: Mapping[str, str], names: Iterable[str]) -> Dict[str, str]:
    """Add a copy of each named variable, for ``restoring_lines`` after the user's startup files."""
    return {**variables, **{f"{_KEPT}{name}": variables[name] for name in names}}


def kept_names(variables: Mapping[str, str]) -> Tuple[str, ...]:
    """Names that ``keep_variables`` has copied."""
    return tuple(name[len(_KEPT) :] for name in variables if name.startswith(_KEPT))


def without_copies(variables: Mapping[str, str]) -> Dict[str, str]:
    """Variables without the copies of ``keep_variables``."""
    return {name: value for name, value in variables.items() if not name.startswith(_KEPT)}


def restoring_lines(names: Iterable[str]) -> str:
    """Shell lines that give variables their value from before the startup files; PATH is extended."""
    text = ""
    for name in names:
        more = ':"$PATH"' if name == "PATH" else ""
        text += f'export {name}="${_KEPT}{name}"{more}\nunset {_KEPT}{name}\n'
    return text


def activation_lines(venv: Optional[str]) -> str:
    """Shell lines that activate a virtual environment after the user's profile."""
    if not venv:
        return ""
    path = shlex.quote(str(_venv(venv)))
    return f'export VIRTUAL_ENV={path}\nexport PATH="$VIRTUAL_ENV/bin:$PATH"\nunset PYTHONHOME\nhash -r\n'


def check_host(requirement: HostRequirement) -> MissingHostRequirements:
    """List what is missing of a virtual environment and a program."""
    venv, program = requirement["venv"], requirement["program"]
    if venv and not os.access(str(_venv(venv) / "bin" / "python"), os.X_OK):
        return {"lacks": [f"{venv} is not a virtual environment: it has no bin/python"]}
    # Profiles keep the system's directories in PATH, and a login shell is slow to start.
    if program and not shutil.which(program, path=os.confstr("CS_PATH")):
        path = shlex.quote(str(Path(program).expanduser()))
        query = f"command -v -- {path} >/dev/null || exit {_EXIT_NO_PROGRAM}"
        with contextlib.suppress(subprocess.TimeoutExpired):  # then the program may exist
            if run_in_login_shell(query, venv).returncode == _EXIT_NO_PROGRAM:
                where = f" in {venv} or" if venv else ""
                return {"lacks": [f"program {program} not found{where} on the login shell's PATH"]}
    return {"lacks": []}


def run_in_login_shell(text: str, venv: Optional[str]) -> subprocess.CompletedProcess[str]:
    """Run a line in the shell that runs jobs, after its profile."""
    shell = shutil.which("bash") or "/bin/sh"
    argv = [shell, "-l", "-c", activation_lines(venv) + text]
    return subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=QUERY_SECONDS,
        check=False,
    )


def _venv(value: Any) -> Path:
    return layout.check_absolute(str(Path(str(value)).expanduser()), "venv")


def shell_program(commands: Sequence[str], work: Path, step: Path, before: str = "") -> str:
    """Program text that writes the current command's number to the file ``step``.

    It overwrites bytes, which a full disk allows, so the file must have some. ``before`` is inserted at the top.
    """
    text = _HEAD.format(before=before, work=shlex.quote(str(work)))
    for number, command in enumerate(commands, 1):
        text += _COMMAND.format(
            number=number, step=shlex.quote(str(step)), command=shlex.quote(command)
        )
    return text


def shell_arguments(
    script: Path, held: Optional[Path] = None, trigger: str = ""
) -> Tuple[str, ...]:
    """Command line of a login shell for the program: bash if available.

    With a ``trigger``, a shell around it waits at the end; see ``holding_lines``.
    """
    shell = (shutil.which("bash") or "/bin/sh", "-l", str(script))
    if held is None or not trigger:
        return shell
    text = f'trap "__stop_requested=1" TERM\n"$@"\n__status=$?\n{holding_lines(held, trigger)}exit "$__status"'
    return ("/bin/sh", "-c", text, "sh", *shell)


def holding_lines(held: PurePath, trigger: str) -> str:
    """Shell lines that write ``$__status`` to the file ``held`` and wait for SIGTERM, unless it came before."""
    condition = '[ "$__status" -ne 0 ]' if trigger == "on_failure" else ":"
    return _HOLD.format(condition=condition, held=shlex.quote(str(held)))


def started_commands(step: Path) -> int:
    """Number of commands that were started; the shell's exit code is that of the last of them."""
    try:
        return int(step.read_text())
    except (FileNotFoundError, ValueError):
        return 0


def describe_failure(
    commands: Sequence[str], step: Path, code: int, noun: str = "start command"
) -> str:
    """Describe which command ended the job, in one line; ``code`` is negative for a signal."""
    number = started_commands(step)
    ending = f"exited with {code}" if code >= 0 else f"was killed by signal {-code}"
    if not number:
        user = os.environ.get("USER") or f"UID {os.geteuid()}"  # not all have a passwd entry
        cause = f": a login profile of {user} ended or replaced it" if code >= 0 else ""
        return f"the shell {ending} before the first command{cause}"
    command = commands[number - 1] if 0 < number <= len(commands) else ""
    line = command.strip().splitlines()[0] if command.strip() else ""
    shown = line if len(line) <= 100 else line[:97] + "..."
    text = "".join(mark if mark.isprintable() else repr(mark)[1:-1] for mark in shown)
    return f"{noun} {number} of {len(commands)} {ending}: {text}"
