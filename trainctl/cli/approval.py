"""The question before a change. Only ``yes`` is a yes, and only a terminal can be asked."""

from __future__ import annotations

from trainctl.cli.session import Session
from trainctl.errors import UsageError


def require_terminal(session: Session, instead: str = "") -> None:
    """Refuse at once, before any work, where nobody could answer; ``instead`` is what else can be done than to say yes beforehand."""
    if not session.stdin.isatty():
        raise UsageError(
            "there is no terminal to ask on",
            f"Pass --auto-approve{instead}.",
            code="no-terminal",
        )


def approve(session: Session, question: str) -> bool:
    """Ask; anything but ``yes`` is a no, and so is the end of input."""
    require_terminal(session)
    output = session.output
    output.note("")
    output.note(output.error_style(question, "bold"))
    output.note("  Only 'yes' will be accepted.")
    output.ask("  Enter a value: ")
    answer = session.stdin.readline()
    if not answer.endswith("\n"):
        output.note("")
    return answer.strip() == "yes"
