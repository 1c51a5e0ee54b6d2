"""Sessions that lose their operator, and what has to live on without either."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.support.machines.sshd import SshUser, require_sshd, sshd
from tests.support.node_program.nodes import NodeHarness, is_alive, wait_for
from trainctl.base.protocol.method import untyped_method
from trainctl.plugin_api.provider import Node
from trainctl.remote.agent import NodeAgent
from trainctl.remote.session import NodeSessions
from trainctl_local import LocalTransport

LINKS = {
    "local": "LocalTransport()",
    "openssh": "SshHost(OpenSshConnection, login, 'lab/gpu', lambda _: False).transport()",
    "paramiko": "SshHost(ParamikoConnection, login, 'lab/gpu', lambda _: False).transport()",
}
PROGRAM = """
    import sys
    from pathlib import Path
    from trainctl.base.protocol.method import untyped_method
    from trainctl.remote.agent import NodeAgent
    from trainctl.plugin_api.provider import Node
    from trainctl.testing.session import program
    from trainctl_local import LocalTransport
    from trainctl_ssh.connection import SshHost
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("link", LINKS)
def test_nothing_is_left_when_the_client_has_ended(link: str, number: int, tmp_path: Path) -> None:
    """Neither the session, nor its call with what that had started, nor the connection."""
    require_sshd()
    user = SshUser(tmp_path / "user")
    mark = tmp_path / "pids"
    with sshd(tmp_path / "gpu", user) as host:
        user.known_hosts.write_text(host.known)
        program = PROGRAM.format(
            address=host.address, port=host.port, root=str(tmp_path / "root"), mark=str(mark), link=LINKS[link]
        )  # fmt: skip
        environment = {**os.environ, **user.environment, "HOME": str(user.place)}
        words = [sys.executable, "-c", textwrap.dedent(program)]
        errors = tmp_path / "errors"
        with (
            errors.open("wb") as stderr,
            subprocess.Popen(words, stderr=stderr, env=environment) as process,
        ):
            wait_for(lambda: mark.exists() or process.poll() is not None, 60)
            process.send_signal(number)

        assert mark.exists(), errors.read_text()
        pids = [int(pid) for pid in mark.read_text().split()]
        assert len(pids) == 3
        assert wait_for(lambda: not any(map(is_alive, pids)), 60)
        assert wait_for(lambda: not host.connections(), 60)


def test_a_run_continues_without_its_session(tmp_path: Path) -> None:
    """No pipe of the session is open in the run, which loads its own modules from memory: also after the program was removed."""
    harness = NodeHarness(tmp_path)
    harness.upload_code({"nothing.txt": ""})
    root = str(harness.root)
    node = Node("lab", "gpu", "local", root, str(harness.data), harness.python, key="made")
    transport = LocalTransport()
    sessions = NodeSessions(transport)
    agent = NodeAgent(node, transport, sessions=sessions)
    spec = harness.spec("while ! test -e go; do sleep 0.1; done; echo done")
    request = {"root": root, **harness.start_request(spec)}
    try:
        status = agent.call(untyped_method("start"), request)
        session = _session(os.getpid())
        of_session = {path.readlink().name for path in Path(f"/proc/{session}/fd").iterdir()}
        supervisor = json.loads(next(harness.directory().glob("claim.*")).read_text())["pid"]
        of_run = {path.readlink().name for path in Path(f"/proc/{supervisor}/fd").iterdir()}
        sessions.end()
        sessions.wait(time.monotonic() + 60)
        shutil.rmtree(harness.root / "agent")

        assert status["status"] == "TRAINING_JOB_RUNNING"
        assert {name.partition(":")[0] for name in of_session} >= {"pipe"}
        assert not of_run & of_session
        assert wait_for(lambda: not is_alive(session))
        (harness.directory() / "work" / "go").touch()
        assert harness.ended()["status"] == "TRAINING_JOB_COMPLETED"
    finally:
        transport.close()
        harness.close()


def _session(parent: int) -> int:
    for task in Path(f"/proc/{parent}/task").iterdir():
        for pid in (task / "children").read_text().split():
            if Path(f"/proc/{pid}/cmdline").read_bytes().endswith(b"session\0"):
                return int(pid)
    raise AssertionError("no session")
