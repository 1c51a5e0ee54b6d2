"""Call the node program without starting Python each time: a server has loaded it, and each call is a fork.

The server is started as the product starts the program: the same interpreter and flags, the same packed bytes.
``ForkingPopen`` does so for calls that ``trainctl`` makes on this machine.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.cleanup import AT_END
from trainctl.remote.archive import INSTALL, RUN, VISIT, node_archive

_STARTED_WITH = dict(os.environ)
"""A server has no variables of the test that first needs it."""
_MESSAGE_BYTES = 2**20
_NUMBER = 32
_MOST_SECONDS = 300

FORK_MARK = b"# trainctl-node-forks"
"""In the command line of a server and its forks."""
_SERVE = r"""\
# trainctl-node-forks
import array, gc, json, select, signal, socket
import trainctl.node.__main__ as program
from trainctl.base.system.bytecode import is_valid_bytecode

sha256 = sys.argv[2]

for verbs in program._ALL_METHODS:
    for verb in verbs:
        program.load(verb)
os.fsync = lambda fd: None  # a process that is killed loses nothing that it wrote
gc.collect()
gc.freeze()
lines = {}
reader, writer = os.pipe()
os.set_blocking(writer, False)
signal.set_wakeup_fd(writer)
signal.signal(signal.SIGCHLD, lambda *_: None)


def check(data):
    data = bytes(data)
    if not is_valid_bytecode(data, sha256) and hashlib.sha256(data).hexdigest() != sha256:
        sys.exit("tests: this is another program than the one that was loaded")


def run(words):
    sys.argv = ["-c", *words[1:]]
    script = words[0].replace("del data\n", "check(data)\ndel data\n")
    try:
        exec(script, {"__name__": "__main__", "check": check})
    except SystemExit as done:
        if done.code and not isinstance(done.code, int):
            raise
        return done.code or 0
    return 0


def become(order, streams):
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
    os.closerange(3, 1024)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["environ"])
    code = run(order["words"])
    sys.stdout.flush()
    os._exit(code)  # without taking apart what was loaded, which would copy all of it


def accept(listening):
    line = listening.accept()[0]
    try:
        data, ancillary, _, _ = line.recvmsg(2**20, socket.CMSG_SPACE(3 * 4))
    except OSError:
        data = b""
    if not data:  # the caller was killed before it sent its order
        line.close()
        return
    streams = array.array("i")
    streams.frombytes(ancillary[0][2][: 3 * streams.itemsize])
    pid = os.fork()
    if pid == 0:
        for held in (listening, *lines.values()):
            held.detach()
        os.setsid()
        send(line, os.getpid())  # not before: the caller may kill the group at once
        line.detach()
        become(json.loads(data), streams)
    for stream in streams:
        os.close(stream)
    lines[pid] = line


def send(line, number):
    try:
        line.send(b"%d" % number)
    except OSError:
        pass  # the caller was killed


def report():
    os.read(reader, 512)
    while lines:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with lines.pop(pid) as line:
            send(line, os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status))


listening = socket.socket(fileno=int(sys.argv[3]))
while True:
    ready = select.select([0, reader, listening], [], [])[0]
    if 0 in ready:
        os._exit(0)
    if reader in ready:
        report()
    if listening in ready:
        accept(listening)
