"""What the user allows, and what of a manifest goes beyond it."""

from __future__ import annotations

from dataclasses import replace

from trainctl.errors import Forbidden, TrainctlError, TrustError
from trainctl.jobs.destinations import Use, uses
from trainctl.model.diagnostics import Diagnostic, Position, error
from trainctl.operations.workspace import Workspace


def refusals(workspace: Workspace) -> list[Diagnostic]:
    """An error for each secret that the user's trust does not let be read or sent. Reads and sends nothing."""
    told: dict[Diagnostic, None] = {}
    secrets: dict[str, None] = {}
    for use in uses(workspace.desired, workspace.setting.environ):
        secrets[use.secret] = None
        refused = not_sent(workspace, use)
        if refused is not None:
            where = use.resource.where if use.resource else None
            told[forbidden(refused, where, use.by)] = None
    for name in secrets:
        refused = not_read(workspace, name)
        if refused is not None:
            told[forbidden(refused, workspace.desired.secrets[name].where)] = None
    try:
        workspace.checkpoints.require_trust()
    except Forbidden as own:
        told[forbidden(own, None, "checkpoints")] = None
    return list(told)


def not_sent(workspace: Workspace, use: Use) -> Forbidden | None:
    """Why a secret may not be sent where it would go."""
    try:
        if use.to is not None:
            workspace.trust.require_host(use.secret, use.to)
    except Forbidden as refused:
        return refused
    return None


def not_read(workspace: Workspace, secret: str) -> Forbidden | None:
    """Why a secret may not be read from where it is."""
    try:
        workspace.secrets.check_allowed(secret)
    except Forbidden as refused:
        return refused
    except TrustError:
        raise
    except TrainctlError:  # a program that is missing is told where it is to be run
        return None
    return None


def forbidden(refused: Forbidden, where: Position | None, address: str | None = None) -> Diagnostic:
    """The refusal at what asks for it."""
    told = error(refused.summary, refused.detail, address=address, where=where, code=refused.code)
    return replace(told, forbids=True)
