"""Logging in to real sshds: as the user's own ssh does, and when it is refused."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.logins import Lab
from tests.support.machines.sshd import Sshd, make_key, require_sshd
from tests.support.node_program.nodes import wait_for
from trainctl.errors import NodeError, NodeUnreachable
from trainctl.plugin_api.provider import ClusterSettings, InteractiveTransport, ResourceStatus
from trainctl_ssh import SshProvider
from trainctl_ssh.connection import SshHost
from trainctl_ssh.hosts import SshLogin
from trainctl_ssh.openssh_connection import OpenSshConnection
from trainctl_ssh.paramiko_connection import ParamikoConnection


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """No host runs yet, and this process is the user's."""
    require_sshd()
    with ExitStack() as stack:
        lab = Lab(tmp_path, stack)
        lab.user.become(monkeypatch)
        yield lab


def refusal(call: Callable[[], object]) -> NodeUnreachable:
    with pytest.raises(NodeUnreachable) as raised:
        call()
    return raised.value


def test_the_first_contact_is_refused_without_a_terminal(lab: Lab) -> None:
    """The error has the fingerprint and both fixes, and no key is stored."""
    host = lab.host(known=False)

    error = refusal(lambda: lab.says(lab.link(host)))

    public = str(host.home.parent / "host_key.pub")
    listed = subprocess.run(["ssh-keygen", "-lf", public], capture_output=True, text=True)
    assert error.code == "ssh-unknown-key"
    assert listed.stdout.split()[1] in error.summary
    assert "host_key" in error.detail
    assert f"ssh-keyscan -p {host.port} {host.address}" in error.detail
    assert not lab.user.known_hosts.exists()


def test_a_confirmed_host_key_is_stored_where_ssh_reads_it(lab: Lab) -> None:
    """The user confirms once. The file keeps its other lines."""
    host = lab.host(known=False)
    lab.user.known_hosts.write_text("other ssh-ed25519 AAAA")
    lab.answer = True

    outputs = [lab.says(lab.link(host)), lab.says(lab.link(host))]

    assert (outputs, len(lab.questions)) == (["here\n", "here\n"], 1)
    assert lab.user.known_hosts.read_text() == f"other ssh-ed25519 AAAA\n{host.known}"


def test_a_changed_key_is_refused(lab: Lab) -> None:
    """The user can't confirm it; the error has the new fingerprint and the place of the old key."""
    host = lab.host(known=False)
    other = make_key(lab.place / "other")
    lab.user.known_hosts.write_text(f"[{host.address}]:{host.port} {other}\n")

    error = refusal(lambda: lab.says(lab.link(host)))

    assert error.code == "ssh-key-changed"
    assert "now SHA256:" in error.summary
    assert f"{lab.user.known_hosts}:1" in error.detail
    assert lab.questions == []


def test_each_refusal_has_its_own_code(lab: Lab) -> None:
    host = lab.host()
    make_key(lab.place / "other")
    lab.user.configure(f"Host {host.address}", "  IdentitiesOnly yes", identity=False)

    denied = refusal(lambda: lab.says(lab.link(host, identity_file=str(lab.place / "other"))))
    closed = refusal(lambda: lab.says(lab.link(host, port=1)))
    unknown = refusal(lambda: lab.says(lab.link(address="no-such-host.invalid")))

    codes = [error.code for error in (denied, closed, unknown)]
    assert codes == ["ssh-permission-denied", "ssh-connection-refused", "ssh-host-not-found"]
    assert all(error.detail and "\n" not in error.summary for error in (denied, closed, unknown))


@pytest.mark.parametrize("pinned", ["own", "other"])
def test_people_log_in_by_the_options_of_a_transport(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, pinned: str
) -> None:
    """To a host with this pinned key only, and by files with any name."""
    host = lab.host(known=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(lab.place / 'my "data" 100%'))
    identity = lab.user.key.rename(lab.place / 'my "own" key')
    key = host.host_key if pinned == "own" else make_key(lab.place / "other")
    transport = lab.link(host, host_key=key, identity_file=str(identity)).transport()
    assert isinstance(transport, InteractiveTransport)

    words = [f"-o{name}={value}" for name, value in transport.ssh_options.items()]
    command = ["ssh", "-oBatchMode=yes", *words, "any-name", "echo here"]
    done = subprocess.run(command, capture_output=True, text=True)

    assert (done.stdout, done.returncode) == (("here\n", 0) if pinned == "own" else ("", 255))


