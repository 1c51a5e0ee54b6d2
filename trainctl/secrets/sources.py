"""Sources of secrets: environment, file, command, AWS Secrets Manager, keyring.

``secrets`` validates and masks the values. Errors never contain them.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

from trainctl.base.lazy_dataclass import dataclass
from trainctl.desired.values import SecretSpec
from trainctl.errors import SecretUnavailable, TrainctlError, missing_extra
from trainctl.manifest.checkout import is_from_checkout
from trainctl.manifest.files import open_file
from trainctl.model.diagnostics import Diagnostic
from trainctl.model.trust import Trust
from trainctl.secrets.destinations import SecretUse

MAX_BYTES = 64 * 2**10
"""Limit of a value: that of AWS Secrets Manager, half of that of a variable on Linux."""
_COMMAND_SECONDS = 30.0
"""Timeout of a command."""


@dataclass(frozen=True, slots=True)
class SecretSources:
    """Context for reading secrets; ``trust`` is loaded only if needed."""

    directory: Path
    environ: Mapping[str, str]
    trust: Callable[[], Trust]
    register: Callable[[str], str]


def read(spec: SecretSpec, context: SecretSources) -> str:
    """Read a secret; raise TrainctlError if missing, PermissionDenied if untrusted."""
    if store := SECRET_STORES.get(spec.origin):
        return store.read(spec)
    if spec.origin == "env":
        value = context.environ.get(spec.source)
        if not value:
            raise missing_error(
                spec,
                f"environment variable {spec.source} is not set",
                f"Set it where trainctl runs: export {spec.source}=…",
            )
        return value
    check_allowed(spec, context)
    if spec.origin == "command":
        label, data = f"the output of {spec.source}", run_secret_command(spec, context)
    else:
        label, path = spec.source, secret_path(spec, context)
        try:
            with open_file(path) as file:
                data = file.read(MAX_BYTES + 3)
        except OSError as error:
            raise missing_error(
                spec,
                f"cannot read {spec.source}: {error.strerror}",
                "Create the file, or use another source.",
            ) from None
    content = data.removesuffix(b"\n").removesuffix(b"\r")
    if len(content) > MAX_BYTES:
        raise unusable_error(
            spec, f"{label} is longer than {MAX_BYTES // 2**10} KiB", "Use a shorter value."
        )
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise unusable_error(spec, f"{label} is not UTF-8 text") from None


def is_local(spec: SecretSpec) -> bool:
    """Whether the value is read without running a command or a request."""
    return spec.origin in ("env", "file")


def check_allowed(spec: SecretSpec, context: SecretSources) -> None:
    """Raise PermissionDenied if trust does not allow reading the value."""
    if spec.origin == "command":
        program = resolve_program(spec, context.directory, context.environ)
        own = is_from_checkout(program, context.directory)
        context.trust().require_command(spec.name, spec.command, own=own)
    elif spec.origin == "file" and not secret_path(spec, context).is_relative_to(
        context.directory.resolve()
    ):
        context.trust().require_outside(spec.name)


def secret_path(spec: SecretSpec, context: SecretSources) -> Path:
    """Return the resolved path of a secret with ``from: file``."""
    if spec.source.startswith("~/"):
        return (Path(context.environ.get("HOME", "~")).expanduser() / spec.source[2:]).resolve()
    return (context.directory / spec.source).resolve()


@dataclass(frozen=True, slots=True)
class SecretUseCheck:
    """One use, and whether trust allows it."""

    use: SecretUse
    allowed: bool


@dataclass(frozen=True, slots=True)
class SecretCheck:
    """Check of a declared secret; ``readable``: it has a valid value."""

    spec: SecretSpec
    readable: bool
    uses: tuple[SecretUseCheck, ...]
    problems: tuple[Diagnostic, ...]


@dataclass(frozen=True, slots=True)
class SecretPush:
    """Result of storing a secret; ``before`` and ``after`` are versions if supported."""

    spec: SecretSpec
    place: str
    before: str | None
    after: str | None
    changed: bool = True


def run_secret_command(
    spec: SecretSpec, context: SecretSources, seconds: float = _COMMAND_SECONDS
) -> bytes:
    """Run the command in the manifest's directory and return its output.

    Callers check trust first. On timeout, the process group is killed. Raises TrainctlError on failure, with stderr after the words of stdout are registered for redaction.
    """
    program = resolve_program(spec, context.directory, context.environ)
    try:
        process = subprocess.Popen(
            [str(program), *spec.command[1:]],
            cwd=context.directory,
            env=dict(context.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise missing_error(spec, f"cannot run {spec.source}: {error.strerror}") from None
    with process:
        try:
            stdout, stderr = process.communicate(timeout=seconds)
        except BaseException as error:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise unavailable_error(
                    spec, f"{spec.source} timed out after {seconds:.0f} s"
                ) from None
            raise
    if process.returncode != 0:
        for text in stdout.decode("utf-8", "replace").split():
            if len(text) >= 8:
                context.register(text)
        lines = stderr.decode("utf-8", "replace").strip().splitlines()
        raise unavailable_error(
            spec, f"{spec.source} exited with {process.returncode}", lines[-1] if lines else ""
        )
    return stdout


def resolve_program(spec: SecretSpec, directory: Path, environ: Mapping[str, str]) -> Path:
    """Return the path of the program; raise TrainctlError if it isn't found."""
    name = spec.command[0]
    if "/" in name:
        return directory.absolute() / name
    path = shutil.which(name, path=environ.get("PATH"))
    if path is None:
        raise missing_error(spec, f"program {name} not found", "Install it, or use its full path.")
    return Path(path).absolute()


