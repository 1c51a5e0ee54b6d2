"""The program: arguments in, an exit code out."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from trainctl import __version__

_VERSION_QUESTIONS = (["version"], ["--version"], ["-version"])


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; ``argv`` is without the program's name."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments in _VERSION_QUESTIONS and _said_version():
        return 0
    try:
        from trainctl.cli.invoke import invoke

        return invoke(arguments)
    except KeyboardInterrupt:  # while the program itself was still being loaded
        return 130


def _said_version() -> bool:
    """Asked by every script and prompt, so it is answered before a parser is loaded; False if nobody reads it."""
    try:
        print(f"trainctl {__version__}", flush=True)  # noqa: T201
    except OSError:
        return False
    return True