def test_a_login_that_fails_leaves_no_proxy(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor a jump host: they are children of ssh."""
    monkeypatch.setattr("trainctl_ssh.connection._GREETING_SECONDS", 1)
    proxy = lab.place / "proxy"
    lab.user.configure("Host far", f"  ProxyCommand sh -c 'echo $$ >{proxy}; sleep 600; true'")

    error = refusal(lambda: lab.says(lab.link(address="far", connect_timeout=1)))

    assert error.code == "ssh-timeout"
    wait_for(lambda: not Path(f"/proc/{proxy.read_text().strip()}").exists(), 10)


def test_a_changed_key_is_named_although_the_user_accepts_any(lab: Lab) -> None:
    """The login failed, perhaps as the host is another one."""
    host = lab.host(known=False)
    lab.user.known_hosts.write_text(f"[{host.address}]:{host.port} {make_key(lab.place / 'old')}\n")
    make_key(lab.place / "other")
    accepts = ("Host *", "  StrictHostKeyChecking no", "  IdentitiesOnly yes")
    lab.user.configure(*accepts, identity=False)

    error = refusal(lambda: lab.says(lab.link(host, identity_file=str(lab.place / "other"))))

    assert error.code == "ssh-key-changed"


def test_a_connection_that_is_closed_during_the_first_prompt_is_not_left_open(lab: Lab) -> None:
    host = lab.host(known=False)
    link = lab.link(host)

    def answer(question: str) -> bool:
        link.close()
        return True

    link._confirm = answer
    assert "closed" in refusal(lambda: lab.says(link)).detail
    wait_for(lambda: not host.connections(), 10)


def open_connection(lab: Lab, host: Sshd) -> subprocess.Popen[bytes]:
    """A connection of the user's own, which others may share."""
    socket = lab.place / "mine"
    lab.user.configure(f"Host {host.address}", f"  ControlPath {socket}")
    words = ["ssh", "-N", "-M", "-p", str(host.port), host.address]
    master = subprocess.Popen(words, stdin=subprocess.DEVNULL)
    lab.stack.callback(master.wait)
    lab.stack.callback(master.terminate)
    wait_for(socket.exists)
    return master


def test_a_pinned_key_is_verified_despite_an_open_connection(lab: Lab) -> None:
    """The host key that opened the user's own connection is unknown."""
    host = lab.host()
    open_connection(lab, host)

    assert lab.says(lab.link(host, host_key=host.host_key)) == "here\n"
    error = refusal(lambda: lab.says(lab.link(host, host_key=make_key(lab.place / "other"))))
    assert error.code == "ssh-key-changed"


def test_an_open_connection_of_the_user_is_used_and_left_open(lab: Lab) -> None:
    """Also when another login would be refused."""
    host = lab.host()
    master = open_connection(lab, host)
    (host.home.parent / "authorized_keys").write_text("")

    link = lab.link(host)
    output = lab.says(link)
    link.close()

    assert output == "here\n"
    assert len(host.connections()) == 1
    assert master.poll() is None
    check = ["ssh", "-O", "check", "-p", str(host.port), host.address]
    assert subprocess.run(check, capture_output=True).returncode == 0


def test_all_commands_share_one_connection_which_is_closed(lab: Lab) -> None:
    host = lab.host()
    link = lab.link(host)

    for _ in range(3):
        lab.says(link)
    connections = len(host.connections())
    connection = link.connection()
    assert isinstance(connection, OpenSshConnection)
    socket = Path(connection.socket)
    existed = socket.is_socket()
    link.close()

    assert (connections, existed) == (1, True)
    assert wait_for(lambda: not host.connections())
    assert not socket.exists()


def test_more_commands_than_a_server_allows_on_one_connection(lab: Lab) -> None:
    transport = lab.link(lab.host("MaxSessions 2")).transport()
    answers: list[str] = []

    def nest(data: bytes) -> None:
        answers.append(data.decode())
        if len(answers) <= 3:
            transport.run(["echo", str(len(answers))], on_stdout=nest)

    transport.run(["echo", "0"], on_stdout=nest)

    assert answers == ["0\n", "1\n", "2\n", "3\n"]


def test_a_lost_connection_is_opened_again(lab: Lab) -> None:
    host = lab.host()
    link = lab.link(host)
    lab.says(link)

    def cut(_: bytes) -> None:
        for pid in host.connections():
            os.kill(pid, 9)

    error = refusal(lambda: link.transport().run(["sh", "-c", "echo x; sleep 60"], on_stdout=cut))

    assert "connection lost" in error.summary
    assert lab.says(link) == "here\n"


def test_settings_of_a_server_that_trainctl_cannot_use_are_reported(lab: Lab) -> None:
    """An account without a shell, with its own words; a server that forwards no ports, with the setting."""
    shellless = lab.host("ForceCommand echo This account is closed.", name="shellless")
    error = refusal(lambda: lab.says(lab.link(shellless)))
    assert (error.code, error.detail) == ("node-unreachable", "This account is closed.")

    link = lab.link(lab.host("AllowTcpForwarding no", address="127.0.0.3"))
    with (
        pytest.raises(NodeError, match="cannot forward a port to lab/gpu") as raised,
        link.transport().expose(1),
    ):
        pass
    assert raised.value.code == "ssh-forwarding"
    assert "AllowTcpForwarding" in raised.value.detail


def test_deleting_a_node_keeps_checkpoints_and_what_another_key_needs(lab: Lab) -> None:
    """With the second key all is deleted but the data directory; before, nothing is."""
    host = lab.host()
    root = lab.place / "root"
    cluster = ClusterSettings("lab", {"hosts": [{**host.settings, "dir": str(root)}]})
    provider = SshProvider()
    lab.stack.callback(provider.close)
    first, second = (provider.create(cluster, "gpu", key) for key in ("one", "two"))
    (root / "data" / "checkpoints").mkdir(parents=True)
    (root / "cache" / "blobs").mkdir(parents=True)
    (root / "cache" / "blobs" / "x").write_text("x")
    (root / "cache" / "blobs").chmod(0o500)

    provider.delete(first)
    assert provider.read(second) is ResourceStatus.PRESENT
    assert (root / "cache" / "blobs" / "x").exists()
    provider.delete(second)

    assert provider.read(second) is ResourceStatus.MISSING
    assert [path.name for path in root.iterdir()] == ["data"]


def test_without_an_ssh_program_host_keys_are_verified_as_strictly(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused without a terminal, stored after a yes, and refused when another is pinned."""
    monkeypatch.setenv("HOME", str(lab.user.place))
    lab.user.known_hosts = lab.place / "with space" / "known_hosts"
    lab.user.known_hosts.parent.mkdir()
    lab.user.configure(f'UserKnownHostsFile "{lab.user.known_hosts}"')
    host = lab.host(known=False, address="127.0.0.3")

    def says(**changes: object) -> str:
        login = SshLogin(**{"address": host.address, "port": host.port, **changes})  # type: ignore[arg-type]
        link = SshHost(ParamikoConnection, login, "lab/gpu", lab._confirm)
        lab.stack.callback(link.close)
        return link.transport().run(["echo", "here"]).stdout.decode()

    unconfirmed = refusal(says)
    lab.answer = True
    confirmed = says()
    pinned = refusal(lambda: says(host_key=make_key(lab.place / "other")))
    closed = refusal(lambda: says(port=1))
    # standard input, where paramiko would read the second factor, never ends
    read, _ = os.pipe()
    with os.fdopen(read) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        second = lab.host(
            "KbdInteractiveAuthentication yes",
            "AuthenticationMethods publickey,keyboard-interactive",
            name="second",
        )
        denied = refusal(lambda: says(address=second.address, port=second.port))

    assert (unconfirmed.code, "SHA256:" in unconfirmed.summary) == ("ssh-unknown-key", True)
    assert confirmed == says(host_key=host.host_key) == "here\n"
    assert host.known in lab.user.known_hosts.read_text()
    assert (pinned.code, "now SHA256:" in pinned.summary) == ("ssh-key-changed", True)
    assert closed.code == "ssh-connection-refused"
    assert "asks for more than a key" in denied.detail
