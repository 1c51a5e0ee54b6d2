"""Places that keep secrets and that trainctl can write to: the counterpart of reading them from there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trainctl.desired.values import SecretSpec
from trainctl.jobs import secret_aws, secret_keyring
from trainctl.jobs.uses import Use
from trainctl.model.diagnostics import Diagnostic


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept now: the value that the secret means, None where there is something else; and its version, if the place has any."""

    value: str | None
    version: str | None = None


@dataclass(frozen=True, slots=True)
class Store:
    """``look`` tells what is there, ``put`` puts a value there and tells its version, ``place`` is the place in words."""

    look: Callable[[SecretSpec], Kept | None]
    put: Callable[[SecretSpec, str], str | None]
    place: Callable[[SecretSpec], str]


def _look_in_aws(spec: SecretSpec) -> Kept | None:
    found = secret_aws.stored(spec)
    return Kept(secret_aws.member(spec, found.text), found.version) if found else None


def _put_in_aws(spec: SecretSpec, value: str) -> str:
    return secret_aws.store(spec, value, secret_aws.stored(spec))


def _look_in_keyring(spec: SecretSpec) -> Kept | None:
    found = secret_keyring.stored(spec)
    return None if found is None else Kept(found)


def _in_aws(spec: SecretSpec) -> str:
    part = f", member {spec.key!r}" if spec.key else ""
    return f"AWS Secrets Manager as {spec.source!r}{part}"


def _in_keyring(spec: SecretSpec) -> str:
    return f"the keyring for {spec.source!r} of the service {secret_keyring.service_of(spec)!r}"


STORES: Mapping[str, Store] = {
    "aws-secrets-manager": Store(_look_in_aws, _put_in_aws, _in_aws),
    "keyring": Store(_look_in_keyring, secret_keyring.store, _in_keyring),
}
"""By what ``from`` says."""


@dataclass(frozen=True, slots=True)
class Used:
    """One use, and whether trust allows the secret to be read and sent there."""

    use: Use
    allowed: bool


@dataclass(frozen=True, slots=True)
class Checked:
    """A declared secret. ``readable`` says that it has a value here that can be used."""

    spec: SecretSpec
    readable: bool
    uses: tuple[Used, ...]
    problems: tuple[Diagnostic, ...]


@dataclass(frozen=True, slots=True)
class Pushed:
    """A secret that was stored. ``before`` and ``after`` are versions, where the place has any."""

    spec: SecretSpec
    place: str
    before: str | None
    after: str | None
    changed: bool = True
