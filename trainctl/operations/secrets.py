"""What trust allows of a manifest's secrets; checking and storing them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from trainctl.desired.values import SecretSpec
from trainctl.errors import PermissionDenied, TrainctlError, TrustError, UsageError
from trainctl.jobs.destinations import SecretUse, secret_uses
from trainctl.jobs.secret_sources import SECRET_STORES, SecretCheck, SecretPush, SecretUseCheck
from trainctl.manifest.suggestions import did_you_mean
from trainctl.model.diagnostics import Diagnostic, of_error
from trainctl.operations.workspace import Workspace


def trust_violations(workspace: Workspace) -> list[Diagnostic]:
    """An error for each secret that the user's trust does not let be read or sent. Reads and sends nothing."""
    told: dict[Diagnostic, None] = {}
    secrets: dict[str, None] = {}
    for use in secret_uses(workspace.desired, workspace.settings.environ):
        secrets[use.secret] = None
        told |= dict.fromkeys(_not_sent(workspace, use))
    for name in secrets:
        refused = _not_read(workspace, name)
        if refused is not None:
            told[of_error(refused, where=workspace.desired.secrets[name].where)] = None
    try:
        workspace.checkpoints.require_trust()
    except PermissionDenied as own:
        told[of_error(own, "checkpoints")] = None
    return list(told)


def _not_sent(workspace: Workspace, use: SecretUse) -> list[Diagnostic]:
    """Why a secret may not be sent where it would go; empty where it may."""
    try:
        if use.to is not None:
            workspace.trust.require_host(use.secret, use.to)
    except PermissionDenied as refused:
        return [of_error(refused, use.by, use.resource.where if use.resource else None)]
    return []


def _not_read(workspace: Workspace, secret: str) -> PermissionDenied | None:
    """Why a secret may not be read from where it is."""
    try:
        workspace.secrets.check_allowed(secret)
    except PermissionDenied as refused:
        return refused
    except TrustError:
        raise
    except TrainctlError:  # a missing program is reported where it is run
        return None
    return None


def check_secrets(workspace: Workspace) -> list[SecretCheck]:
    """Every declared secret, by name. Each is read, and nothing is sent but the question to where it is kept."""
    by_name: dict[str, list[SecretUse]] = defaultdict(list)
    for use in secret_uses(workspace.desired, workspace.settings.environ):
        by_name[use.secret].append(use)
    specs = sorted(workspace.desired.secrets.items())
    return [_check_secret(workspace, spec, by_name[name]) for name, spec in specs]


def exit_code(checked: list[SecretCheck]) -> int:
    """13 if trust forbids anything, 1 if a value can't be had, else 0."""
    problems = [problem for one in checked for problem in one.problems]
    if any(problem.forbids for problem in problems):
        return PermissionDenied.exit_code
    return TrainctlError.exit_code if problems else 0


def _check_secret(workspace: Workspace, spec: SecretSpec, found: list[SecretUse]) -> SecretCheck:
    """A trust file that is wrong is raised: it is no secret's problem."""
    problems: dict[Diagnostic, None] = {}
    rows = []
    may_be_read = _not_read(workspace, spec.name) is None
    for use in found:
        refused = _not_sent(workspace, use)
        rows.append(SecretUseCheck(use, may_be_read and not refused))
        problems |= dict.fromkeys(refused)
    readable = False
    try:
        workspace.secrets.value(spec.name)
        _require_valid_credential(workspace, rows)
        readable = True
    except TrustError:
        raise
    except TrainctlError as failure:
        problems[of_error(failure, where=spec.where)] = None
    return SecretCheck(spec, readable, tuple(rows), tuple(problems))


def _require_valid_credential(workspace: Workspace, rows: list[SecretUseCheck]) -> None:
    """TrainctlError where the value can't be what a source is opened by: a token, or a credential of its platform."""
    for row in rows:
        if row.allowed and row.use.purpose == "source" and row.use.resource is not None:
            workspace.secrets.declared_credential(row.use.resource.weights_spec)


def require_storable(workspace: Workspace, name: str) -> SecretSpec:
    """A declared secret that can be stored from here; UsageError says why one can't."""
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
    """Store a value where the manifest says that it comes from; None if ``agree`` refused to replace another.

    The value is masked before anything is asked.
    """
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
