"""Enter a run: execute a shell or a command in its namespace or container."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import sys
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from trainctl.base.filesystem.space import from_os_error
from trainctl.base.protocol.runs import EnterRequest
from trainctl.base.system.processes import descendants, is_alive
from trainctl.base.system.syscalls import setns
from trainctl.errors import LockHeld, NodeError, TrainctlError, UnknownOnNode
from trainctl.node.containers.cleanup import running_container
from trainctl.node.containers.engines import APPTAINER, FIRST, WORK
from trainctl.node.environment.workspace import (
    activation_lines,
    job_environment,
    keep_variables,
    kept_names,
    restoring_lines,
    without_copies,
)
from trainctl.node.runs.attempt import exit_code
from trainctl.node.runs.record import RUN_VARIABLE, NodeRun, secret_variables
from trainctl.node.system.layout import Layout

_NAMESPACES = ("user", "mnt", "pid", "ipc", "uts")
_SHELL = "command -v bash >/dev/null && exec bash\nexec sh\n"


def enter(argument: str) -> int:
    """Execute what an ``EnterRequest`` in JSON asks for, with the caller's terminal; exit code on failure."""
    request: EnterRequest = json.loads(argument)
    os.umask(0o022)
    try:
        return _enter(NodeRun(Layout(request["root"]), request["key"]), request)
    except OSError as error:
        failure = from_os_error(error, request["root"])
    except TrainctlError as error:
        failure = error
    sys.stderr.write(f"{failure.summary}. {failure.detail}".strip() + "\n")
    return 1


def _enter(run: NodeRun, request: EnterRequest) -> int:
    spec = run.spec
    if spec is None:
        raise UnknownOnNode(f"run {run.key} not found on the node")
    secret = secret_variables(spec)
    secrets = secret if request["with_secrets"] else {}
    holder = run.supervisor
    if holder is None or not is_alive(holder):
        if not run.work.is_dir():
            raise UnknownOnNode(f"run {run.key} has no directory", "It has not started.")
        if secrets:
            text = "the secrets of an ended run are not stored"
            raise UnknownOnNode(text, "Omit --with-secrets.")
        variables = job_environment(run, spec, None)  # without the mounts
        before = activation_lines(spec["venv"])
        argv = _program(before, str(run.work), request["command"], ["-l"])
        return _execute(argv, variables, None)
    pids = descendants(int(holder["pid"]))
    container = running_container(run.directory)
    if spec.get("container") and container.engine != APPTAINER:
        if not container.id:
            raise _not_started(run)
        values = _values(pids, secrets)
        words = [container.engine, "exec", "--interactive", *(["--tty"] if os.isatty(0) else [])]
        words += [word for name in values for word in ("--env", name)]
        words += [container.id, *_program("", str(WORK), request["command"])]
        os.execvpe(words[0], words, {**os.environ, **values})  # noqa: S606 - the engine
    in_container = bool(spec.get("container"))
    first = _first_process(run, pids, in_container)
    own = _environment(first)
    kept = [name for name in kept_names(own) if name not in secret or name in secrets]
    variables = {name: value for name, value in without_copies(own).items() if name not in secret}
    variables.update(_values(pids, secrets))
    work = str(WORK) if in_container else str(run.work)
    before = "" if in_container else restoring_lines(kept) + activation_lines(spec["venv"])
    variables = keep_variables(variables, kept)
    login = [] if in_container else ["-l"]
    return _execute(_program(before, work, request["command"], login), variables, first)


def _program(
    before: str, work: str, command: Sequence[str], login: Sequence[str] = ()
) -> Tuple[str, ...]:
    """Return the command line; a single word is a line for the shell, as with ssh."""
    shell = shutil.which("bash") if login else None
    text = f"{before}cd -- {shlex.quote(work)}\n"
    words = ("/bin/sh", "-c", *command) if len(command) == 1 else tuple(command)
    return (
        shell or "/bin/sh",
        *login,
        "-c",
        text + ('exec "$@"' if words else _SHELL),
        "sh",
        *words,
    )


def _execute(argv: Sequence[str], variables: Mapping[str, str], pid: Optional[int]) -> int:
    """Execute in the namespaces of a process; in a PID namespace as a child, whose exit code is returned."""
    joined = _join_namespaces(pid) if pid is not None else []
    if "pid" in joined:
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP):
            signal.signal(number, signal.SIG_IGN)
        child = os.fork()
        if child:
            code = exit_code(os.waitpid(child, 0)[1])
            return code if code >= 0 else 128 - code
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP):
            signal.signal(number, signal.SIG_DFL)
    os.execve(argv[0], list(argv), dict(variables))  # noqa: S606 - the user's shell
    return 0  # never reached


def _join_namespaces(pid: int) -> List[str]:
    """Join those namespaces of a process that are not this process's own, and its root directory."""
    own, other = Path("/proc/self/ns"), Path(f"/proc/{pid}/ns")
    names = [
        name for name in _NAMESPACES if (own / name).stat().st_ino != (other / name).stat().st_ino
    ]
    root = os.open(f"/proc/{pid}/root", os.O_RDONLY | os.O_DIRECTORY)
    for descriptor in [os.open(str(other / name), os.O_RDONLY) for name in names]:
        setns(descriptor)
        os.close(descriptor)
    if "mnt" in names:
        os.fchdir(root)
        os.chroot(".")
    os.close(root)
    return names


def _first_process(run: NodeRun, pids: Sequence[int], in_container: bool) -> int:
    """Return the job's first process; TrainctlError before its start."""
    for pid in pids:
        with contextlib.suppress(OSError):
            if in_container:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
                if words == [b"/bin/sh", str(FIRST).encode()]:
                    return pid
            elif _environment(pid).get(RUN_VARIABLE) == str(run.directory):
                return pid
    raise _not_started(run)


def _not_started(run: NodeRun) -> TrainctlError:
    return LockHeld(f"run {run.key} has no process yet", "Try again when it is running.")


def _values(pids: Sequence[int], names: Mapping[str, str]) -> Dict[str, str]:
    """Return variables of the job's processes; TrainctlError if they can't be read."""
    for pid in pids if names else ():
        with contextlib.suppress(OSError):
            environment = _environment(pid)
            if names.keys() <= environment.keys():
                return {name: environment[name] for name in names}
    if names:
        text = "the secrets of the run can't be read from its processes"
        raise NodeError(text, "Omit --with-secrets.")
    return {}


def _environment(pid: int) -> Dict[str, str]:
    """Return the environment with which a process was executed."""
    entries = os.fsdecode(Path(f"/proc/{pid}/environ").read_bytes()).split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)
