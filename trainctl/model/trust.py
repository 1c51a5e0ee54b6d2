"""Trust: permissions of a manifest to use secrets, and limits on its plans.

Manifests may come from untrusted authors. A secret may be sent to the platform of a source's scheme and to hosts
that the environment names. A host named only in the manifest needs an entry in the user's trust file.
"""

from __future__ import annotations

import json
import os
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import urlsplit

from trainctl.base.lazy_dataclass import dataclass
from trainctl.errors import PermissionDenied

ALL_SECRETS = "*"
"""In an entry: all secrets."""


@dataclass(frozen=True, slots=True)
class HostPattern:
    """A lower-case host name or ``*.DOMAIN``; ``port`` None matches any port."""

    name: str
    port: int | None = None

    @classmethod
    def parse(cls, text: str) -> HostPattern:
        """Parse ``example.com``, ``*.example.com``, ``127.0.0.1:8443`` or ``[::1]:8443``.

        Raises ValueError for anything else.
        """
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
        """Whether this pattern matches the other, a single host."""
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
    """Return host and port of a URL; without a host a pattern that covers nothing."""
    try:
        parts = urlsplit(url)
        name, port = (parts.hostname or "").rstrip("."), parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return HostPattern(url)
    return HostPattern(name, port) if name else HostPattern(url)


@dataclass(frozen=True, slots=True)
class SecretDestination:
    """A host that would receive a secret.

    ``given``: named by its platform or the environment, not only by the manifest.
    """

    host: HostPattern
    given: bool = False


@dataclass(frozen=True, slots=True)
class AllowEntry:
    """Permissions of a secret; ``commands`` is True for any, or lists the commands."""

    secret: str
    hosts: tuple[HostPattern, ...] = ()
    commands: bool | tuple[tuple[str, ...], ...] = False
    allow_paths_outside_project: bool = False


class PolicyLevel(StrEnum):
    """Whether a plan that violates a policy can be applied: with a warning, or not at all."""

    ADVISORY = "advisory"
    MANDATORY = "mandatory"


@dataclass(frozen=True, slots=True)
class PolicyWaiver:
    """An exception from a policy; ``until``: its last day in UTC, as ``YYYY-MM-DD``."""

    until: str
    reason: str

    def __str__(self) -> str:
        return f"waived until {self.until}: {self.reason}"


@dataclass(frozen=True, slots=True)
class PlanPolicy:
    """Limits on every plan; None means no limit. Patterns are shell-style.

    ``where``: its position in its file. ``rule``: an expression in CEL over the JSON of the plan, ``plan``, that must
    be true. ``message``: what to do about a violation.
    """

    where: str
    name: str | None = None
    max_hourly_cost: float | None = None
    providers: tuple[str, ...] | None = None
    regions: tuple[str, ...] | None = None
    sources: tuple[str, ...] | None = None
    max_gpus: float | None = None
    max_gpu_hours: float | None = None
    max_monthly_gpu_hours: float | None = None
    """Of the runs of the last 30 days and of the plan together."""
    max_upstream_bytes: int | None = None
    require_pins: bool | None = None
    require_end: bool | None = None
    """Whether machines that cost money must end if no one returns."""
    images: tuple[str, ...] | None = None
    registries: tuple[str, ...] | None = None
    forbid_destroy: tuple[str, ...] | None = None
    """Patterns of addresses."""
    keep_checkpoints: bool | None = None
    """Whether checkpoints without another copy may not be deleted."""
    rule: str | None = None
    level: PolicyLevel = PolicyLevel.MANDATORY
    message: str | None = None
    waiver: PolicyWaiver | None = None

    @property
    def label(self) -> str:
        """Its name, else its position."""
        return self.name or self.where


class PolicyStatus(StrEnum):
    """Outcome of a policy; ``error``: it could not be evaluated."""

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    WAIVED = "waived"


