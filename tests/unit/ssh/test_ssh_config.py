"""``~/.ssh/config`` for paramiko: the settings that ssh itself has, or an error with the line."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.cases import cases
from trainctl.errors import NodeUnreachable
from trainctl_ssh import connection
from trainctl_ssh.hosts import SshLogin
from trainctl_ssh.ssh_config import read_ssh_config


@pytest.mark.skipif(shutil.which("ssh") is None, reason="needs ssh")
@pytest.mark.parametrize("case", cases("ssh_config"))
def test_settings_are_those_of_ssh(case: dict[str, Any], tmp_path: Path) -> None:
    path, own = tmp_path / "config", case.get("options", {})
    path.write_text(case["config"].replace("{D}", str(tmp_path)))
    login = SshLogin("gpu", user=own.get("User", ""), jump=own.get("ProxyJump", ""))
    if "refused" in case:
        with pytest.raises(NodeUnreachable) as error:
            read_ssh_config(path, login)
        assert case["refused"].replace("{D}", str(tmp_path)) in error.value.summary
        return
    config = read_ssh_config(path, login)
    options = (f"-o{name}={value}" for name, value in own.items())
    command = ["ssh", "-G", "-F", str(path), *options, "gpu"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    expected = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    assert expected.keys().isdisjoint(("proxyjump", "proxycommand"))
    for key in ("hostname", "port", "user", "identityfile"):
        default = [expected[key]] if key == "identityfile" else expected[key]
        assert config.get(key, default) == default, key


@pytest.mark.parametrize("line", ["Host x", " ProxyJump gate", "proxycommand none", "Include a"])
def test_hosts_behind_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    """By any proxy of the configuration, and by what isn't read: then few log in at once."""
    (tmp_path / "config").write_text(f"# ProxyJump\n{line}\n")
    monkeypatch.setattr(connection, "_CONFIGURATIONS", (str(tmp_path / "config"),))
    assert connection.has_proxy.__wrapped__() == (line != "Host x")
