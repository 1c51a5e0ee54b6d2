"""From a session and its flags to the workspace that an operation works on."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from trainctl.cli.consent import approve
from trainctl.cli.planning import PlanningFlags, assignments
from trainctl.cli.session import Session
from trainctl.errors import UsageError
from trainctl.model.address import Address
from trainctl.operations.workspace import Setting, Workspace

if TYPE_CHECKING:
    from trainctl.desired.values import Desired

_NO_FLAGS = PlanningFlags()


def open_workspace(
    session: Session, flags: PlanningFlags = _NO_FLAGS, desired: Desired | None = None
) -> Workspace:
    """The workspace of a command; of a saved plan with what it wishes for."""
    setting = Setting(
        directory=session.directory,
        environ=os.environ,
        redactor=session.redactor,
        state_url=session.state_url,
        variables=assignments(flags.variables),
        var_files=flags.var_files,
        trust_file=flags.trust,
    )
    return Workspace(
        setting, desired, session.output.note, lambda question: _confirm(session, question)
    )


def open_trusting(session: Session, flags: PlanningFlags) -> Workspace:
    """The workspace of a command that plans nothing: a trust file that was named is read even if nothing comes to depend on it."""
    workspace = open_workspace(session, flags)
    if flags.trust is not None:
        _ = workspace.trust
    return workspace


def _confirm(session: Session, question: str) -> bool:
    """Nobody can be asked without a terminal."""
    return session.stdin.isatty() and approve(session, question)


def addresses(values: tuple[str, ...], flag: str) -> tuple[Address, ...]:
    """Addresses as they were typed; UsageError names the flag."""
    try:
        return tuple(Address.read(value) for value in values)
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from None
