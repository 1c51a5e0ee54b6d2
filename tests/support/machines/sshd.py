"""Real sshds on addresses of this machine's loopback, and a user with a configuration of ssh of their own.

ssh looks for its files in the home directory that the system knows, whatever HOME says. So the user's ``ssh`` is a script on
PATH that names another configuration, and is otherwise the system's.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.servers.buckets import free_port
from trainctl.base.json import JsonValue

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"


_CONFIG = """\
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
MaxStartups 100:30:200
"""


def require_sshd() -> None:
    """Skip where sshd or ssh is missing."""
    for program in (SSHD, "ssh", "ssh-keygen"):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program} (Debian: openssh-server, openssh-client)")


def make_key(path: Path, kind: str = "ed25519") -> str:
    """A new key pair; the public half as ``TYPE BASE64``."""
    words = ["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", "", "-f", str(path)]
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
    return " ".join(path.with_suffix(".pub").read_text().split()[:2])


@dataclass
class SshUser:
    """Somebody with keys, known hosts and a configuration of ssh."""

    place: Path
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.place / "bin").mkdir(parents=True)
        self.key = self.place / "id"
        self.public = make_key(self.key)
        (self.place / ".ssh").mkdir()
        self.known_hosts = self.place / "known_hosts"
        self.config = self.place / ".ssh" / "config"
        wrapper = self.place / "bin" / "ssh"
        wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {self.config} "$@"\n')
        wrapper.chmod(0o755)
        self.configure()

    def configure(self, *lines: str, identity: bool = True) -> None:
        """Write the configuration: these lines, then what all tests have."""
        shared = [
            "Host *",
            f"  UserKnownHostsFile {self.known_hosts}",
            "  IdentitiesOnly yes" if identity else "  IdentityFile none",
            *([f"  IdentityFile {self.key}"] if identity else []),
        ]
        self.config.write_text("\n".join([*lines, *shared]) + "\n")

    @property
    def environment(self) -> dict[str, str]:
        """What makes a program this user's."""
        return {"PATH": f"{self.place / 'bin'}:{os.environ['PATH']}"}

    def become(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make this process the user's."""
        for name, value in self.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("XDG_DATA_HOME", str(self.place / "data"))
        monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


@dataclass
class Sshd:
    """One running sshd, for the account that runs the tests; its home directory there is ``home``."""

    address: str
    port: int
    host_key: str
    home: Path
    process: subprocess.Popen[bytes]

    @property
    def settings(self) -> dict[str, JsonValue]:
        """The host in a manifest."""
        return {"name": self.home.parent.name, "address": self.address, "port": self.port}

    @property
    def known(self) -> str:
        """The line of known hosts."""
        return f"[{self.address}]:{self.port} {self.host_key}\n"

    def connections(self) -> list[int]:
        """The processes that serve one connection each."""
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in listed.split()]


@contextmanager
def sshd(
    place: Path,
    user: SshUser,
    *lines: str,
    address: str = "127.0.0.2",
    variables: Mapping[str, str] = {},
) -> Iterator[Sshd]:
    """Run one, with these lines before the others in its configuration."""
    home = place / "home"
    home.mkdir(parents=True)
    host_key = make_key(place / "host_key")
    (place / "authorized_keys").write_text(user.public + "\n")
    with suppress(OSError):  # compiled into sshd; only root has it and needs it
        Path("/run/sshd").mkdir(0o755, exist_ok=True)
    result = {
        "HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        **variables,
    }
    port = free_port(address)
    config = place / "sshd_config"
    settings = " ".join(f'{name}="{value}"' for name, value in result.items())
    own = f"Port {port}\nListenAddress {address}\nHostKey {place / 'host_key'}\nSetEnv {settings}\n"
    own += f"AuthorizedKeysFile {place / 'authorized_keys'}\n"
    config.write_text("\n".join([*lines, own, _CONFIG]))
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(
            [SSHD, "-D", "-e", "-f", str(config)], stdin=subprocess.DEVNULL, stderr=log, start_new_session=True
        )  # fmt: skip
    try:
        _await_banner(address, port, place / "log")
        yield Sshd(address, port, host_key, home, process)
    finally:
        process.terminate()
        process.wait()


@contextmanager
def sshds(place: Path, user: SshUser, count: int, *lines: str) -> Iterator[list[Sshd]]:
    """So many, ``gpu-0`` and on, each at an address of its own and with these lines."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(sshd(place / f"gpu-{n}", user, *lines, address=f"127.0.0.{n + 2}"))
            for n in range(count)
        ]


def _await_banner(address: str, port: int, log: Path) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with suppress(OSError), socket.create_connection((address, port), 5) as client:
            if client.recv(4) == b"SSH-":
                return
        time.sleep(0.02)
    raise AssertionError(f"no sshd at {address}:{port}:\n{log.read_text()}")
