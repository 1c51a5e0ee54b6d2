"""What the user allows, and what of a manifest goes beyond it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trainctl.errors import Forbidden, TrainctlError
from trainctl.jobs.uses import Use, uses
from trainctl.model.diagnostics import Diagnostic, Position, error
from trainctl.model.trust import Trust
from trainctl.operations.places import config_home

if TYPE_CHECKING:
    from trainctl.operations.workspace import Workspace


def trust_of(environ: Mapping[str, str], directory: Path, given: Path | None) -> Trust:
    """What the user's trust file allows, or the ``given`` one in its place; without any, nothing is allowed.

    The policies of the user's own hold in any case. TrustError where a file can't be relied upon.
    """
    usual = config_home(environ) / "trust.toml"
    chosen = _read(given) if given is not None else None
    if chosen is not None and given is not None and given.resolve() == usual.resolve():
        return chosen
    own = _read(usual, directory) if os.path.lexists(usual) else Trust(str(usual))
    if chosen is None:
        return own
    return replace(chosen, policies=(*own.policies, *chosen.policies))


def _read(path: Path, outside: Path | None = None) -> Trust:
    from trainctl.manifest.trust_file import read_trust  # a parser: only who has a file pays for it

    return read_trust(path, outside=outside)


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
        refused = _not_read(workspace, name)
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


def _not_read(workspace: Workspace, secret: str) -> Forbidden | None:
    """Why a secret may not be read from where it is."""
    try:
        workspace.secrets.check_allowed(secret)
    except Forbidden as refused:
        return refused
    except TrainctlError:  # a program that is missing is told where it is to be run
        return None
    return None


def forbidden(refused: Forbidden, where: Position | None, address: str | None = None) -> Diagnostic:
    """The refusal at what asks for it."""
    told = error(refused.summary, refused.detail, address=address, where=where, code=refused.code)
    return replace(told, forbids=True)
