"""Logging in to real sshds: as the user's own ssh does, and when it is refused."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.logins import Lab
from tests.support.machines.sshd import Sshd, make_key, require_sshd
from tests.support.node_program.nodes import is_alive, wait_for
from tests.support.tiers import one_day_in
from trainctl.errors import NodeError, NodeUnreachable
from trainctl.plugin_api.provider import ClusterSettings, ResourceStatus
from trainctl_ssh import SshProvider
from trainctl_ssh.hosts import SshHost, SshLogin, find_host_paths
from trainctl_ssh.paramiko_connection import ParamikoConnection


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """Nothing runs yet, and this process is the user's."""
    require_sshd()
    with ExitStack() as stack:
        made = Lab(tmp_path, stack)
        made.user.become(monkeypatch)
        yield made


def refused(call: Callable[[], object]) -> NodeUnreachable:
    with pytest.raises(NodeUnreachable) as raised:
        call()
    return raised.value


def test_the_first_contact_is_refused_where_nobody_can_be_asked(lab: Lab) -> None:
    """The error has the fingerprint and both fixes, and nothing is remembered."""
    host = lab.host(known=False)

    error = refused(lambda: lab.says(lab.link(host)))

    listed = subprocess.run(
        ["ssh-keygen", "-lf", str(host.home.parent / "host_key.pub")],
        capture_output=True,
        text=True,
    )
    fingerprint = listed.stdout.split()[1]
    assert error.code == "ssh-unknown-key"
    assert fingerprint in error.summary
    assert "host_key" in error.detail
    assert f"ssh-keyscan -p {host.port} {host.address}" in error.detail
    assert not lab.user.known_hosts.exists()


def test_a_yes_at_the_first_contact_is_remembered(lab: Lab) -> None:
    """It is asked once, and ssh's own file has the key afterwards, with what was in it before."""
    host = lab.host(known=False)
    lab.user.known_hosts.write_text("other ssh-ed25519 AAAA")
    lab.answer = True

    first = lab.says(lab.link(host))
    second = lab.says(lab.link(host))

    assert (first, second, len(lab.questions)) == ("here\n", "here\n", 1)
    assert lab.user.known_hosts.read_text() == f"other ssh-ed25519 AAAA\n{host.known}"


@one_day_in(5)
@pytest.mark.parametrize("named", ['"TOP/a b/kh"', '"TOP/a b/kh" TOP/c "TOP/d e"', "TOP/a/kh.%h"])
def test_what_is_remembered_is_where_ssh_looks(lab: Lab, named: str) -> None:
    """The first of the user's files of known hosts, whatever it is called, has the key afterwards; no other is made."""
    host = lab.host(known=False)
    top = lab.place / "hosts"
    lab.user.configure(f"UserKnownHostsFile {named.replace('TOP', str(top))}")
    lab.answer = True

    assert lab.says(lab.link(host)) == "here\n"
    (made,) = (path for path in top.rglob("*") if path.is_file())
    assert made.read_text() == host.known


def test_a_changed_key_is_refused_with_both_fingerprints(lab: Lab) -> None:
    """And with what to type; nobody is asked."""
    host = lab.host(known=False)
    other = make_key(lab.place / "other")
    lab.user.known_hosts.write_text(f"[{host.address}]:{host.port} {other}\n")

    error = refused(lambda: lab.says(lab.link(host)))

    assert error.code == "ssh-key-changed"
    assert error.summary.count("SHA256:") == 2
    assert "ssh-keygen" in error.detail
    assert lab.questions == []


def test_a_pinned_key_needs_no_known_hosts_and_no_other_will_do(lab: Lab) -> None:
    """The right one connects and leaves no trace in the user's file; another is refused."""
    host = lab.host(known=False)

    said = lab.says(lab.link(host, host_key=host.host_key))
    error = refused(lambda: lab.says(lab.link(host, host_key=make_key(lab.place / "other"))))

    assert said == "here\n"
    assert not lab.user.known_hosts.exists()
    assert error.code == "ssh-key-changed"
    assert error.summary.count("SHA256:") == 2
    assert "host_key" in error.detail


