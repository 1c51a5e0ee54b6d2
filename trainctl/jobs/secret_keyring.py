"""Secrets in the keyring of the operating system, by the package ``keyring``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from trainctl.desired.values import SecretSpec
from trainctl.jobs.secret_errors import missing_error, missing_package_error, unavailable_error

T = TypeVar("T")

SERVICE = "trainctl"
"""Default service of entries."""
_ADVICE = "Unlock it, or use another source; see `keyring --list-backends`."


def value_of(spec: SecretSpec) -> str:
    """Read the value; raise TrainctlError if there is none."""
    value = read_stored(spec)
    if not value:
        raise missing_error(
            spec,
            f"{spec.source!r} not found in the keyring (service {service_of(spec)!r})",
            f"Store it: trainctl secrets push {spec.name}",
        )
    return value


def read_stored(spec: SecretSpec) -> str | None:
    """Read the value, None if there is no entry."""

    def read() -> str | None:
        import keyring

        return keyring.get_password(service_of(spec), spec.source)

    return _call_keyring(spec, read)


def store(spec: SecretSpec, value: str) -> None:
    """Store the value and read it back, since some backends store nothing."""

    def write() -> None:
        import keyring

        keyring.set_password(service_of(spec), spec.source, value)

    _call_keyring(spec, write)
    if read_stored(spec) != value:
        raise missing_error(
            spec,
            "the keyring did not store the value",
            "Use another backend; see `keyring --list-backends`.",
        )


def service_of(spec: SecretSpec) -> str:
    """Return the service of the entry."""
    return spec.service or SERVICE


def _call_keyring(spec: SecretSpec, call: Callable[[], T]) -> T:
    try:
        from keyring.errors import KeyringError, NoKeyringError
    except ImportError:
        raise missing_package_error(spec, "the keyring", "keyring") from None
    try:
        return call()
    except NoKeyringError:
        raise missing_error(spec, "no keyring available for this user", _ADVICE) from None
    except KeyringError as error:
        why = f"cannot use the keyring ({type(error).__name__})"
        raise unavailable_error(spec, why, _ADVICE) from None
