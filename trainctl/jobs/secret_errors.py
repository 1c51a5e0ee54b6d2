"""Errors about secrets; they never contain the value."""

from __future__ import annotations

from trainctl.desired.values import SecretSpec
from trainctl.errors import SecretUnavailable, TrainctlError, missing_extra


def missing_error(spec: SecretSpec, why: str, detail: str = "") -> TrainctlError:
    """Create the error for a missing value."""
    return TrainctlError(f"secret {spec.name!r}: {why}", detail, code="missing-secret")


def unavailable_error(spec: SecretSpec, why: str, detail: str = "") -> SecretUnavailable:
    """Create the error for a store that is unreachable or denies access."""
    return SecretUnavailable(f"secret {spec.name!r}: {why}", detail)


def unusable_error(spec: SecretSpec, why: str, detail: str = "") -> TrainctlError:
    """Create the error for an invalid value."""
    return TrainctlError(f"secret {spec.name!r}: {why}", detail, code="unusable-secret")


def missing_package_error(spec: SecretSpec, store: str, extra: str) -> TrainctlError:
    """Create the error for a missing optional package."""
    return missing_extra(f"secret {spec.name!r}: {store}", "a package", extra)
