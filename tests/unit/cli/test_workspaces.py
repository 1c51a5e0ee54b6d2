"""The question before a change, on a real terminal."""

from __future__ import annotations

import io
import os
import pty

import pytest

from trainctl.cli.session import CliSession
from trainctl.cli.workspaces import approve, require_terminal
from trainctl.errors import UsageError
from trainctl.model.redaction import Redactor
from trainctl.views.terminal.output import TerminalOutput


def session(stdin: io.TextIOBase) -> CliSession:
    redactor = Redactor()
    return CliSession(redactor, TerminalOutput(io.StringIO(), io.StringIO(), redactor, {}), stdin)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("typed", "approved"),
    [(b"yes\n", True), (b"y\n", False), (b"YES\n", False), (b"\n", False), (b"no\n", False), (b"\x04", False)],
)  # fmt: skip
def test_only_yes_is_yes(typed: bytes, approved: bool) -> None:
    master, slave = pty.openpty()
    with os.fdopen(slave, "r") as terminal:
        os.write(master, typed)
        assert approve(session(terminal), "Apply this plan?") is approved
    os.close(master)


def test_without_a_terminal_it_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        require_terminal(session(io.StringIO("yes\n")))
    assert "--auto-approve" in caught.value.detail
    assert caught.value.exit_code == 64
