"""User data of machines, and what its scripts do."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from trainctl_ssh.keys import key_pair
from trainctl_ssh.user_data import LOGIN_USER, WATCH_AT_BOOT, user_data


def test_user_data_is_a_small_cloud_config_without_the_login_secret() -> None:
    """EC2 allows 16 KiB."""
    login, host = key_pair(b"l" * 32), key_pair(b"h" * 32)
    text = user_data("ubuntu", login, host, 900)
    config = yaml.safe_load(text)

    assert text.startswith("#cloud-config\n")
    assert len(text) < 8_000
    assert config["ssh_keys"]["ed25519_private"] == host.private
    assert config["ssh_authorized_keys"] == [f"{login.public} trainctl"]
    assert login.private.splitlines()[2] not in text


@pytest.mark.parametrize("user", ["me", LOGIN_USER])
def test_a_machine_without_an_idle_watch_ends_after_the_boot_timeout(
    tmp_path: Path, user: str
) -> None:
    """Though a client has logged in. The login user may be known by its login only."""
    login, host = key_pair(b"l" * 32), key_pair(b"h" * 32)
    config = yaml.safe_load(user_data(user, login, host, 0))
    script = config["bootcmd"][0][2].replace("/var/lib/trainctl", str(tmp_path / "marks"))
    programs = {
        "getent": f'[ "$2" ] && echo "$2:x:1:1::{tmp_path}:/bin/sh"',
        "stat": 'cat "$3"',
        "setsid": '"$@"',
        "shutdown": f"touch {tmp_path}/ended",
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)

    def boot() -> bool:
        environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        (tmp_path / "ended").unlink(missing_ok=True)
        subprocess.run(["sh", "-c", script.replace("&)", ")")], check=True, env=environ)
        return (tmp_path / "ended").exists()

    assert boot()
    (tmp_path / "marks/login").write_text("me")
    assert boot()
    (tmp_path / ".cache/trainctl").mkdir(parents=True)
    (tmp_path / ".cache/trainctl/at_boot").touch()
    assert not boot()
    (tmp_path / ".cache/trainctl/at_boot").unlink()
    (tmp_path / "marks/kept").touch()  # its own shutdown would not end its cost
    assert not boot()


def test_systemd_starts_the_watch_of_a_machine_without_user_data(tmp_path: Path) -> None:
    """As the login user."""
    environ = {**os.environ, "SUDO_USER": "me", "HOME": str(tmp_path)}
    script = WATCH_AT_BOOT.replace("/etc/systemd/system", str(tmp_path))
    subprocess.run(["sh", "-c", script], check=True, env=environ)
    link = tmp_path / "multi-user.target.wants/trainctl.service"
    unit = dict(line.split("=", 1) for line in link.read_text().splitlines() if "=" in line)
    assert unit["User"] == "me"
    (tmp_path / ".cache/trainctl").mkdir(parents=True)
    (tmp_path / ".cache/trainctl/at_boot").write_text("echo watched")
    done = subprocess.run(["sh", "-c", unit["ExecStart"]], env=environ, capture_output=True)
    assert done.stdout == b"watched\n"
