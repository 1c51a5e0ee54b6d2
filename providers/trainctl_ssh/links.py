"""Which implementation of ssh carries commands: the system's own where there is one."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import Protocol

from trainctl.errors import NodeUnreachable
from trainctl.spi.provider import Confirm
from trainctl.spi.transport import Transport
from trainctl_ssh.hosts import Login
from trainctl_ssh.openssh import OpenSsh


class Link(Protocol):
    """A connection to one host, made when it is first needed and shared by transports; safe to use from many threads."""

    def transport(self) -> Transport:
        """A way to run programs over it."""
        ...

    def close(self) -> None:
        """Let go of the connection."""
        ...


def open_link(login: Login, who: str, environ: Mapping[str, str], confirm: Confirm) -> Link:
    """A link to a host; ``who`` names it in errors. Connects to nothing yet."""
    if shutil.which("ssh", path=environ.get("PATH")):
        return OpenSsh(login, who, environ, confirm)
    try:
        from trainctl_ssh.pure import Paramiko  # a tenth of a second, and rarely wanted
    except ImportError:
        raise NodeUnreachable(
            "there is no ssh program",
            "Install OpenSSH's client, or the package's own: pip install 'trainctl[ssh]'.",
            code="ssh-no-client",
        ) from None
    return Paramiko(login, who, environ, confirm)
