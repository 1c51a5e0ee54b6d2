"""The ssh provider and its transports against the suites, over real sshds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.support.machines.sshd import Sshd, SshUser, make_key, require_sshd, sshds
from trainctl.errors import NodeUnreachable
from trainctl.plugin_api.provider import ClusterSettings, Transport, never_confirm
from trainctl.testing.provider import ProviderConformance
from trainctl.testing.session import SessionConformance
from trainctl.testing.transport import TransportConformance
from trainctl_ssh import SshProvider
from trainctl_ssh.connection import SshHost
from trainctl_ssh.hosts import SshLogin
from trainctl_ssh.paramiko_connection import ParamikoConnection


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshUser]:
    """This process is the user's; paramiko reads the configuration below HOME."""
    require_sshd()
    with pytest.MonkeyPatch.context() as monkeypatch:
        user = SshUser(tmp_path_factory.mktemp("ssh") / "user")
        user.become(monkeypatch)
        monkeypatch.setenv("HOME", str(user.place))
        yield user


@pytest.fixture(scope="module")
def hosts(user: SshUser) -> Iterator[list[Sshd]]:
    """Two hosts that the user knows."""
    with sshds(user.place.parent, user, 2) as hosts:
        user.known_hosts.write_text("".join(host.known for host in hosts))
        yield hosts


@pytest.fixture(scope="module")
def provider(user: SshUser) -> Iterator[SshProvider]:
    """One provider for all tests, with its connections, as a command has; closed at the end."""
    with closing(SshProvider()) as provider:
        yield provider


@pytest.fixture
def cluster(hosts: list[Sshd]) -> ClusterSettings:
    return ClusterSettings("lab", {"hosts": [host.settings for host in hosts]})


class TestSshProvider(ProviderConformance):
    """The suite for providers."""

    @pytest.fixture
    def provider(self, provider: SshProvider) -> SshProvider:
        return provider

    @pytest.fixture
    def cluster(self, cluster: ClusterSettings) -> ClusterSettings:
        return cluster


class OpenSsh:
    """A transport to the first host, over the system's ssh."""

    @pytest.fixture
    def transport(self, provider: SshProvider, cluster: ClusterSettings) -> Iterator[Transport]:
        with closing(provider.transport(provider.plan(cluster)[0])) as transport:
            yield transport


class Paramiko:
    """A transport to the first host, for a machine without an ssh program."""

    @pytest.fixture
    def transport(self, hosts: list[Sshd]) -> Iterator[Transport]:
        login = SshLogin(hosts[0].address, port=hosts[0].port)
        link = SshHost(ParamikoConnection, login, "lab/gpu-0", never_confirm)
        with closing(link), closing(link.transport()) as transport:
            yield transport


class TestOpenSsh(OpenSsh, TransportConformance):
    """The suite for transports, over the system's ssh."""


class TestParamiko(Paramiko, TransportConformance):
    """The suite for transports, without an ssh program."""


class TestOpenSshSessions(OpenSsh, SessionConformance):
    """The suite for sessions, over the system's ssh."""


class TestParamikoSessions(Paramiko, SessionConformance):
    """The suite for sessions, without an ssh program."""


@pytest.mark.parametrize("program", ["openssh", "paramiko"])
@pytest.mark.parametrize("pinned", ["own", "ed25519", "ecdsa", "invalid"])
def test_a_host_is_refused_unless_it_has_its_pinned_key(
    program: str, pinned: str, hosts: list[Sshd], tmp_path: Path
) -> None:
    """A pin of any type decides, although the host is in the user's known hosts; also one that is no key."""
    host = hosts[0]
    key = {"own": host.host_key, "invalid": f"ssh-rsa {host.host_key.split()[1]}"}.get(pinned)
    key = key or make_key(tmp_path / "other", pinned)
    with ExitStack() as stack:
        if program == "openssh":
            provider = stack.enter_context(closing(SshProvider()))
            cluster = ClusterSettings("lab", {"hosts": [{**host.settings, "host_key": key}]})
            transport = provider.transport(provider.plan(cluster)[0])
        else:
            login = SshLogin(host.address, port=host.port, host_key=key)
            link = SshHost(ParamikoConnection, login, "lab/gpu-0", never_confirm)
            transport = stack.enter_context(closing(link)).transport()
        stack.enter_context(closing(transport))
        if pinned == "own":
            assert transport.run(["echo", "yes"]).stdout == b"yes\n"
            return
        with pytest.raises(NodeUnreachable) as refusal:
            transport.run(["echo", "yes"])
        assert refusal.value.code == "ssh-key-changed"
        assert "Set host_key" in refusal.value.detail
