"""A user who logs in to real sshds."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from tests.support.machines.sshd import Sshd, SshUser, sshd
from trainctl_ssh.connection import SshHost
from trainctl_ssh.hosts import SshLogin
from trainctl_ssh.openssh_connection import OpenSshConnection


class Lab:
    """A user, hosts, and links that are closed."""

    def __init__(self, place: Path, stack: ExitStack) -> None:
        self.place = place
        self.user = SshUser(place / "user")
        self.stack = stack
        self.questions: list[str] = []
        self.answer = False

    def host(self, *lines: str, name: str = "gpu", known: bool = True, **options: object) -> Sshd:
        """One more sshd."""
        created = self.stack.enter_context(sshd(self.place / name, self.user, *lines, **options))  # type: ignore[arg-type]
        if known:
            with self.user.known_hosts.open("a") as file:
                file.write(created.known)
        return created

    def link(self, host: Sshd | None = None, **changes: object) -> SshHost:
        where = {"address": host.address, "port": host.port} if host else {}
        login = SshLogin(**{**where, **changes})  # type: ignore[arg-type]
        link = SshHost(OpenSshConnection, login, "lab/gpu", self._confirm)
        self.stack.callback(link.close)
        return link

    def says(self, link: SshHost, *words: str) -> str:
        output = link.transport().run(words or ("echo", "here"))
        return (output.stdout + output.stderr).decode()

    def _confirm(self, question: str) -> bool:
        self.questions.append(question)
        return self.answer