@dataclass(frozen=True, slots=True)
class PolicyViolation:
    """A violation of a policy; ``allowed``: the limit."""

    summary: str
    allowed: str = ""
    address: str | None = None


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """Result of a policy for a plan."""

    policy: str
    where: str
    level: PolicyLevel
    status: PolicyStatus
    violations: tuple[PolicyViolation, ...] = ()
    message: str | None = None
    waiver: PolicyWaiver | None = None
    """Only if it applies."""

    @property
    def forbids(self) -> bool:
        """Whether the plan can't be applied."""
        unmet = self.status in (PolicyStatus.FAILED, PolicyStatus.ERROR)
        return unmet and self.level is PolicyLevel.MANDATORY


@dataclass(frozen=True, slots=True)
class Trust:
    """The user's permissions and policies; ``file`` is the path of the trust file."""

    file: str
    allowed: tuple[AllowEntry, ...] = ()
    policies: tuple[PlanPolicy, ...] = ()
    modules: tuple[str, ...] = ()
    """Patterns of modules that may be run, as a manifest names them, or of absolute paths."""

    def may_send(self, secret: str, to: SecretDestination) -> bool:
        """Whether a secret may be sent to a host."""
        return to.given or any(
            host.covers(to.host) for entry in self._of(secret) for host in entry.hosts
        )

    def require_host(self, secret: str, to: SecretDestination) -> None:
        """Raise PermissionDenied unless a secret may be sent to a host."""
        hosts = f'hosts = ["{to.host}"]'
        if not self.may_send(secret, to):
            raise PermissionDenied(
                f"secret {secret!r} is not sent to {to.host}: only the manifest names this host",
                f"If this server may receive the secret, {self._advice(secret, hosts)}",
                code="untrusted-host",
            )

    def require_command(self, secret: str, command: tuple[str, ...], *, own: bool) -> None:
        """Raise PermissionDenied unless a command may be run for the value of a secret.

        ``own``: its program came with the manifest. Entries that list commands don't cover such programs, because
        the author of the manifest controls their content.
        """
        if not any(
            entry.commands is True or (not own and entry.commands and command in entry.commands)
            for entry in self._of(secret)
        ):
            written = "true" if own else json.dumps([list(command)], ensure_ascii=False)
            advice = self._advice(secret, f"commands = {written}")
            raise PermissionDenied(
                f"secret {secret!r}: its command is not run, because only the manifest names it",
                f"If you trust the command, {advice}",
                code="untrusted-command",
            )

    def require_outside(self, secret: str) -> None:
        """Raise PermissionDenied unless a secret may come from a file outside the project."""
        if not any(entry.allow_paths_outside_project for entry in self._of(secret)):
            raise PermissionDenied(
                f"secret {secret!r} reads a file outside the manifest's directory",
                f"Store the file next to the manifest (and exclude it from git), or use the environment: {{from: env}}. To allow the file, {self._advice(secret, 'allow_paths_outside_project = true')}",
                code="secret-outside-project",
            )

    def require_module(self, source: str, directory: Path) -> None:
        """Raise PermissionDenied unless a module may be run; a local one counts by its path from the manifest's directory."""
        named = source
        if source.startswith(("./", "../", "/")):
            place = Path(os.path.realpath(directory / source))
            inside = place.is_relative_to(directory)
            named = f"./{place.relative_to(directory)}" if inside else str(place)
        if not any(fnmatchcase(named, pattern) for pattern in self.modules):
            raise PermissionDenied(
                f"module {named} is not run: it runs programs on this computer",
                f"If you trust it and its later versions, add to {self.file}:\n\n    [[terraform]]\n    modules = [{json.dumps(named)}]",
                code="untrusted-module",
            )

    def _of(self, secret: str) -> list[AllowEntry]:
        return [entry for entry in self.allowed if entry.secret in (ALL_SECRETS, secret)]

    def _advice(self, secret: str, more: str) -> str:
        return f'add to {self.file}:\n\n    [[allow]]\n    secret = "{secret}"\n    {more}'


def default_trust() -> Trust:
    """Return the defaults without a trust file."""
    return Trust("trust.toml")