def test_each_refusal_has_its_own_code(lab: Lab) -> None:
    """A wrong key, a wrong port, a name that nobody knows: one line each, and what to do."""
    host = lab.host()
    make_key(lab.place / "other")
    lab.user.configure(f"Host {host.address}", "  IdentitiesOnly yes", identity=False)

    denied = refused(lambda: lab.says(lab.link(host, identity_file=str(lab.place / "other"))))
    closed = refused(lambda: lab.says(lab.link(host, port=1)))
    nameless = refused(lambda: lab.says(lab.link(address="no-such-host.invalid")))

    found = [error.code for error in (denied, closed, nameless)]
    assert found == ["ssh-permission-denied", "ssh-connection-refused", "ssh-host-not-found"]
    assert all(error.detail and "\n" not in error.summary for error in (denied, closed, nameless))


def test_an_alias_in_an_included_file_is_enough(lab: Lab) -> None:
    """Address, port and account come from the user's configuration."""
    host = lab.host()
    (lab.place / "more").write_text(f"Host big\n  HostName {host.address}\n  Port {host.port}\n")
    lab.user.configure(f"Include {lab.place / 'more'}")

    assert lab.says(lab.link(address="big")) == "here\n"


def test_a_jump_host_is_gone_through(lab: Lab) -> None:
    """The host sees a connection that comes from the other one."""
    jump, host = lab.host(name="jump"), lab.host(name="gpu", address="127.0.0.3")
    where = f"{jump.address}:{jump.port}"

    said = lab.says(lab.link(host, jump=where), "sh", "-c", "echo $SSH_CONNECTION")

    assert said.split()[2:] == [host.address, str(host.port)]
    assert len(jump.connections()) == 1


