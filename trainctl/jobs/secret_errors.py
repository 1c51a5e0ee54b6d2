"""What is said where a secret has no value, or none that can be used. Never the value."""

from __future__ import annotations

from trainctl.desired.values import SecretSpec
from trainctl.errors import SecretUnavailable, TrainctlError, missing_extra


def missing_error(spec: SecretSpec, why: str, detail: str = "") -> TrainctlError:
    """The value can't be had."""
    return TrainctlError(f"secret {spec.name!r}: {why}", detail, code="missing-secret")


def unavailable_error(spec: SecretSpec, why: str, detail: str = "") -> SecretUnavailable:
    """Who keeps the value was asked, and doesn't give it."""
    return SecretUnavailable(f"secret {spec.name!r}: {why}", detail)


def unusable_error(spec: SecretSpec, why: str, detail: str = "") -> TrainctlError:
    """The value can't be used."""
    return TrainctlError(f"secret {spec.name!r}: {why}", detail, code="unusable-secret")


def missing_package_error(spec: SecretSpec, what: str, extra: str) -> TrainctlError:
    """Where the value is kept can't be asked without a package."""
    return missing_extra(f"secret {spec.name!r}: {what}", "a package", extra)
