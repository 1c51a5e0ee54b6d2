"""``~/.ssh/config`` for paramiko: the settings that ssh itself has, or an error with the line."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.cases import cases
from trainctl.errors import NodeUnreachable
from trainctl_ssh.hosts import SshLogin
from trainctl_ssh.ssh_config import proxy_of, read_ssh_config


@pytest.mark.skipif(shutil.which("ssh") is None, reason="needs ssh")
@pytest.mark.parametrize("case", cases("ssh_config"))
def test_settings_are_those_of_ssh(case: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(case["config"].replace("{D}", str(tmp_path)))
    (tmp_path / "more").mkdir()
    (tmp_path / "more/one").write_text(case.get("more", ""))
    if "refused" in case:
        with pytest.raises(NodeUnreachable) as error:
            read_ssh_config(path, SshLogin("gpu"))
        assert case["refused"].replace("{D}", str(tmp_path)) in error.value.summary
        return
    found = read_ssh_config(path, SshLogin("gpu"))
    command = ["ssh", "-G", "-F", str(path), "gpu"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    expected = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    proxies = [item for item in expected.items() if item[0] in ("proxyjump", "proxycommand")]
    assert proxy_of(found) == (*proxies, ("", ""))[0]
    for key in ("hostname", "port", "user", "identityfile"):
        default = [expected[key]] if key == "identityfile" else expected[key]
        assert found.get(key, default) == default, key


def test_values_of_the_manifest_come_first(tmp_path: Path) -> None:
    """Also where the configuration asks for them, as they do as options of ssh."""
    path = tmp_path / "config"
    path.write_text("Host gpu\n  User bob\nMatch user ada\n  Port 7\nProxyCommand nc %r\n")
    found = read_ssh_config(path, SshLogin("gpu", user="ada", jump="b"))
    assert (found["user"], found["port"]) == ("ada", "7")
    assert proxy_of(found) == ("proxyjump", "b")