T = TypeVar("T")

SERVICE = "trainctl"
"""Default service of keyring entries."""
_KEYRING_ADVICE = "Unlock it, or use another source; see `keyring --list-backends`."
_AWS_SECONDS = 20.0


def missing_error(spec: SecretSpec, why: str, detail: str = "") -> TrainctlError:
    """Create the error for a missing value; errors never contain values."""
    return TrainctlError(f"secret {spec.name!r}: {why}", detail, code="missing-secret")


def unavailable_error(spec: SecretSpec, why: str, detail: str = "") -> SecretUnavailable:
    """Create the error for a store that is unreachable or denies access."""
    return SecretUnavailable(f"secret {spec.name!r}: {why}", detail)


def unusable_error(spec: SecretSpec, why: str, detail: str = "") -> TrainctlError:
    """Create the error for an invalid value."""
    return TrainctlError(f"secret {spec.name!r}: {why}", detail, code="unusable-secret")


@dataclass(frozen=True, slots=True)
class StoredSecret:
    """A stored value, None if it has another form, and its version if supported."""

    value: str | None
    version: str | None = None


class SecretStore(Protocol):
    """A store of secrets."""

    def read(self, spec: SecretSpec) -> str:
        """Return the value; raise TrainctlError if there is none."""
        ...

    def look(self, spec: SecretSpec) -> StoredSecret | None:
        """Return what is stored, None if nothing."""
        ...

    def put(self, spec: SecretSpec, value: str) -> str | None:
        """Store a value and return its version, if supported."""
        ...

    def place(self, spec: SecretSpec) -> str:
        """Describe the location."""
        ...


class Keyring:
    """The keyring of the operating system, by the package ``keyring``."""

    def read(self, spec: SecretSpec) -> str:
        stored = self.look(spec)
        if stored is None or not stored.value:
            raise missing_error(
                spec,
                f"{spec.source!r} not found in the keyring (service {_service(spec)!r})",
                f"Store it: trainctl secrets push {spec.name}",
            )
        return stored.value

    def look(self, spec: SecretSpec) -> StoredSecret | None:
        value = _call_keyring(spec, lambda k: k.get_password(_service(spec), spec.source))
        return None if value is None else StoredSecret(value)

    def put(self, spec: SecretSpec, value: str) -> None:
        """Reads the value back, since some backends store nothing."""
        _call_keyring(spec, lambda k: k.set_password(_service(spec), spec.source, value))
        if self.look(spec) != StoredSecret(value):
            raise missing_error(
                spec,
                "the keyring did not store the value",
                "Use another backend; see `keyring --list-backends`.",
            )

    def place(self, spec: SecretSpec) -> str:
        return f"the keyring for {spec.source!r} of the service {_service(spec)!r}"


def _service(spec: SecretSpec) -> str:
    return spec.service or SERVICE


