"""Sessions that lose their operator, and what has to live on without either."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.machines.sshd import Sshd, SshUser, require_sshd, sshd
from tests.support.node_program.nodes import NodeHarness, is_alive, wait_for
from trainctl.base.protocol.method import untyped_method
from trainctl.plugin_api.provider import Node
from trainctl.remote.agent import NodeAgent
from trainctl.remote.session import NodeSessions
from trainctl_local import LocalTransport

LINKS = {
    "local": "LocalTransport()",
    "openssh": "OpenSshConnection(login, 'lab/gpu', dict(os.environ), lambda _: False).transport()",
    "paramiko": "ParamikoConnection(login, 'lab/gpu', dict(os.environ), lambda _: False).transport()",
}
PROGRAM = """
    import os, sys
    from pathlib import Path
    from trainctl.base.protocol.method import untyped_method
    from trainctl.remote.agent import NodeAgent
    from trainctl.plugin_api.provider import Node
    from trainctl.testing.session import program
    from trainctl_local import LocalTransport
    from trainctl_ssh.hosts import SshLogin
    from trainctl_ssh.openssh_connection import OpenSshConnection
    from trainctl_ssh.paramiko_connection import ParamikoConnection
    login = SshLogin({address!r}, port={port})
    node = Node("lab", "gpu", "gpu", {root!r}, {root!r}, sys.executable, key="made")
    def told(event):
        Path({mark!r} + ".new").write_text(" ".join(str(pid) for pid in event.values()))
        Path({mark!r} + ".new").rename({mark!r})
    NodeAgent(node, {link}, archive=program()).call(untyped_method("forever"), {{}}, on_event=told)
"""


@pytest.fixture
def user(tmp_path: Path) -> SshUser:
    """Who logs in."""
    require_sshd()
    return SshUser(tmp_path / "user")


@pytest.fixture
def host(tmp_path: Path, user: SshUser) -> Iterator[Sshd]:
    """A host that the user knows."""
    with sshd(tmp_path / "gpu", user) as found:
        user.known_hosts.write_text(found.known)
        yield found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("link", LINKS)
def test_nothing_is_left_when_the_client_has_ended(
    link: str, number: int, user: SshUser, host: Sshd, tmp_path: Path
) -> None:
    """Neither the session, nor its call with what that had started, nor the connection."""
    mark = tmp_path / "pids"
    program = PROGRAM.format(
        address=host.address,
        port=host.port,
        root=str(tmp_path / "root"),
        mark=str(mark),
        link=LINKS[link],
    )
    environment = {**os.environ, **user.environment, "HOME": str(user.place)}
    words = [sys.executable, "-c", textwrap.dedent(program)]
    with (
        (tmp_path / "said").open("wb") as said,
        subprocess.Popen(words, stderr=said, env=environment) as process,
    ):
        wait_for(lambda: mark.exists() or process.poll() is not None, 60)
        process.send_signal(number)

    assert mark.exists(), (tmp_path / "said").read_text()
    pids = [int(pid) for pid in mark.read_text().split()]
    assert len(pids) == 3
    assert wait_for(lambda: not any(map(is_alive, pids)), 60)
    assert wait_for(lambda: not host.connections(), 60)


def test_what_lives_on_holds_nothing_of_the_session(tmp_path: Path) -> None:
    """A run goes on when the session is gone, none of the session's pipes was open in its processes, and it loads its own modules still."""
    made = NodeHarness(tmp_path)
    made.upload_code({"nothing.txt": ""})
    node = Node("lab", "gpu", "local", str(made.root), str(made.data), made.python, key="made")
    transport = LocalTransport()
    sessions = NodeSessions(transport)
    agent = NodeAgent(node, transport, sessions=sessions)
    spec = made.spec("while ! test -e go; do sleep 0.1; done; echo done")
    request = {"root": str(made.root), **made.start_request(spec)}
    try:
        status = agent.call(untyped_method("start"), request)
        session = _session(os.getpid())
        open_there = {path.readlink().name for path in Path(f"/proc/{session}/fd").iterdir()}
        supervisor = json.loads(next(made.directory().glob("claim.*")).read_text())["pid"]
        held = {path.readlink().name for path in Path(f"/proc/{supervisor}/fd").iterdir()}
        sessions.end()
        sessions.wait(time.monotonic() + 30)

        assert status["status"] == "TRAINING_JOB_RUNNING"
        assert {name.partition(":")[0] for name in open_there} >= {"pipe", "memfd"}
        assert {name.partition(":")[0] for name in held & open_there} == {"memfd"}
        assert wait_for(lambda: not is_alive(session))
        (made.directory() / "work" / "go").touch()
        assert made.ended()["status"] == "TRAINING_JOB_COMPLETED"
    finally:
        transport.close()
        made.close()


def _session(parent: int) -> int:
    return next(
        pid
        for pid in _below(parent)
        if Path(f"/proc/{pid}/cmdline").read_bytes().endswith(b"session\0")
    )


def _below(parent: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{parent}/task").iterdir():
        found += [int(pid) for pid in (task / "children").read_text().split()]
    return found
