"""Hosts: paths on them, their nodes, invalid responses; what a cluster of hosts may declare."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from tests.support.cases import by_text
from tests.support.projects.manifests import schema_of
from trainctl.desired.build import build
from trainctl.errors import ManifestError, NodeError, NodeUnreachable
from trainctl.manifest.read import read
from trainctl.model.diagnostics import Diagnostic
from trainctl.plugin_api.provider import (
    ClusterSettings,
    CommandOutput,
    Node,
    ResourceStatus,
    Transport,
    never_confirm,
)
from trainctl_local import LocalTransport
from trainctl_ssh import SshProvider, hosts
from trainctl_ssh.connection import SshHost
from trainctl_ssh.hosts import SshLogin, find_host_paths, find_presence, schema
from trainctl_ssh.openssh_connection import OpenSshConnection

PATH_LINES = b"home\t/home/u\npython\t/usr/bin/python3\n"
FAKE_PYTHON = """\
#!/bin/sh
exec {python} -I -c "import sys; sys.version_info = ({version}); exec(sys.argv.pop(1))" "$3" "$4"
"""


class Scripted:
    """A transport that returns prepared responses, one after the other."""

    def __init__(self, *responses: bytes) -> None:
        self._responses = iter(responses)

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: Iterable[bytes] = (),
        on_stdout: Callable[[bytes], None] | None = None,
        timeout: float | None = None,
    ) -> CommandOutput:
        return CommandOutput(0, next(self._responses), b"printed on stderr")

    def expose(self, port: int) -> AbstractContextManager[int]:
        return nullcontext(port)

    def close(self) -> None:
        pass


_: type[Transport] = Scripted


@pytest.fixture
def python3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Any]]:
    """Paths found by a real shell on a host where ``python3`` has this version."""
    (tmp_path / "sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(hosts, "_CANDIDATES", ("python2", "python3"))

    def find(version: str) -> dict[str, Any]:
        python = tmp_path / "python3"
        python.write_text(FAKE_PYTHON.format(python=sys.executable, version=version))
        python.chmod(0o755)
        return find_host_paths(LocalTransport(), Node("lab", "gpu-1"))

    return find


@pytest.mark.parametrize("version", ["3, 8, 0", "3, 11, 7"])
def test_a_supported_python_is_used(python3: Callable[[str], dict[str, Any]], version: str) -> None:
    assert python3(version)["python"] == sys.executable


def test_an_older_python_is_an_error_that_names_it(
    python3: Callable[[str], dict[str, Any]],
) -> None:
    with pytest.raises(NodeError, match=r"lab/gpu-1 has no Python 3\.8 or newer") as raised:
        python3("3, 7, 17")
    assert "python3 is 3.7.17" in raised.value.detail


@pytest.mark.parametrize(
    ("directory", "root", "data"),
    [
        ("", "/home/u/.cache/trainctl", "/home/u/.local/share/trainctl"),
        ("~/x/", "/home/u/x", "/home/u/x/data"),
        ("/nvme/x", "/nvme/x", "/nvme/x/data"),
    ],
)
def test_a_declared_directory_has_root_and_data(directory: str, root: str, data: str) -> None:
    paths = find_host_paths(Scripted(PATH_LINES), Node("lab", "gpu-1"), directory)
    assert (paths["root"], paths["data"]) == (root, data)


@pytest.mark.parametrize(
    "status", [ResourceStatus.PRESENT, ResourceStatus.MISSING, ResourceStatus.FORBIDDEN]
)
def test_the_host_reports_the_presence_of_a_node(status: ResourceStatus) -> None:
    assert find_presence(Scripted(f" {status}\n".encode()), "/made/x", "lab/a") is status


def test_an_invalid_response_about_presence_is_an_error() -> None:
    with pytest.raises(NodeError) as caught:
        find_presence(Scripted(b"Welcome!\n"), "/made/x", "lab/a")

    assert caught.value.summary == "lab/a cannot inspect its files"
    assert "printed on stderr" in caught.value.detail


@pytest.mark.parametrize("is_made", [True, False])
def test_a_node_that_is_deleted_while_it_is_created_is_an_error(
    is_made: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = SshProvider()
    transport = Scripted(PATH_LINES, b'{"made": %s}' % str(is_made).lower().encode())
    monkeypatch.setattr(provider, "transport", lambda node: transport)
    cluster = ClusterSettings("lab", {"provider": "ssh", "hosts": [{"name": "gpu-1"}]})

    if is_made:
        assert provider.create(cluster, "gpu-1", "key").root == "/home/u/.cache/trainctl"
    else:
        with pytest.raises(NodeError, match="deleted by another process"):
            provider.create(cluster, "gpu-1", "key")


def test_a_directory_that_is_not_writable_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = SshProvider()
    transport = Scripted(PATH_LINES, b'{"error": "Permission denied", "path": "/x"}')
    monkeypatch.setattr(provider, "transport", lambda node: transport)

    with pytest.raises(NodeError, match="cannot access /x on lab/gpu-1: Permission denied"):
        provider.create(ClusterSettings("lab", {"hosts": ["gpu-1"]}), "gpu-1", "key")


def test_a_node_is_found_while_other_hosts_are_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it is on no reachable host, any of the others could have it: that is an error."""
    provider, responses = SshProvider(), {"gpu-1": [PATH_LINES, b"present\n"]}

    def transport(node: Node) -> Transport:
        if node.name not in responses:
            raise NodeUnreachable(f"{node.id} timed out")
        return Scripted(responses[node.name].pop(0))

    monkeypatch.setattr(provider, "transport", transport)
    cluster = ClusterSettings("lab", {"hosts": ["gpu-0", "gpu-1"]})

    node = provider.find(cluster, "key")
    assert node is not None
    assert (node.id, node.key) == ("lab/gpu-1", "key")
    responses["gpu-1"] += [PATH_LINES, b"missing\n"]
    with pytest.raises(NodeUnreachable, match="lab/gpu-0 timed out"):
        provider.find(cluster, "key")


KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBQB3o09pUUrVmkM76XCxr3y4GPPjyUICPix+Z3QDjU5"
VALID = Draft202012Validator(schema())
FIELDS = ("name", "address", "user", "identity_file", "jump", "host_key", "python", "dir")


def wrong(directory: Path, hosts: str) -> list[str]:
    """What validation says of a cluster with these hosts."""
    text = f"clusters: {{lab: {{provider: ssh, hosts: {hosts}}}}}\njobs: {{a: {{runtime: {{start_commands: [x]}}}}}}\n"
    (directory / "trainctl.yaml").write_text(text)
    provider = SshProvider()
    try:
        build(
            read(directory),
            provider_schema=lambda name: provider.schema() if name == "ssh" else schema_of(name),
            provider_check=lambda _, cluster: provider.check(cluster),
            providers=["local", "ssh"],
        )
    except ManifestError as failure:
        return [
            f"{diagnostic.summary}. {diagnostic.detail}"
            for diagnostic in failure.diagnostics
            if isinstance(diagnostic, Diagnostic)
        ]
    return []


@pytest.mark.parametrize(("hosts", "text"), by_text("ssh/invalid_hosts"))
def test_what_is_wrong_is_said(tmp_path: Path, hosts: str, text: str) -> None:
    """One error each, that says what to write."""
    result = wrong(tmp_path, hosts)

    assert len(result) == 1, result
    assert text in result[0]


def test_what_is_right_is_not_complained_about(tmp_path: Path) -> None:
    """Names, addresses of both families, and every field."""
    full = (
        f"{{name: gpu-3, address: '2001:db8::1', user: ml, port: 2222, identity_file: '~/.ssh/a key', jump: 'b@h:22,c',"
        f" host_key: {KEY} me@here, python: ~/bin/python, dir: /nvme/x, gpus: 4, price_per_hour: 2.5}}"
    )

    assert (
        wrong(
            tmp_path,
            f"[gpu-1, 10.0.0.2, {full}, {{address: x, dir: /a}}, {{name: y, address: x, dir: /b}}]",
        )
        == []
    )


@given(st.sampled_from(FIELDS), st.text(max_size=30))
def test_a_hostile_value_is_no_option_and_no_second_word(field: str, value: str) -> None:
    """Whatever the schema takes begins with no dash, and has no control character; but for paths and keys, no space."""
    host: dict[str, Any] = {"name": "a", field: value}
    if VALID.is_valid({"hosts": [host]}):
        assert not value.startswith("-")
        assert all(character.isprintable() or ord(character) > 0x7F for character in value)
        if field in ("name", "address", "user", "jump"):
            assert not set(value) & set(" \t\n;|&$`<>(){}*?!'\"\\#~")


@pytest.mark.parametrize("place", ["data", "/proc/none"])
def test_a_hostile_key_pins_no_other_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Each pinned key has a file of its own, also if the user's data can't be written."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / place))
    for key in (KEY, f"{KEY}\n* {KEY}", f"ssh-rsa {KEY.split()[1]}"):
        host = SshHost(OpenSshConnection, SshLogin("a", host_key=key), "lab/a", never_confirm)
        assert host.pin.read_text() == f"trainctl {' '.join(key.split()[:2])}\n"
        assert str(tmp_path) in str(host.pin) or place != "data"
