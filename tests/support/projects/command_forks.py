"""Running trainctl many times without loading it many times: one process loads it, and each command is a fork of it.

A command has a process, a session, streams, variables and an end of its own, like one that is started; only the imports are
shared. Tests that end programs, prefix them or set what Python reads at its start use processes that are started.

    python -m tests.support.projects.command_forks DESCRIPTOR       serves the listening socket that it has inherited
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import json
import os
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.support.cleanup import AT_END
from tests.support.node_program.node_forks import (
    ForkingPopen,
    ServedPopen,
    installed_program,
    server,
)

_AT_START = (
    "PYTHONIOENCODING", "PYTHONUTF8", "PYTHONHOME", "LANG", "LC_", "GITHUB_ACTIONS",
    "FORCE_COLOR", "PY_COLORS",
)  # fmt: skip
"""What Python reads while it starts, by the beginnings of the variables' names."""
_STARTED_WITH = dict(os.environ)
_MESSAGE_BYTES = 2**20
_CLONE_NEWNET, _CLONE_NEWNS = 0x40000000, 0x00020000
_MS_BIND, _MS_REC, _MS_SLAVE = 0x1000, 0x4000, 0x80000
_LEFT_OUT = ("trainctl.__main__", "trainctl.node", "trainctl.testing")
WARM_MARK = b"tests.support.projects.command_forks"
"""In the command line of the server and its forks."""


def can_be_forked(program: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether nothing is asked for that only a program's start brings about."""
    return program[0] == "-m" and _at_start(environ) == _at_start(_STARTED_WITH)


def _at_start(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith(_AT_START)}


class WarmPopen(ServedPopen):
    """A fork that runs ``-m MODULE ARGUMENT…`` in a session of its own; ``namespace`` is the file of a network, if not this one's."""

    def __init__(self, argv: Sequence[str], *, namespace: str = "", **options: Any) -> None:
        self._namespace = namespace
        super().__init__(list(argv), **options)

    def _execute_child(self, args: Any, *others: Any) -> None:
        cwd, environ = others[4:6]
        stdin, _, _, stdout, _, stderr = pipes = others[9:15]
        python = sys.executable
        order = {
            "argv": args,
            "cwd": str(cwd or Path.cwd()),
            "environ": dict(os.environ if environ is None else environ),
            "namespace": self._namespace,
            "nodes": server((python,), installed_program(python)).decode(),
        }
        line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MESSAGE_BYTES)
        line.connect(_address())
        socket.send_fds(line, [json.dumps(order).encode()], (stdin, stdout, stderr))
        self._begin(line, pipes)


