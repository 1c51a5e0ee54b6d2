"""Where values of secrets come from: the environment, a file, a command, AWS Secrets Manager, the operating system's keyring.

Each reader gives the value as it is there; ``secrets`` judges and masks it. No error holds what was read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from trainctl.desired.values import SecretSpec
from trainctl.jobs import secret_aws, secret_keyring
from trainctl.jobs.checkout import came_with
from trainctl.jobs.destinations import Use
from trainctl.jobs.secret_command import output_of, program_of
from trainctl.jobs.secret_errors import missing, unusable
from trainctl.manifest.files import open_file
from trainctl.model.diagnostics import Diagnostic
from trainctl.model.trust import Trust

LARGEST = 64 * 2**10
"""Bytes of a value: what AWS Secrets Manager holds at most (65 536), and half of what Linux takes as one variable."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What values are read from. ``trust`` is asked for only by what needs it."""

    directory: Path
    environ: Mapping[str, str]
    trust: Callable[[], Trust]
    register: Callable[[str], str]


def read(spec: SecretSpec, around: Surroundings) -> str:
    """A secret's value; TrainctlError says where it was looked for, Forbidden what trust lacks."""
    return _READERS[spec.origin](spec, around)


def is_at_hand(spec: SecretSpec) -> bool:
    """Whether the value can be read without running or asking anything."""
    return spec.origin in ("env", "file")


def check_allowed(spec: SecretSpec, around: Surroundings) -> None:
    """Forbidden where trust lacks what reading the value needs; reads nothing."""
    if spec.origin == "command":
        program = program_of(spec, around.directory, around.environ)
        own = came_with(program, around.directory)
        around.trust().require_command(spec.name, spec.command, own=own)
    elif spec.origin == "file" and not _is_inside(path_of(spec, around), around.directory):
        around.trust().require_outside(spec.name)


def path_of(spec: SecretSpec, around: Surroundings) -> Path:
    """The file that a secret of ``from: file`` is read from, links followed."""
    if spec.source.startswith("~/"):
        return (Path(around.environ.get("HOME", "~")).expanduser() / spec.source[2:]).resolve()
    return (around.directory / spec.source).resolve()


def _is_inside(path: Path, directory: Path) -> bool:
    return path.is_relative_to(directory.resolve())


def _from_env(spec: SecretSpec, around: Surroundings) -> str:
    value = around.environ.get(spec.source)
    if not value:
        raise missing(
            spec,
            f"the environment variable {spec.source} is not set",
            f"Set it where trainctl runs: export {spec.source}=…",
        )
    return value


def _from_file(spec: SecretSpec, around: Surroundings) -> str:
    check_allowed(spec, around)
    path = path_of(spec, around)
    try:
        with open_file(path) as file:
            data = file.read(LARGEST + 3)
    except OSError as error:
        raise missing(
            spec,
            f"{spec.source} can't be read: {error.strerror}",
            "Write the value there, or take it from elsewhere.",
        ) from None
    return _text(spec, data, spec.source)


def _from_command(spec: SecretSpec, around: Surroundings) -> str:
    check_allowed(spec, around)
    data = output_of(spec, around.directory, around.environ, LARGEST, around.register)
    return _text(spec, data, f"the output of {spec.source}")


def _text(spec: SecretSpec, data: bytes, what: str) -> str:
    """The text, without the one line end that editors and programs add."""
    ended = data.removesuffix(b"\n").removesuffix(b"\r")
    if len(ended) > LARGEST:
        raise unusable(spec, f"{what} is longer than {LARGEST // 2**10} KiB", "A secret is short.")
    try:
        return ended.decode("utf-8")
    except UnicodeDecodeError:
        raise unusable(spec, f"{what} is not UTF-8 text") from None


_READERS: Mapping[str, Callable[[SecretSpec, Surroundings], str]] = {
    "env": _from_env,
    "file": _from_file,
    "command": _from_command,
    "aws-secrets-manager": lambda spec, _: secret_aws.value_of(spec),
    "keyring": lambda spec, _: secret_keyring.value_of(spec),
}


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