@one_day_in(4)
def test_keys_of_the_agent_are_offered(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any key file in the configuration."""
    host = lab.host()
    socket = lab.place / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.DEVNULL)
    lab.stack.callback(agent.wait)
    lab.stack.callback(agent.terminate)
    wait_for(socket.exists)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
    subprocess.run(["ssh-add", "-q", str(lab.user.key)], check=True)
    lab.user.configure(identity=False)

    assert lab.says(lab.link(host)) == "here\n"


@one_day_in(4)
def test_a_certificate_authority_vouches_for_hosts(lab: Lab) -> None:
    """One line for all hosts of an authority, and no question."""
    place = lab.place / "signed"
    authority = make_key(lab.place / "authority")
    lab.user.known_hosts.write_text(f"@cert-authority [127.0.0.*]:* {authority}\n")
    host = lab.host(f"HostCertificate {place / 'host_key-cert.pub'}", known=False, name="signed")
    sign = [
        "ssh-keygen",
        "-q",
        "-s",
        str(lab.place / "authority"),
        "-I",
        "gpu",
        "-h",
        "-n",
        host.address,
    ]
    subprocess.run([*sign, str(place / "host_key.pub")], check=True)
    host.process.send_signal(1)  # sshd reads its files again

    assert wait_for(lambda: _connected(lab, host)) == "here\n"
    assert lab.questions == []


def _connected(lab: Lab, host: Sshd) -> str | None:
    try:
        return lab.says(lab.link(host))
    except NodeUnreachable:
        return None


def opened(lab: Lab, host: Sshd) -> subprocess.Popen[bytes]:
    """A connection of the user's own, which others may share."""
    socket = lab.place / "mine"
    lab.user.configure(f"Host {host.address}", f"  ControlPath {socket}")
    words = ["ssh", "-N", "-M", "-p", str(host.port), host.address]
    master = subprocess.Popen(words, stdin=subprocess.DEVNULL)
    lab.stack.callback(master.wait)
    lab.stack.callback(master.terminate)
    wait_for(socket.exists)
    return master


@one_day_in(4)
def test_a_pinned_key_is_checked_beside_a_connection_that_is_open(lab: Lab) -> None:
    """Nobody knows by which key the user's own connection was let through."""
    host = lab.host()
    opened(lab, host)

    assert lab.says(lab.link(host, host_key=host.host_key)) == "here\n"
    error = refused(lambda: lab.says(lab.link(host, host_key=make_key(lab.place / "other"))))
    assert error.code == "ssh-key-changed"


@one_day_in(4)
@pytest.mark.parametrize("word", ["StdinNull", "ForkAfterAuthentication"])
def test_configuration_for_commands_that_read_nothing_does_not_matter(lab: Lab, word: str) -> None:
    """``ssh HOST true`` works with it, and so does what talks to a program there."""
    host = lab.host()
    lab.user.configure(f"Host {host.address}", f"  {word} yes")

    assert lab.says(lab.link(host)) == "here\n"


def test_a_connection_that_the_user_has_open_is_used_and_left(lab: Lab) -> None:
    """Even where logging in again would be refused; it is open afterwards."""
    host = lab.host()
    master = opened(lab, host)
    (host.home.parent / "authorized_keys").write_text("")

    link = lab.link(host)
    said = lab.says(link)
    link.close()

    assert said == "here\n"
    assert len(host.connections()) == 1
    assert master.poll() is None
    assert (
        subprocess.run(
            ["ssh", "-O", "check", "-p", str(host.port), host.address], capture_output=True
        ).returncode
        == 0
    )


def test_one_connection_carries_every_command_and_is_closed(lab: Lab) -> None:
    """Commands of many transports share it; afterwards it is gone, and so is its socket."""
    host = lab.host()
    link = lab.link(host)

    for _ in range(3):
        lab.says(link)
    during = len(host.connections())
    socket = Path(link.master().share[1])
    was_there = socket.is_socket()
    link.close()

    assert (during, was_there) == (1, True)
    assert wait_for(lambda: not host.connections())
    assert not socket.exists()


@one_day_in(4)
def test_more_commands_at_once_than_a_server_gives_to_one_connection(lab: Lab) -> None:
    """What it refuses goes over a connection of its own."""
    link = lab.link(lab.host("MaxSessions 2"))
    transport = link.transport()
    answers: list[str] = []

    def speak(data: bytes, depth: int = 3) -> None:
        answers.append(data.decode())
        if len(answers) <= depth:
            transport.run(["echo", str(len(answers))], on_stdout=speak)

    transport.run(["echo", "0"], on_stdout=speak)

    assert answers == ["0\n", "1\n", "2\n", "3\n"]


def test_a_connection_that_was_lost_is_made_again(lab: Lab) -> None:
    """The call at that moment fails as cut off; the next one connects."""
    host = lab.host()
    link = lab.link(host)
    lab.says(link)

    def cut(_: bytes) -> None:
        for pid in host.connections():
            os.kill(pid, 9)

    error = refused(lambda: link.transport().run(["sh", "-c", "echo x; sleep 60"], on_stdout=cut))

    assert "connection lost" in error.summary
    assert lab.says(link) == "here\n"


@one_day_in(4)
def test_start_up_files_that_speak_do_not_matter(lab: Lab) -> None:
    """What a login shell prints on either stream is not the program's."""
    host = lab.host()
    (host.home / ".bashrc").write_text("echo welcome; echo careful >&2\n")
    shown = subprocess.run(["ssh", "-p", str(host.port), host.address, "true"], capture_output=True)

    if b"welcome" not in shown.stdout:
        pytest.skip("needs an account whose login shell reads .bashrc")
    assert lab.says(lab.link(host)) == "here\n"


@one_day_in(4)
def test_an_account_without_a_shell_is_unreachable_and_says_so(lab: Lab) -> None:
    """What it printed instead is the error's detail."""
    host = lab.host("ForceCommand echo This account is closed.")

    error = refused(lambda: lab.says(lab.link(host)))

    assert (error.code, error.detail) == ("node-unreachable", "This account is closed.")


@one_day_in(4)
def test_a_server_that_forwards_no_ports_says_how_to(lab: Lab) -> None:
    """The setting that it needs is named."""
    link = lab.link(lab.host("AllowTcpForwarding no"))

    with pytest.raises(NodeError, match="does not allow port forwarding") as raised, link.expose(1):
        pass

    assert raised.value.code == "ssh-forwarding"
    assert "AllowTcpForwarding" in raised.value.detail


def test_the_first_python_that_will_do_is_found(lab: Lab) -> None:
    """Too old ones are passed over; without any, the error names them and the field."""
    host = lab.host(variables={"PATH": str(lab.place / "bin") + ":/usr/bin:/bin"})
    conda = host.home / "miniconda3" / "bin" / "python"
    conda.parent.mkdir(parents=True)
    conda.symlink_to(sys.executable)
    transport = lab.link(host).transport()

    found = find_host_paths(
        transport, SshHost("gpu", SshLogin("x"), python="~/miniconda3/bin/python"), "lab/gpu"
    )
    with pytest.raises(NodeError, match=r"is not Python 3\.8") as raised:
        find_host_paths(
            transport, SshHost("gpu", SshLogin("x"), python="~/nothing/python"), "lab/gpu"
        )

    assert Path(found.python).is_absolute()
    assert found.root == f"{host.home}/.cache/trainctl"
    assert found.data == f"{host.home}/.local/share/trainctl"
    assert raised.value.code == "unsupported-node-python"


@one_day_in(4)
def test_a_place_that_cant_be_written_is_an_error_that_names_it(lab: Lab) -> None:
    """A home that takes no directory: the error says which, and that another can be named; with that, all is well."""
    host = lab.host()
    (host.home / ".cache").write_text("in the way")
    provider = SshProvider()
    lab.stack.callback(provider.close)

    with pytest.raises(NodeError, match="cannot create node") as raised:
        provider.create(ClusterSettings("lab", {"hosts": [host.settings]}), "gpu", "key")
    other = {**host.settings, "dir": str(lab.place / "elsewhere")}
    node = provider.create(ClusterSettings("lab", {"hosts": [other]}), "gpu", "key")

    assert str(host.home / ".cache") in raised.value.summary
    assert "set dir" in raised.value.detail
    assert (node.root, node.data) == (
        str(lab.place / "elsewhere"),
        str(lab.place / "elsewhere/data"),
    )


def test_removing_a_node_leaves_its_checkpoints_and_what_others_need(lab: Lab) -> None:
    """The second key's end takes everything but the data directory; before, nothing went."""
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
    between = provider.read(second), (root / "cache" / "blobs" / "x").exists()
    provider.delete(second)

    assert between == (ResourceStatus.PRESENT, True)
    assert provider.read(second) is ResourceStatus.MISSING
    assert [path.name for path in root.iterdir()] == ["data"]


@contextmanager
def caller(lab: Lab, host: Sshd, mark: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that runs a program on the host, whose number is then in ``mark``."""
    program = f"""
        import os
        from trainctl_ssh.hosts import SshLogin
        from trainctl_ssh.openssh_connection import OpenSshConnection
        link = OpenSshConnection(SshLogin({host.address!r}, port={host.port}), "lab/gpu", dict(os.environ), lambda _: False)
        link.transport().run(["sh", "-c", "sleep 600 & echo $! > {mark}; wait"])
    """
    words = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(words, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


@one_day_in(2)
@pytest.mark.parametrize("how", [2, 9], ids=["interrupted", "killed"])
def test_nothing_runs_on_when_the_caller_is_gone(lab: Lab, how: int) -> None:
    """After Ctrl-C, and after a kill that nothing could answer: program, connection and socket are gone."""
    host = lab.host()
    mark = lab.place / "pid"
    with caller(lab, host, mark) as process:
        pid = wait_for(lambda: int(mark.read_text() or 0) if mark.exists() else None, 60)
        process.send_signal(how)
        process.wait()

        assert wait_for(lambda: not is_alive(pid), 60)
        assert wait_for(lambda: not host.connections(), 60)


@one_day_in(4)
def test_hosts_are_reached_without_a_directory_for_sockets(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is too long for a socket, or open to others, is not used."""
    long = lab.place / ("x" * 90)
    long.mkdir(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))

    assert lab.says(lab.link(lab.host())) == "here\n"
    assert list(long.iterdir()) == []


@one_day_in(4)
def test_without_an_ssh_program_host_keys_are_kept_as_strictly(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused unasked, remembered after a yes, refused when another is known or pinned; and a jump host is gone through."""
    monkeypatch.setenv("HOME", str(lab.user.place))
    lab.user.known_hosts = lab.place / "with space" / "known_hosts"
    lab.user.known_hosts.parent.mkdir()
    lab.user.configure(f'UserKnownHostsFile "{lab.user.known_hosts}"')
    jump = lab.host(name="jump")
    host = lab.host(known=False, address="127.0.0.3")

    def says(**changes: object) -> str:
        login = SshLogin(**{"address": host.address, "port": host.port, **changes})  # type: ignore[arg-type]
        link = ParamikoConnection(login, "lab/gpu", {}, lab._confirm)
        lab.stack.callback(link.close)
        return link.transport().run(["echo", "here"]).stdout.decode()

    unasked = refused(says)
    lab.answer = True
    find_record = says()
    through = says(jump=f"{jump.address}:{jump.port}", host_key=host.host_key)
    pinned = refused(lambda: says(host_key=make_key(lab.place / "other")))
    closed = refused(lambda: says(port=1))

    assert (unasked.code, "SHA256:" in unasked.summary) == ("ssh-unknown-key", True)
    assert (find_record, through) == ("here\n", "here\n")
    assert lab.user.known_hosts.read_text().endswith(host.known)
    assert (pinned.code, pinned.summary.count("SHA256:")) == ("ssh-key-changed", 2)
    assert closed.code == "ssh-connection-refused"
