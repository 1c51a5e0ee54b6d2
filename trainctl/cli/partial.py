"""Ending a command that could answer for a part of the nodes only."""

from __future__ import annotations

from collections.abc import Sequence

from trainctl.cli.session import Session
from trainctl.errors import NodeUnreachable
from trainctl.model.away import Away
from trainctl.views.away import away_lines


def told_of(session: Session, away: Sequence[Away], what: str) -> int:
    """Name on standard error each node that was away, with what of it is missing; the exit code: 0 if nothing is."""
    for line in away_lines(away, what):
        session.output.note(line)
    return NodeUnreachable.exit_code if away else 0
