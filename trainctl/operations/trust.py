"""What the user allows, and what of a manifest goes beyond it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trainctl.errors import Forbidden, TrainctlError
from trainctl.jobs.uses import Use, uses
from trainctl.model.diagnostics import Diagnostic, error
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


def refusals(workspace: Workspace) -> Iterator[Diagnostic]:
    """An error for each use of a secret that the user's trust does not cover. Reads and sends nothing."""
    for use in uses(workspace.desired, workspace.setting.environ):
        for refused in (not_sent(workspace, use), _not_read(workspace, use.secret)):
            if refused is not None:
                yield forbidden(refused, use)
    try:
        workspace.checkpoints.require_trust()
    except Forbidden as refused:
        yield forbidden(refused, Use("", "checkpoints", "checkpoints"))


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


def forbidden(refused: Forbidden, use: Use) -> Diagnostic:
    """The refusal at what asks for it."""
    where = use.resource.where if use.resource else None
    found = error(refused.summary, refused.detail, address=use.by, where=where, code=refused.code)
    return replace(found, forbids=True)
