"""What apply, destroy and run have in common before anything is done: consent, and how errors are told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from typer import Exit

from trainctl.cli.options import Format
from trainctl.cli.session import Session
from trainctl.errors import TrainctlError, UsageError
from trainctl.views.events import EventsJson

_SAVED = ", or apply a plan file that was made with plan --out"


@dataclass(frozen=True, slots=True)
class Consent:
    """How the user agreed, or will be asked to."""

    auto_approve: bool = False
    stop_running: bool = False
    wait: bool = False
    format: Format = Format.TEXT
    lockfile_readonly: bool = False
    lease_timeout: float = 0.0
    follows: bool = False
    named_runs: frozenset[str] = frozenset()

    def require_someone(self, session: Session) -> None:
        """Refuse at once where nobody can be asked and nobody agreed beforehand."""
        if not self.auto_approve:
            require_terminal(session, _SAVED)

    def given(self, session: Session, question: str) -> bool:
        """Whether the user agrees."""
        return self.auto_approve or approve(session, question)


@contextmanager
def errors_as_events(session: Session, format_: Format) -> Iterator[None]:
    """With JSON events an error that ends the command is one of them, and the summary follows."""
    try:
        yield
    except TrainctlError as error:
        if format_ is not Format.JSON:
            raise
        EventsJson(session.output).fail(error)
        raise Exit(error.exit_code) from None


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
