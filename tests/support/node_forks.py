"""Call the node program without starting Python each time: a server has loaded it, and each call is a fork.

The server is started as the product starts the program: the same interpreter and flags, the same packed bytes. A call gets
a process, streams and variables of its own. Use a started process where the start itself, memory or the command line
matters.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from trainctl.remote.archive import node_archive
from trainctl.remote.bootstrap import RUN

_MESSAGE_BYTES = 2**20
_CODE_BYTES = 32

_SERVE = """\
import array, gc, json, select, signal, socket
import trainctl.node.__main__ as program

for verbs in program._KNOWN:
    for verb in verbs:
        program.load(verb)
gc.collect()
gc.freeze()
lines = {}
reader, writer = os.pipe()
os.set_blocking(writer, False)
signal.set_wakeup_fd(writer)
signal.signal(signal.SIGCHLD, lambda *_: None)


def become(order, streams):
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
    os.closerange(3, descriptor)  # which is the program, from which modules are loaded later, too
    os.closerange(descriptor + 1, 1024)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["environ"])
    sys.argv = ["-c", order["verb"]]
    code = main()
    sys.stdout.flush()
    os._exit(code)  # without taking apart what was loaded, which would copy all of it


def accept(listening):
    line = listening.accept()[0]
    data, ancillary, _, _ = line.recvmsg(2**20, socket.CMSG_SPACE(3 * 4))
    streams = array.array("i")
    streams.frombytes(ancillary[0][2][: 3 * streams.itemsize])
    pid = os.fork()
    if pid == 0:
        for held in (line, listening, *lines.values()):
            held.detach()
        become(json.loads(data), streams)
    for stream in streams:
        os.close(stream)
    lines[pid] = line


def report():
    os.read(reader, 512)
    while lines:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with lines.pop(pid) as line:
            try:
                line.send(b"%d" % (os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)))
            except OSError:
                pass


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
    words: Sequence[str], program: Path, verb: str, data: bytes, environ: Mapping[str, str]
) -> subprocess.CompletedProcess[bytes]:
    """Call a verb to its end. ``words`` start the interpreter: what runs it as another user, and its path."""
    order = json.dumps({"verb": verb, "cwd": str(Path.cwd()), "environ": dict(environ)}).encode()
    pipes = [os.pipe() for _ in range(3)]
    (stdin, feed), (out, stdout), (err, stderr) = pipes
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MESSAGE_BYTES)
        line.connect(_server(tuple(words), program))
        socket.send_fds(line, [order], [stdin, stdout, stderr])
        for descriptor in (stdin, stdout, stderr):
            os.close(descriptor)
        with ThreadPoolExecutor(3) as pool:
            fed = pool.submit(_feed, feed, data)
            said = [pool.submit(_read, descriptor) for descriptor in (out, err)]
            code = line.recv(_CODE_BYTES)
            fed.result()
            printed, complained = (future.result() for future in said)
    assert code, "the server of the node program ended"
    return subprocess.CompletedProcess(verb, int(code), printed, complained)


def _feed(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    with suppress(BrokenPipeError), os.fdopen(descriptor, "wb", buffering=0) as stream:
        while rest:
            rest = rest[stream.write(rest) :]


def _read(descriptor: int) -> bytes:
    with os.fdopen(descriptor, "rb") as stream:
        return stream.read()


@functools.cache
def _server(words: tuple[str, ...], program: Path) -> bytes:
    """Where the server for this interpreter listens. It ends with this process."""
    address = b"\0trainctl-node-forks-" + os.urandom(12).hex().encode()
    load, _, _ = RUN.rpartition("sys.exit(main())")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(address)
        listening.listen(64)
        server = subprocess.Popen(
            [*words, "-I", "-S", "-c", load + _SERVE, str(program), node_archive().sha256, str(listening.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=sys.__stderr__,
            start_new_session=True,
            pass_fds=[listening.fileno()],
        )  # fmt: skip
    atexit.register(server.communicate)  # it ends with its standard input
    return address