def forked(
    argv: Sequence[str],
    cwd: Path,
    environ: Mapping[str, str],
    seconds: float,
    *,
    namespace: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run ``-m MODULE ARGUMENT…`` to its end; TimeoutExpired if that takes longer, and nothing of it is left running."""
    with WarmPopen(
        argv,
        namespace=namespace,
        cwd=cwd,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(list(argv), process.returncode, out, err)


_COMMAND = """\
#!{python} -IS
import json, os, signal, socket, sys
order = {{
    "argv": ["-m", "trainctl", *sys.argv[1:]], "cwd": os.getcwd(), "environ": dict(os.environ),
    "namespace": "", "nodes": {nodes!r},
}}
line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, {size})
line.connect({address!r})
socket.send_fds(line, [json.dumps(order).encode()], (0, 1, 2))
pid = int(line.recv(32))
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda number, frame: os.kill(pid, number))
code = int(line.recv(32))
os._exit(code if code >= 0 else 128 - code)
"""


def write_command(path: Path) -> None:
    """Write a program ``trainctl`` for scripts: each start of it is a fork."""
    python = sys.executable
    nodes = server((python,), installed_program(python)).decode()
    path.write_text(
        _COMMAND.format(python=python, nodes=nodes, size=_MESSAGE_BYTES, address=_address())
    )
    path.chmod(0o755)


@functools.cache
def _address() -> bytes:
    """Where the process that has loaded the program listens; it is started when it is first asked for, and ends with this one."""
    address = b"\0trainctl-tests-" + os.urandom(12).hex().encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(address)
        listening.listen(64)
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.support.projects.command_forks", str(listening.fileno())],
            cwd=Path(__file__).resolve().parents[3],
            env=_STARTED_WITH,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=[listening.fileno()],
        )
    AT_END.callback(server.communicate)  # it ends with its standard input
    return address


def main(descriptor: int) -> None:
    """Serve until whoever started this has gone."""
    _load()
    lines: dict[int, tuple[int, socket.socket]] = {}
    poll = select.poll()
    poll.register(0, select.POLLIN)
    with socket.socket(fileno=descriptor) as listening:
        poll.register(listening, select.POLLIN)
        while True:
            for ready, _ in poll.poll():
                if ready == 0:
                    return
                if ready == descriptor:
                    line = listening.accept()[0]
                    pid = _begin(line, [listening, *(item for _, item in lines.values())])
                    if pid is None:
                        continue
                    ended = os.pidfd_open(pid)
                    lines[ended] = (pid, line)
                    poll.register(ended, select.POLLIN)
                else:
                    poll.unregister(ready)
                    _report(*lines.pop(ready))
                    os.close(ready)


def _load() -> None:
    """Load the program with all its parts, but none that reads variables while it is loaded."""
    import gc
    from importlib import import_module
    from pkgutil import walk_packages

    import pathspec

    import trainctl
    import trainctl_local  # noqa: F401
    import trainctl_state  # noqa: F401
    from trainctl.manifest.check import manifest_type
    from trainctl.plugin_api.discovery import PROVIDERS, plugin_names

    for module in walk_packages(trainctl.__path__, "trainctl."):
        if not module.name.startswith(_LEFT_OUT):
            import_module(module.name)
    pathspec.GitIgnoreSpec.from_lines(["*.pyc"])
    plugin_names(PROVIDERS)
    manifest_type().validate_python(
        {"project": {"name": "warm"}, "jobs": {"warm": {"runtime": {"start_commands": ["x"]}}}}
    )
    os.fsync = lambda fd: None  # a process that is killed loses nothing that it wrote
    assert "huggingface_hub" not in sys.modules  # it reads variables while it is loaded
    gc.collect()
    gc.freeze()


def _begin(line: socket.socket, others: Sequence[socket.socket]) -> int | None:
    """Fork for the order on the line; None if the caller was killed before it sent one."""
    try:
        data, streams, _, _ = socket.recv_fds(line, _MESSAGE_BYTES, 3)
    except OSError:
        data = b""
    if not data:
        line.close()
        return None
    pid = os.fork()
    if pid == 0:
        os.setsid()
        _send(line, os.getpid())  # not before: the caller may kill the group at once
        for value in (line, *others):
            value.detach()
        _become(json.loads(data), streams)
    for stream in streams:
        os.close(stream)
    return pid


def _become(command: Mapping[str, Any], streams: Sequence[int]) -> None:
    """Be the command; what ends it ends this process, as it would end a program that was started."""
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
    os.closerange(3, 1024)
    if command["namespace"]:
        _enter(command["namespace"])
    os.chdir(command["cwd"])
    os.environ.clear()
    os.environ.update(command["environ"])
    time.tzset()
    random.seed()
    _, module, *arguments = command["argv"]
    sys.argv = ["", *arguments]
    _fork_nodes(command["nodes"].encode())
    own = command["environ"].get("PYTHONPATH")
    sys.path[:1] = [str(Path.cwd()), *(own.split(os.pathsep) if own else ())]
    if own:
        from trainctl.plugin_api import discovery

        discovery._all_entry_points.cache_clear()  # plugins on PYTHONPATH are found, too
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as done:
        if done.code is None or isinstance(done.code, int):
            _leave(done.code or 0)
        raise
    sys.exit()


def _enter(namespace: str) -> None:
    """Be in another network namespace, with the settings that ``ip netns exec`` would find for it."""
    libc = ctypes.CDLL(None, use_errno=True)

    def call(name: str, *arguments: object) -> None:
        if getattr(libc, name)(*arguments):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), namespace)

    descriptor = os.open(namespace, os.O_RDONLY)
    call("setns", descriptor, _CLONE_NEWNET)
    os.close(descriptor)
    settings = Path("/etc/netns") / Path(namespace).name / "resolv.conf"
    if settings.exists():
        call("unshare", _CLONE_NEWNS)
        call("mount", b"none", b"/", None, _MS_SLAVE | _MS_REC, None)
        call("mount", bytes(settings), b"/etc/resolv.conf", None, _MS_BIND, None)


def _fork_nodes(address: bytes) -> None:
    """Have calls of the node program on this machine be forks, too."""
    from trainctl.remote import processes

    ForkingPopen.address = address
    replaced = ModuleType("subprocess")
    vars(replaced).update(vars(subprocess), Popen=ForkingPopen)
    vars(processes)["subprocess"] = replaced


def _leave(code: int) -> None:
    """End as Python ends, but without taking apart what was loaded, which would copy all of it."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        sys.exit(code)
    os._exit(code)


def _report(pid: int, line: socket.socket) -> None:
    _, status = os.waitpid(pid, 0)
    with line:
        _send(line, os.waitstatus_to_exitcode(status))


def _send(line: socket.socket, number: int) -> None:
    with suppress(OSError):  # the caller was killed
        line.send(b"%d" % number)


if __name__ == "__main__":
    main(int(sys.argv[1]))
