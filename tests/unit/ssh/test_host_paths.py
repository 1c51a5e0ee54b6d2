"""Where Python, the root and the data are on a host."""

from __future__ import annotations

import pytest

from tests.unit.ssh.test_nonsense import Scripted
from trainctl.errors import NodeError
from trainctl_ssh.hosts import HostPaths, SshHost, SshLogin, find_host_paths


def paths(version: str, directory: str = "") -> HostPaths:
    """What is found on a host with one Python of this version."""
    answer = f"home\t/home/u\npython\t{version}\t/usr/bin/python3\tpython3\n".encode()
    host = SshHost("gpu-1", SshLogin("gpu-1"), dir=directory)
    return find_host_paths(Scripted(answer), host, "lab/gpu-1")


@pytest.mark.parametrize("version", ["3.8.0", "3.11.7"])
def test_a_supported_python_is_used(version: str) -> None:
    assert paths(version).python == "/usr/bin/python3"


@pytest.mark.parametrize("version", ["2.7.18", "3.7.17"])
def test_an_older_python_is_an_error_that_names_it(version: str) -> None:
    with pytest.raises(NodeError, match=r"lab/gpu-1 has no Python 3\.8 or newer") as raised:
        paths(version)
    assert f"python3 is {version}" in raised.value.detail


@pytest.mark.parametrize(
    ("directory", "root", "data"),
    [
        ("", "/home/u/.cache/trainctl", "/home/u/.local/share/trainctl"),
        ("~/x/", "/home/u/x", "/home/u/x/data"),
        ("/nvme/x", "/nvme/x", "/nvme/x/data"),
    ],
)
def test_a_declared_directory_has_root_and_data(directory: str, root: str, data: str) -> None:
    """An absolute path, or one below the home directory."""
    found = paths("3.11.7", directory)
    assert (found.root, found.data) == (root, data)
