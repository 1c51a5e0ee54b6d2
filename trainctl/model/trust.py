"""May this secret go to this host? What the user allows manifests to do with credentials, and the limits on what they may ask for.

A manifest may come from a stranger. A secret may be sent to the platform of a source's scheme and to servers that the environment
names; to one that only the manifest names, only if an entry of the user's trust file says so.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from urllib.parse import urlsplit

from trainctl.errors import PermissionDenied

ALL_SECRETS = "*"
"""Of an entry: every secret."""


@dataclass(frozen=True, slots=True)
class HostPattern:
    """A server's name in lower case, or ``*.`` and a domain for all names below it; ``port`` None is any port."""

    name: str
    port: int | None = None

    @classmethod
    def parse(cls, text: str) -> HostPattern:
        """Of ``example.com``, ``*.example.com``, ``127.0.0.1:8443`` or ``[::1]:8443``; ValueError where it is none of these."""
        parts = urlsplit(f"//{text}")
        name = parts.hostname or ""
        bare = name.removeprefix("*.")
        if (
            parts.path
            or parts.query
            or parts.fragment
            or "@" in parts.netloc
            or not bare
            or "*" in bare
            or not (bare.isascii() and bare.isprintable())
            or set(bare) & set(" ,;/\\")
        ):
            raise ValueError(text)
        return cls(name.rstrip("."), parts.port)

    def covers(self, other: HostPattern) -> bool:
        """Whether an entry for this host speaks of the other, which is one server."""
        if self.port not in (None, other.port):
            return False
        if self.name.startswith("*."):
            return other.name.endswith(self.name[1:])
        return other.name == self.name

    def __str__(self) -> str:
        name = f"[{self.name}]" if ":" in self.name else self.name
        return name if self.port in (None, *_PORTS.values()) else f"{name}:{self.port}"


_PORTS = {"https": 443, "http": 80}


def host_of_url(url: str) -> HostPattern:
    """The server that a URL names, with its port; the whole text, which no entry covers, where it names none."""
    try:
        parts = urlsplit(url)
        name, port = (parts.hostname or "").rstrip("."), parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return HostPattern(url)
    return HostPattern(name, port) if name else HostPattern(url)


@dataclass(frozen=True, slots=True)
class SecretDestination:
    """A server that would receive a secret. ``given`` says that its platform or the environment names it, not only the manifest."""

    host: HostPattern
    given: bool = False


@dataclass(frozen=True, slots=True)
class AllowEntry:
    """One entry: what a secret of that name may do. ``commands`` True is any command, else those written out."""

    secret: str
    hosts: tuple[HostPattern, ...] = ()
    commands: bool | tuple[tuple[str, ...], ...] = False
    allow_paths_outside_project: bool = False


@dataclass(frozen=True, slots=True)
class PlanPolicy:
    """A limit that every plan must keep; None is no limit. Patterns are shell-style. ``where`` says where it is written."""

    where: str
    name: str | None = None
    max_hourly_cost: float | None = None
    providers: tuple[str, ...] | None = None
    regions: tuple[str, ...] | None = None
    sources: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Trust:
    """What the user allows. ``file`` is where to allow more."""

    file: str
    allowed: tuple[AllowEntry, ...] = ()
    policies: tuple[PlanPolicy, ...] = ()

    def may_send(self, secret: str, to: SecretDestination) -> bool:
        """Whether a secret may be sent to a server."""
        return to.given or any(
            host.covers(to.host) for entry in self._of(secret) for host in entry.hosts
        )

    def may_run(self, secret: str, command: tuple[str, ...], *, own: bool) -> bool:
        """Whether a command may be run for a secret's value. ``own`` says that its program came with the manifest.

        An entry that spells a command out doesn't cover such a program, as the manifest's author writes that, too.
        """
        return any(
            entry.commands is True or (not own and entry.commands and command in entry.commands)
            for entry in self._of(secret)
        )

    def may_read_outside(self, secret: str) -> bool:
        """Whether a secret may come from a file outside the manifest's directory."""
        return any(entry.allow_paths_outside_project for entry in self._of(secret))

    def require_host(self, secret: str, to: SecretDestination) -> None:
        """Forbidden unless a secret may be sent to a server."""
        hosts = f'hosts = ["{to.host}"]'
        if not self.may_send(secret, to):
            raise PermissionDenied(
                f"secret {secret!r} is not sent to {to.host}: only the manifest names this host",
                f"If this server may receive the secret, {self._advice(secret, hosts)}",
                code="untrusted-host",
            )

    def require_command(self, secret: str, command: tuple[str, ...], *, own: bool) -> None:
        """Forbidden unless a command may be run for a secret's value."""
        if not self.may_run(secret, command, own=own):
            written = "true" if own else json.dumps([list(command)], ensure_ascii=False)
            advice = self._advice(secret, f"commands = {written}")
            raise PermissionDenied(
                f"secret {secret!r}: its command is not run, because only the manifest names it",
                f"If you trust the command, {advice}",
                code="untrusted-command",
            )

    def require_outside(self, secret: str) -> None:
        """Forbidden unless a secret may come from a file outside the manifest's directory."""
        if not self.may_read_outside(secret):
            raise PermissionDenied(
                f"secret {secret!r} reads a file outside the manifest's directory",
                f"Store the file next to the manifest (and exclude it from git), or use the environment: {{from: env}}. To allow the file, {self._advice(secret, 'allow_paths_outside_project = true')}",
                code="secret-outside-project",
            )

    def _of(self, secret: str) -> list[AllowEntry]:
        return [entry for entry in self.allowed if entry.secret in (ALL_SECRETS, secret)]

    def _advice(self, secret: str, more: str) -> str:
        return f'add to {self.file}:\n\n    [[allow]]\n    secret = "{secret}"\n    {more}'


def default_trust() -> Trust:
    """The trust without a trust file."""
    return Trust("trust.toml")