def _call_keyring(spec: SecretSpec, call: Callable[[Any], T]) -> T:
    try:
        import keyring
        from keyring.errors import KeyringError, NoKeyringError
    except ImportError:
        raise _missing_package(spec, "the keyring", "keyring") from None
    try:
        return call(keyring)
    except NoKeyringError:
        raise missing_error(spec, "no keyring available for this user", _KEYRING_ADVICE) from None
    except KeyringError as error:
        why = f"cannot use the keyring ({type(error).__name__})"
        raise unavailable_error(spec, why, _KEYRING_ADVICE) from None


class AwsSecretsManager:
    """AWS Secrets Manager, with the default credential chain of boto3.

    https://docs.aws.amazon.com/secretsmanager/latest/apireference/
    """

    def read(self, spec: SecretSpec) -> str:
        stored = self.look(spec)
        if stored is None:
            raise missing_error(
                spec,
                f"{spec.source!r} not found in AWS Secrets Manager",
                f"Check the name and region, or store it: trainctl secrets push {spec.name}",
            )
        if not stored.value:
            raise unusable_error(
                spec,
                f"{spec.source!r} is not a JSON object with text under {spec.key!r}",
                "Store such an object, or remove 'key' to use the complete value.",
            )
        return stored.value

    def look(self, spec: SecretSpec) -> StoredSecret | None:
        stored = _read_aws(spec)
        if stored is None or spec.key is None:
            return stored
        value = _json_object(stored.value or "").get(spec.key)
        return StoredSecret(value if isinstance(value, str) else None, stored.version)

    def put(self, spec: SecretSpec, value: str) -> str:
        """Keeps members other than ``key``."""
        before = _read_aws(spec)
        text = value
        if spec.key is not None:
            members = _json_object(before.value or "") if before else {}
            if before and not members:
                raise unusable_error(
                    spec,
                    f"{spec.source!r} is not a JSON object, so {spec.key!r} can't be set",
                    "Remove 'key' to replace the complete value.",
                )
            text = json.dumps({**members, spec.key: value})
        if before is None:
            response = _call_aws(spec, "create_secret", Name=spec.source, SecretString=text)
        else:
            response = _call_aws(spec, "put_secret_value", SecretId=spec.source, SecretString=text)
        return str(response["VersionId"])

    def place(self, spec: SecretSpec) -> str:
        part = f", member {spec.key!r}" if spec.key else ""
        return f"AWS Secrets Manager as {spec.source!r}{part}"


class _SecretNotFound(Exception):
    """The secret doesn't exist."""


def _read_aws(spec: SecretSpec) -> StoredSecret | None:
    """Read the complete stored text, None if there is none."""
    try:
        response = _call_aws(spec, "get_secret_value", SecretId=spec.source)
    except _SecretNotFound:
        return None
    text = response.get("SecretString")
    if not isinstance(text, str):
        raise unusable_error(
            spec,
            f"{spec.source!r} in AWS Secrets Manager is not text",
            "Store it as SecretString.",
        )
    return StoredSecret(text, str(response["VersionId"]))


def _json_object(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _call_aws(spec: SecretSpec, method: str, **arguments: str) -> dict[str, Any]:
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import (
            BotoCoreError,
            ClientError,
            ConnectionError,  # noqa: A004
            HTTPClientError,
        )
    except ImportError:
        raise _missing_package(spec, "AWS Secrets Manager", "aws") from None
    config = Config(
        connect_timeout=_AWS_SECONDS, read_timeout=_AWS_SECONDS, retries={"total_max_attempts": 3}
    )
    try:
        client = boto3.client("secretsmanager", region_name=spec.region, config=config)
        response: dict[str, Any] = getattr(client, method)(**arguments)
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))
        if code == "ResourceNotFoundException":
            raise _SecretNotFound from None
        raise unavailable_error(
            spec,
            f"AWS Secrets Manager rejected the request for {spec.source!r} ({code})",
            "Check that this account has access.",
        ) from None
    except (ConnectionError, HTTPClientError) as error:
        raise unavailable_error(spec, "AWS Secrets Manager is unreachable", str(error)) from None
    except BotoCoreError as error:
        raise missing_error(spec, "cannot query AWS Secrets Manager", str(error)) from None
    return response


def _missing_package(spec: SecretSpec, store: str, extra: str) -> TrainctlError:
    return missing_extra(f"secret {spec.name!r}: {store}", "a package", extra)


SECRET_STORES: Mapping[str, SecretStore] = {
    "aws-secrets-manager": AwsSecretsManager(),
    "keyring": Keyring(),
}
"""Stores by the value of ``from``."""