"""


def forked(
    words: Sequence[str],
    program: Path,
    argv: Sequence[str],
    data: bytes,
    environ: Mapping[str, str],
) -> subprocess.CompletedProcess[bytes]:
    """Call a method and wait for its end. Arguments as for ``ForkedPopen``."""
    pipe = subprocess.PIPE
    with ForkedPopen(
        words, program, argv, stdin=pipe, stdout=pipe, stderr=pipe, env=environ
    ) as process:
        try:
            out, err = process.communicate(data, timeout=_MOST_SECONDS)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(argv, process.returncode, out, err)


def _fork(
    address: bytes, words: Sequence[str], environ: Mapping[str, str], streams: Sequence[int]
) -> socket.socket:
    """Start a fork that leads a session; return the connection for its process id and its exit code."""
    order = {"words": [*words], "cwd": str(Path.cwd()), "environ": dict(environ)}
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MESSAGE_BYTES)
    line.connect(address)
    socket.send_fds(line, [json.dumps(order).encode()], [*streams])
    return line


class ServedPopen(subprocess.Popen[Any]):
    """A process that a server forks, as its parent sees one that it started; the server says how it ended."""

    _line: socket.socket | None = None

    def _begin(self, line: socket.socket, pipes: Sequence[int]) -> None:
        """Be the process that answers on the line. ``pipes`` are both ends of each stream, as subprocess has them."""
        self._line = line
        self.pid = int(line.recv(_NUMBER))
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _internal_poll(self, *others: Any, **named: Any) -> int | None:
        if self._line is None:
            return super()._internal_poll(*others, **named)  # type: ignore[misc,no-any-return]
        if self.returncode is None:
            self._line.setblocking(False)
            self._take_code()
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if self._line is None:
            return super()._wait(timeout=timeout)  # type: ignore[misc,no-any-return]
        if self.returncode is None:
            self._line.settimeout(timeout)
            if not self._take_code():
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self.returncode

    def _take_code(self) -> bool:
        assert self._line is not None
        with self._waitpid_lock:  # type: ignore[attr-defined]
            if self.returncode is not None:  # another thread has waited for it
                return True
            try:
                self.returncode = int(self._line.recv(_NUMBER) or -9)
            except (BlockingIOError, TimeoutError):
                return False
        self._line.close()
        return True


class ForkedPopen(ServedPopen):
    """A verb in a fork, which leads a session. ``words`` start the interpreter, as for ``forked``; ``argv`` follows ``-c``."""

    def __init__(
        self, words: Sequence[str], program: Path, argv: Sequence[str], **options: Any
    ) -> None:
        self._address = server(tuple(words), program)
        super().__init__([*argv], **options)

    def _execute_child(self, args: Any, *others: Any) -> None:
        environ = others[5]
        stdin, _, _, stdout, _, stderr = pipes = others[9:15]
        streams = (stdin, stdout, stderr if stderr >= 0 else 2)
        self._begin(_fork(self._address, args, environ, streams), pipes)


class ForkingPopen(ServedPopen):
    """Starts what it is asked to start, but calls of this tree's node program by forks."""

    address: bytes = b""
    """Where the server of this interpreter listens."""

    def _execute_child(self, args: Any, *others: Any) -> None:
        if not _calls_the_node(args):
            super()._execute_child(args, *others)  # type: ignore[misc]
            return
        sys.audit("subprocess.Popen", args[0], args, None, None)
        stdin, _, _, stdout, _, stderr = pipes = others[9:15]
        streams = (stdin, stdout, stderr)
        line = _fork(self.address, args[4:], os.environ, streams)
        self._begin(line, pipes)


def _calls_the_node(args: Any) -> bool:
    words = [*args]
    if words[:4] != [sys.executable, "-I", "-S", "-c"]:
        return False
    if words[4] == RUN:
        return bool(words[6] == node_archive().sha256)
    return bool(words[4] == VISIT)


@functools.cache
def server(words: tuple[str, ...], program: Path) -> bytes:
    """Where the server for this interpreter listens. It ends with this process."""
    address = b"\0trainctl-node-forks-" + os.urandom(12).hex().encode()
    load, _, _ = RUN.rpartition("sys.exit(main())")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(address)
        listening.listen(64)
        server = subprocess.Popen(
            [*words, "-I", "-S", "-c", load + _SERVE, str(program), node_archive().sha256, str(listening.fileno())],
            cwd="/",
            env=_STARTED_WITH,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=sys.__stderr__,
            start_new_session=True,
            pass_fds=[listening.fileno()],
        )  # fmt: skip
    AT_END.callback(server.communicate)  # it ends with its standard input
    return address


@functools.cache
def installed_program(python: str) -> Path:
    """The node program as an agent installs it, once for all nodes of this process, readable by every user."""
    folder = Path(tempfile.mkdtemp(prefix="trainctl-test-program-"))
    AT_END.callback(shutil.rmtree, folder, ignore_errors=True)
    program, archive = folder / "program.pyz", node_archive()
    words = [str(program), archive.sha256, str(len(archive.data))]
    argv = [python, "-I", "-S", "-c", INSTALL, *words]
    subprocess.run(argv, input=zlib.compress(archive.data, 0), check=True)
    for path in folder.iterdir():
        path.chmod(0o644)
    folder.chmod(0o755)
    return program
