"""Check secrets, also against the user's trust, and store them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING

from trainctl.desired.values import SecretSpec
from trainctl.errors import PermissionDenied, TrainctlError, TrustError, UsageError
from trainctl.model.diagnostics import Diagnostic, did_you_mean, of_error
from trainctl.operations.workspace import Workspace
from trainctl.secrets.destinations import SecretUse, secret_uses

if TYPE_CHECKING:
    from trainctl.secrets.sources import SecretCheck, SecretPush


def check_secrets(workspace: Workspace) -> list[SecretCheck]:
    """Read and check every declared secret, by name."""
    by_name: dict[str, list[SecretUse]] = defaultdict(list)
    for use in secret_uses(workspace.desired, workspace.settings.environ):
        by_name[use.secret].append(use)
    specs = sorted(workspace.desired.secrets.items())
    return [_check_secret(workspace, spec, by_name[name]) for name, spec in specs]


def exit_code(checks: list[SecretCheck]) -> int:
    """Return 13 if trust forbids anything, 1 if a value is missing, else 0."""
    problems = [problem for check in checks for problem in check.problems]
    if any(problem.forbids for problem in problems):
        return PermissionDenied.exit_code
    return TrainctlError.exit_code if problems else 0


def _check_secret(workspace: Workspace, spec: SecretSpec, uses: list[SecretUse]) -> SecretCheck:
    """Check one secret; raise TrustError for an invalid trust file."""
    from trainctl.secrets.sources import SecretCheck, SecretUseCheck

    problems: dict[Diagnostic, None] = {}
    rows = []
    may_be_read = read_denial(workspace, spec.name) is None
    for use in uses:
        violations = sending_violations(workspace, use)
        rows.append(SecretUseCheck(use, may_be_read and not violations))
        problems |= dict.fromkeys(violations)
    readable = False
    try:
        workspace.secrets.value(spec.name)
        for row in rows:  # is it a valid credential?
            if row.allowed and row.use.purpose == "source" and row.use.resource is not None:
                workspace.secrets.declared_credential(row.use.resource.weights_spec)
        readable = True
    except TrustError:
        raise
    except TrainctlError as failure:
        problems[of_error(failure, where=spec.where)] = None
    return SecretCheck(spec, readable, tuple(rows), tuple(problems))


def trust_violations(workspace: Workspace) -> list[Diagnostic]:
    """Return an error for each secret that trust forbids to read or send."""
    violations: dict[Diagnostic, None] = {}  # a set in order
    secrets: dict[str, None] = {}
    for use in secret_uses(workspace.desired, workspace.settings.environ):
        secrets[use.secret] = None
        violations |= dict.fromkeys(sending_violations(workspace, use))
    for name in secrets:
        denial = read_denial(workspace, name)
        if denial is not None:
            violations[of_error(denial, where=workspace.desired.secrets[name].where)] = None
    try:
        workspace.checkpoints.require_trust()
    except PermissionDenied as denial:
        violations[of_error(denial, "checkpoints")] = None
    return list(violations)


def sending_violations(workspace: Workspace, use: SecretUse) -> list[Diagnostic]:
    """Return why a secret may not be sent; empty if it may."""
    try:
        if use.to is not None:
            workspace.trust.require_host(use.secret, use.to)
    except PermissionDenied as denial:
        return [of_error(denial, use.by, use.resource.where if use.resource else None)]
    return []


def read_denial(workspace: Workspace, secret: str) -> PermissionDenied | None:
    """Return why a secret may not be read; None if it may."""
    try:
        workspace.secrets.check_allowed(secret)
    except PermissionDenied as denial:
        return denial
    except TrustError:
        raise
    except TrainctlError:  # a missing program is reported when it is run
        return None
    return None


def require_storable(workspace: Workspace, name: str) -> SecretSpec:
    """Return a declared secret that can be stored; UsageError otherwise."""
    from trainctl.secrets.sources import SECRET_STORES

    spec = workspace.desired.secrets.get(name)
    if spec is None:
        raise UsageError(
            f"undeclared secret {name!r}",
            f"Declare it under `secrets:`. {did_you_mean(name, workspace.desired.secrets)}".strip(),
            code="undeclared-name",
        )
    if spec.origin not in SECRET_STORES:
        raise UsageError(
            f"secret {name!r} is read from {spec.origin}, where trainctl can't store it",
            f"trainctl can store secrets with `from:` {' or '.join(SECRET_STORES)}. To send this one to waiting runs: trainctl secrets push",
            code="secret-store-read-only",
        )
    return spec


def push_secret(
    workspace: Workspace, spec: SecretSpec, value: str, agree: Callable[[str], bool]
) -> SecretPush | None:
    """Store a secret's value; None if ``agree`` declines to replace another.

    Registers the value for redaction first.
    """
    from trainctl.secrets.sources import SECRET_STORES, SecretPush

    workspace.secrets.accept(spec, value)
    store = SECRET_STORES[spec.origin]
    before = store.look(spec)
    place = store.place(spec)
    if before is not None and before.value == value:
        return SecretPush(spec, place, before.version, before.version, changed=False)
    if before is not None and not agree(place):
        return None
    after = store.put(spec, value)
    return SecretPush(spec, place, before.version if before else None, after)
