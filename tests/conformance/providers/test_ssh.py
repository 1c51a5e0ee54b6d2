"""The ssh provider and its transports against the suites, over real sshds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.support.machines.sshd import Sshd, SshUser, make_key, require_sshd, sshd
from tests.support.tiers import one_day_in
from trainctl.errors import NodeUnreachable
from trainctl.plugin_api.provider import ClusterSettings, Transport, never_confirm
from trainctl.testing.provider import ProviderConformance
from trainctl.testing.session import SessionConformance
from trainctl.testing.transport import TransportConformance
from trainctl_ssh import SshProvider
from trainctl_ssh.hosts import SshLogin
from trainctl_ssh.paramiko_connection import ParamikoConnection


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where everything of this module is."""
    require_sshd()
    return tmp_path_factory.mktemp("ssh")


@pytest.fixture(scope="module")
def user(place: Path) -> SshUser:
    """Who logs in."""
    return SshUser(place / "user")


@pytest.fixture(scope="module")
def hosts(place: Path, user: SshUser) -> Iterator[list[Sshd]]:
    """Two hosts that the user knows."""
    with ExitStack() as stack:
        found = [
            stack.enter_context(
                sshd(place / f"gpu-{number}", user, address=f"127.0.0.{number + 2}")
            )
            for number in range(2)
        ]
        user.known_hosts.write_text("".join(host.known for host in found))
        yield found


@pytest.fixture(scope="module")
def provider(user: SshUser) -> Iterator[SshProvider]:
    """One provider for all tests, with its connections, as a command has; closed at the end."""
    with pytest.MonkeyPatch.context() as monkeypatch, closing(SshProvider()) as provider:
        user.become(monkeypatch)
        yield provider


@pytest.fixture
def cluster(hosts: list[Sshd]) -> ClusterSettings:
    """Two hosts."""
    return ClusterSettings("lab", {"hosts": [host.settings for host in hosts]})


class TestSshProvider(ProviderConformance):
    """The suite for providers."""

    @pytest.fixture
    def provider(self, provider: SshProvider) -> SshProvider:
        """An ssh provider."""
        return provider

    @pytest.fixture
    def cluster(self, cluster: ClusterSettings) -> ClusterSettings:
        """Two hosts."""
        return cluster


@pytest.fixture
def openssh(provider: SshProvider, cluster: ClusterSettings) -> Iterator[Transport]:
    """A transport to the first host, over the system's ssh."""
    transport = provider.transport(provider.plan(cluster)[0])
    yield transport
    transport.close()


@pytest.fixture
def paramiko(
    user: SshUser, hosts: list[Sshd], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Transport]:
    """A transport to the first host where there is no ssh program, for a user whose home has the configuration."""
    user.become(monkeypatch)
    monkeypatch.setenv("HOME", str(user.place))
    link = ParamikoConnection(
        SshLogin(hosts[0].address, port=hosts[0].port), "lab/gpu-0", {}, never_confirm
    )
    transport = link.transport()
    yield transport
    transport.close()
    link.close()


class TestOpenSsh(TransportConformance):
    """The suite for transports, over the system's ssh."""

    @pytest.fixture
    def transport(self, openssh: Transport) -> Transport:
        """A transport to the first host."""
        return openssh


@one_day_in(4)
class TestParamiko(TransportConformance):
    """The suite for transports, where there is no ssh program."""

    @pytest.fixture
    def transport(self, paramiko: Transport) -> Transport:
        """A transport to the first host."""
        return paramiko


class TestOpenSshSessions(SessionConformance):
    """The suite for sessions, over the system's ssh."""

    @pytest.fixture
    def transport(self, openssh: Transport) -> Transport:
        """A transport to the first host."""
        return openssh


@one_day_in(4)
class TestParamikoSessions(SessionConformance):
    """The suite for sessions, where there is no ssh program."""

    @pytest.fixture
    def transport(self, paramiko: Transport) -> Transport:
        """A transport to the first host."""
        return paramiko


@pytest.mark.parametrize("program", ["openssh", "paramiko"])
@pytest.mark.parametrize("pinned", ["own", "another", "another-type"])
def test_a_host_shows_its_pinned_key_or_is_left(
    program: str,
    pinned: str,
    user: SshUser,
    hosts: list[Sshd],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pin of whatever type decides, though the host is in the user's known hosts."""
    user.become(monkeypatch)
    monkeypatch.setenv("HOME", str(user.place))
    kind = "ecdsa" if pinned == "another-type" else "ed25519"
    key = hosts[0].host_key if pinned == "own" else make_key(tmp_path / "other", kind)
    with ExitStack() as stack:
        transport = stack.enter_context(closing(_pinned(program, hosts[0], key, stack)))
        if pinned == "own":
            assert _says(transport, "echo yes") == b"yes\n"
            return
        with pytest.raises(NodeUnreachable) as refusal:
            _says(transport, "echo yes")
        assert refusal.value.code == "ssh-key-changed"


def _pinned(program: str, host: Sshd, key: str, stack: ExitStack) -> Transport:
    if program == "openssh":
        provider = SshProvider()
        stack.callback(provider.close)
        cluster = ClusterSettings("lab", {"hosts": [{**host.settings, "host_key": key}]})
        return provider.transport(provider.plan(cluster)[0])
    link = ParamikoConnection(
        SshLogin(host.address, port=host.port, host_key=key), "lab/gpu-0", {}, never_confirm
    )
    stack.callback(link.close)
    return link.transport()


def _says(transport: Transport, command: str) -> bytes:
    return transport.run(["sh", "-c", command]).stdout
