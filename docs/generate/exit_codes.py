"""``docs/reference/exit-codes.md``, from the table of exit codes and the error classes."""

from __future__ import annotations

from docs.generate.markdown import code, table, text_of
from trainctl import errors
from trainctl.cli.command_notes import EXIT_CODES, NOTES
from trainctl.errors import TrainctlError

_INTRODUCTION = """\
# Exit codes

Each error class has one exit code. Scripts can rely on these numbers; they don't change.
"""
_COMMANDS = """\
## By command

Codes that a command returns in addition to `0`, `1`, `64` and `130`, or with a meaning of its own.
"""


def page() -> str:
    """Return the text of the page."""
    codes = ((code(str(one)), meaning, _errors(one)) for one, meaning in EXIT_CODES.items())
    commands = (
        (code(f"trainctl {name}"), code(str(one)), meaning)
        for name, notes in NOTES.items()
        for one, meaning in sorted(notes.exit_codes.items())
    )
    return text_of(
        [
            _INTRODUCTION,
            *table(("code", "meaning", "error codes"), codes),
            "`1` is the exit code of all other [error codes](errors.md).",
            "",
            _COMMANDS,
            *table(("command", "code", "meaning"), commands),
        ]
    )


def _errors(exit_code: int) -> str:
    """The error codes of the classes with that exit code; too many to list for 1."""
    classes = [one for one in vars(errors).values() if isinstance(one, type)]
    names = {
        one.default_code
        for one in classes
        if issubclass(one, TrainctlError) and one.exit_code == exit_code != 1
    }
    return ", ".join(f"[`{name}`](errors.md#{name})" for name in sorted(names))
